"""The forgetting budget on a real stream: what was allowed, predicted, measured on the probe, and lost on unseen text.

    EVERLEARN_SIX_DOMAINS=DATA taskset -c 0 python benchmarks/budget.py [--steps 120] [--seeds 1]
        [--budgets 0.05,0.2,0.02,0.1]

Reviews, then medical articles, on the decoder of `benchmarks/bases`, rows of 128 tokens, 16 a step: plain training, the
same under each budget, for general text and earlier domains alike, and `everlearn repair` of the plain run at the same
budgets (WiSE-FT's line from the base model, at the largest step whose general text is within). Scores are of held-out
text that neither the Fisher information nor the probes have read.

A cell is a seed and a way of training. Each is written to `docs/results/budget/STEPS-steps`, which `pack_cells.py`
packs, and not made again; a cell that was killed goes on from its last stage or checkpoint in `runs/budget`. The page
and its pictures follow from the cells alone and are written after each of them. At 120 steps on one core: plain about
7 minutes, a budget about 15, a repair about 2; a seed with four budgets about 75.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from everlearn import files
from everlearn.comparison.runs import read_run
from everlearn.comparison.training_log import starts
from everlearn.config.recipe import parse
from everlearn.diagnostics.checkpoint_distance import Pair
from everlearn.diagnostics.repair import search_repair
from everlearn.grid.archive import find_cell
from everlearn.learner import ContinualLearner
from everlearn.report.figures.budget import DriftLook, looks_of, predicted_and_measured
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate
from everlearn.report.run_results import RunResults

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/results/budget.md"
SUITE = "suite:six-domains"
DOMAINS = ("restaurant", "pubmed")
LIGHT = {"series-0": "#007c89", "series-1": "#c96a10", "series-2": "#7a4fb5", "faint": "#9aa0a6", "grid": "#e3e5e8"}
Cell = dict[str, Any]
MADE_OF = ("steps", "blocks", "samples", "rank", "probe", "checks")
"""Options that cells of one page share."""


def corpus(name: str) -> dict[str, str]:
    """Of the suite, with its own held-out text."""
    return {"path": f"{SUITE}/{name}/train.jsonl", "validation": f"{SUITE}/{name}/validation.jsonl"}


def trained(name: str, method: Any, seed: int, arguments: argparse.Namespace) -> ContinualLearner:
    """A run, to its end."""
    folder = arguments.runs / f"{name}-{arguments.steps}-{seed}"
    recipe = {
        "model": str(HERE / "bases/english-decoder"),
        "domains": [{"name": domain, **corpus(domain)} for domain in DOMAINS],
        "general": corpus("general"),
        "method": method,
        "data": {"block_size": 128},
        "train": {
            "per_device_train_batch_size": 16,
            "max_steps": arguments.steps,
            "learning_rate": 5e-4,
            "bf16": True,
            "logging_steps": 10,
            "save_steps": 40,
        },
        "evaluation": {"blocks": arguments.blocks, "samples": 0},
        "run": {"name": name, "folder": str(folder), "seed": seed},
    }
    learner = ContinualLearner(parse(recipe))
    learner.resume() if learner.folder.recipe_file.is_file() else learner.run()
    return learner


def of_run(learner: ContinualLearner) -> Cell:
    """What the page needs of a run."""
    folder = learner.folder.path
    results, run = RunResults.load(folder), read_run(folder)
    summary = results.summary["bits_per_byte"]
    return {
        "gained": summary.gained["mean"].value,
        "learnt": {name: summary.learnt[name].value for name in DOMAINS},
        "general": _interval(summary.general_drift["general"]),
        "earlier": _interval(summary.forgotten[DOMAINS[0]]),
        "looks": {group: [asdict(look) for look in looks] for group, looks in looks_of(run).items()},
        "starts": list(starts(run)),
        "notes": [note for note in results.notes if note.startswith("Forgetting budget")],
    }


def of_repair(learner: ContinualLearner, budget: float, blocks: int) -> Cell:
    """What is left of the plain run, of which nothing changes, at the step that the budget allows."""
    repair = search_repair(learner, Pair(0, len(DOMAINS)), budget, blocks=blocks)
    left = {name: _known(repair.remains[name].left.value) for name in DOMAINS}
    learnt = RunResults.load(learner.folder.path).summary["bits_per_byte"].learnt[DOMAINS[0]].value
    return {
        "step": repair.step,
        "gained": fmean(left.values()),
        "general": _interval(repair.lost),
        "earlier": [_known(learnt) - left[DOMAINS[0]]],
    }


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def cell(variant: str, seed: int, arguments: argparse.Namespace) -> Cell:
    """Train, or take what was trained, and look at it."""
    if variant.startswith("budget"):
        own = {key: getattr(arguments, key) for key in ("samples", "rank", "probe", "checks")}
        method = {"name": "budget", "general": _budget(variant), "earlier": _budget(variant), **own}
        return of_run(trained(variant.replace(" ", "-"), method, seed, arguments))
    plain = trained("plain", "sequential", seed, arguments)
    return of_repair(plain, _budget(variant), arguments.blocks) if variant.startswith("repair") else of_run(plain)


def kept(place: Path, variant: str, seed: int, arguments: argparse.Namespace) -> Cell:
    """A cell that is there, or now is.

    Raises:
        SystemExit: it was made with other options.
    """
    options = {key: getattr(arguments, key) for key in MADE_OF}
    if find_cell(place.parent, place.stem) is None:
        files.write_json(place, {"made_of": options, **cell(variant, seed, arguments)})
    there = find_cell(place.parent, place.stem)
    assert there is not None
    content: Cell = there.value
    for key, value in options.items():
        if (used := content["made_of"][key]) != value:
            raise SystemExit(
                f"{there.where} was made with --{key} {used}; --{key} is {value} now. Give the same, or other folders "
                "(--page and --runs)."
            )
    return content


def _budget(variant: str) -> float:
    """Of "budget 0.02", bits per byte; plain training has all."""
    return float(variant.partition(" ")[2] or "inf")


def _interval(estimate: Any) -> list[float]:
    return [estimate.value, estimate.low, estimate.high]


# -- the page -------------------------------------------------------------------------------------------------


def mean(cells: list[Cell], *path: str | int) -> float:
    """Of a number over the seeds."""

    def one(cell: Any) -> float:
        for key in path:
            cell = cell[key]
        return float(cell)

    return fmean(map(one, cells))


def lost(cells: list[Cell], group: str) -> str:
    """What unseen text lost: of one seed with its own interval, of several with the lowest and the highest."""
    values = [cell[group][0] for cell in cells]
    ends = [min(values), max(values)] if len(cells) > 1 else cells[0][group][1:]
    return f"{fmean(values):.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def rows(cells_by_variant: Mapping[str, list[Cell]]) -> Iterator[str]:
    """Of the table: plain, then each way by budget."""
    plain = mean(cells_by_variant["plain"], "gained")
    for name, cells in cells_by_variant.items():
        columns = [name, f"{mean(cells, 'gained'):.3f}", f"{mean(cells, 'gained') / plain:.0%}"]
        for group in ("general", "earlier"):
            looks = cells[0].get("looks", {}).get(group)
            path = ("looks", group, -1)
            columns += (
                [f"{mean(cells, *path, key):.3f}" for key in ("predicted", "measured")] if looks else ["–", "–"]
            ) + [lost(cells, group)]
        yield f"| {' | '.join(columns)} |"


def predictions(cells_by_variant: Mapping[str, list[Cell]]) -> Iterator[str]:
    """How far predictions are from what was measured, over the looks whose measurement is no noise."""
    for name, cells in cells_by_variant.items():
        for group in ("general", "earlier"):
            looks = [DriftLook(**look) for cell in cells for look in cell.get("looks", {}).get(group, [])]
            sure = [look for look in looks if look.low > 0 and look.predicted > 0]
            if len(sure) > 2:
                ratios = [look.predicted / look.measured for look in sure]
                together = np.corrcoef([look.predicted for look in sure], [look.measured for look in sure])[0, 1]
                yield (
                    f"| {name} | {group} | {len(sure)} | {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} "
                    f"| {together:.2f} |"
                )


def page(cells_by_variant: Mapping[str, list[Cell]], arguments: argparse.Namespace) -> str:
    """The results so far."""
    seeds = len(cells_by_variant["plain"])
    counted = "one seed" if seeds == 1 else f"{seeds} seeds"
    ends = "its interval" if seeds == 1 else "the lowest and highest seed"
    notes = [f"* {name}: {note}" for name, cells in cells_by_variant.items() for note in cells[0].get("notes", [])]
    options = " ".join(f"--{key} {getattr(arguments, key)}" for key in (*MADE_OF, "seeds", "budgets"))
    return f"""# A forgetting budget

Yelp reviews, then medical articles, {arguments.steps} steps each of 16 rows of 128 tokens on
`benchmarks/bases/english-decoder` (5.6 M parameters), learning rate 5e-4, bf16, {counted}.
Written by `python benchmarks/budget.py {options}`. All numbers are bits per byte
at the end of the stream. *gained* is the mean over both domains against the base model, *p* what ½ Δᵀ F Δ predicts with
{arguments.rank} directions of F, without the correction, *probe* what was measured on the rows that steer the budget,
*unseen text* {arguments.blocks} held-out rows that neither has read (and {ends}). The budget, the same for both
groups, limits the probe's columns. *repair* is `everlearn repair` of the plain run: the largest step from the base
model along its whole update that loses no more of general text, which is WiSE-FT's line. It limits general text alone.

| | gained | of plain | general: p | probe | unseen text | earlier: p | probe | unseen text |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(rows(cells_by_variant))}

![Gained against lost](budget-frontier.svg)

Gain against the loss of unseen general text: budgets (first colour), and steps of the plain run's repair up to its
complete update (second colour).

## Predicted and measured

Over the looks whose measured drift is above 0 with its 95 % interval: p / m, and how p and m are correlated.

| | text | looks | median of p / m | from, to | correlation |
|---|---|---:|---:|---:|---:|
{chr(10).join(predictions(cells_by_variant))}

![Predicted and measured drift along training](budget.svg)

Drift under each budget along the steps of the first seed: predicted by ½ Δᵀ F Δ (orange), and measured on the probe
(blue, 95 % interval).

Notes in the results of the first seed:

{chr(10).join(notes)}
"""


def frontier(cells_by_variant: Mapping[str, list[Cell]]) -> Iterator[Plate]:
    """Gained against lost, a line a way."""
    lines = []
    for series, kind in enumerate(("budget", "repair")):
        ends = ["plain"] if kind == "repair" else []
        points = sorted(
            (mean(cells_by_variant[name], "general", 0), mean(cells_by_variant[name], "gained"))
            for name in [*(each for each in cells_by_variant if each.startswith(kind)), *ends]
        )
        if points:
            lines.append(Curve(series, *map(list, zip(*points, strict=True))))
    caption = "Gained, the mean over both domains, against general text lost, bits per byte"
    yield from curves(Curves("gained", lines, caption, x_label="general text lost, bits per byte"))


def along(cells_by_variant: Mapping[str, list[Cell]]) -> Iterator[Plate]:
    """Predicted and measured, of each budget."""
    for name, cells in cells_by_variant.items():
        looks = {group: [DriftLook(**look) for look in looks] for group, looks in cells[0].get("looks", {}).items()}
        yield from predicted_and_measured(looks, name, cells[0].get("starts", []))


def picture(plates: Iterator[Plate]) -> str:
    """Plates one below the other, for a light page."""
    drawn, down = [], 0.0
    for plate in plates:
        svg = re.sub(r"var\(--([\w-]+)\)", lambda match: LIGHT.get(match[1], "#9aa0a6"), str(plate.svg))
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        width, height = (float(each) for each in size.groups())  # type: ignore[union-attr]
        place = f'<svg x="0" y="{down + 18:g}" width="{width}" height="{height}" '
        title = f'<text x="8" y="{down + 13:g}" font-size="12">{plate.caption.split(":")[0]}</text>'
        drawn.append(title + svg.replace("currentColor", "#1d1f22").replace("<svg ", place, 1))
        down += height + 26
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="460" height="{down:g}" font-family="sans-serif">'
    return f'{head}<rect width="460" height="{down:g}" fill="#fff"/>{"".join(drawn)}</svg>\n'


def main() -> None:
    """Make what is missing, a cell after the other; write the page after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--budgets", default="0.05,0.2,0.02,0.1")
    parser.add_argument("--seeds", default="1", help="with commas")
    parser.add_argument("--runs", type=Path, default=Path("runs/budget"))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--probe", type=int, default=96)
    parser.add_argument("--checks", type=int, default=12)
    arguments = parser.parse_args()
    budgets = [f"{float(each):g}" for each in arguments.budgets.split(",")]
    variants = ["plain", *(f"{variant} {budget}" for variant in ("budget", "repair") for budget in budgets)]
    folder, cells_by_variant = arguments.page.with_suffix("") / f"{arguments.steps}-steps", dict[str, list[Cell]]()
    for seed, variant in itertools.product(map(int, arguments.seeds.split(",")), variants):
        place = folder / f"{variant.replace(' ', '-')}-seed-{seed}.json"
        cells_by_variant.setdefault(variant, []).append(kept(place, variant, seed, arguments))
        there = {
            each: cells_by_variant[each]
            for each in sorted(cells_by_variant, key=lambda variant: (variant[0] == "r", -_budget(variant)))
        }
        files.write_text(arguments.page, page(there, arguments))
        files.write_text(arguments.page.with_suffix(".svg"), picture(along(there)))
        files.write_text(arguments.page.with_name(f"{arguments.page.stem}-frontier.svg"), picture(frontier(there)))


if __name__ == "__main__":
    main()
