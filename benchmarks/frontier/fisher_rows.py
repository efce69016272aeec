"""What more rows of Fisher information do to learning, forgetting and drift, on the causal stream.

    python benchmarks/frontier/fisher_rows.py DATA [--rows 100,1000,10000] [--strengths 1000] [--seeds 1]
    python benchmarks/frontier/fisher_rows.py --page

DATA holds the corpora (docs/data-sources.md). EWC with the base model protected, all with the same steps: what its
passes cost stands in the table and is not taken from them. A cell that is there is not made again; a domain with fewer
rows is read more than once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import HERE, as_methods, places

from everlearn import files
from everlearn.comparison import formatting as fmt
from everlearn.grid import load_results, summarise
from everlearn.grid.relative_to_plain import compute_of, shares_table
from everlearn.grid.summary import Line
from everlearn.methods import build
from everlearn.methods.sequential import PLAIN
from everlearn.report.tables import Table, TableCell, markdown_table

RECIPE = HERE / "causal.yaml"
NUMBERS = {"bits_learnt": "Learnt ↑", "bits_forgotten": "Forgotten ↓", "bits_drift": "General drift ↓"}


def table(lines: list[Line], plain: Line) -> Table:
    """The three numbers in bits per byte, and what they cost."""
    rows = []
    for line in lines:
        cells = [fmt.estimate(line.numbers[name], 3) for name in NUMBERS]
        compute, time = compute_of(line, plain), line.seconds / plain.seconds
        cells += [fmt.MISSING if compute is None else f"{compute:.2f}×", f"{time:.2f}×"]
        rows.append((line.label, tuple(map(TableCell, cells))))
    caption = "Bits per byte. Compute: counted in passes, against plain training; time: measured on a shared machine."
    return Table("What was measured", ("Way", *NUMBERS.values(), "Compute", "Time"), tuple(rows), caption)


def page(results: Path) -> str:
    """In Markdown."""
    lines = [_named(line) for line in sorted(summarise(load_results(results)), key=_place)]
    plain = next(line for line in lines if line.entry == PLAIN)
    parts = [
        "# Rows of Fisher information",
        "What more rows do to learning, forgetting and drift: EWC with the base model protected, on the causal "
        "stream of the [frontier](frontier-causal.md) (four domains, 120 steps of 8 × 128 tokens each, a 5.6 M "
        "decoder). Written by `python benchmarks/frontier/fisher_rows.py`. All have the same number of steps; "
        "the passes for Fisher information are additional. The strength's unit is that of the mean over rows, so more "
        "rows make the same penalty less noisy.",
        _extent(lines),
        markdown_table(table(lines, plain), 2),
        *(markdown_table(each, 2) for each in shares_table([line for line in lines if line is not plain], plain)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _extent(lines: list[Line]) -> str:
    """Return the number of seeds and strengths, and what cannot be concluded from them."""
    seeds = {run.grid.seed for line in lines for run in line.runs}
    strengths = {_options(line)[0] for line in lines if line.entry != PLAIN}
    sentences = f"{_number(seeds, 'seed')} and {_number(strengths, 'strength')}."
    if len(seeds) == 1:
        sentences += " With one seed the variation between seeds is unknown."
    if len(strengths) == 1:
        sentences += " At another strength the order may be different."
    return sentences


def _number(numbers: set[Any], what: str) -> str:
    return (
        f"{len(numbers)} {what}{'s' if len(numbers) > 1 else ''} ({', '.join(f'{each:g}' for each in sorted(numbers))})"
    )


def _options(line: Line) -> tuple[float, int]:
    """Strength and rows; what is left out is the default."""
    config: Any = build({"name": "ewc", **line.facts.options}).config
    return (config.strength, config.samples)


def _place(line: Line) -> tuple[float, int]:
    return (0.0, 0) if line.entry == PLAIN else _options(line)


def _named(line: Line) -> Line:
    if line.entry == PLAIN:
        return line
    strength, rows = _options(line)
    return replace(line, label=f"EWC, strength {strength:g}, {fmt.integer(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--rows", default="100,1000,10000", help="With commas.")
    parser.add_argument("--strengths", default="1000", help="With commas.")
    parser.add_argument("--seeds", default="1", help="With commas.")
    parser.add_argument("--page", action="store_true", help="Run nothing: write the page.")
    parser.add_argument("--runs", type=Path, default=Path("runs/fisher-rows"))
    parser.add_argument("--results", type=Path, default=HERE / "results" / "fisher-rows")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "docs/results/fisher-rows.md")
    arguments = parser.parse_args()
    code = 0
    if not arguments.page:
        if arguments.data is None:
            parser.error("DATA is missing: the folder of the corpora")
        variants = [[{"name": PLAIN}]] + [
            [{"name": "ewc", "protect_base": True, "strength": float(strength), "samples": int(rows)}]
            for rows in arguments.rows.split(",")
            for strength in arguments.strengths.split(",")
        ]
        call = [sys.executable, "-m", "everlearn", "sweep", str(RECIPE), *places(RECIPE, arguments.data.resolve())]
        call += ["--methods", as_methods(variants), "--seeds", arguments.seeds, "--results", str(arguments.results)]
        call += ["--runs", str(arguments.runs), "--output", str(arguments.results / "index.html")]
        code = subprocess.run(call).returncode
    files.write_text(arguments.output, page(arguments.results))
    sys.exit(code)


if __name__ == "__main__":
    main()
