"""One comparison at equal compute: plain training, every penalty, replay, and what else keeps a model from forgetting.

    python benchmarks/frontier/run.py DATA --stream masked [--rows ewc,wise_ft] [--seeds 1]
    python benchmarks/frontier/run.py DATA --stream masked --chosen --seeds 1,2,3
    python benchmarks/frontier/run.py --page

DATA holds the corpora (docs/data-sources.md). It is `everlearn sweep --equal-compute` on the stream's recipe
(masked.yaml, causal.yaml) with the rows of rows.yaml, once for all ways that change nothing of the recipe and once for
each change. First all strengths with one seed, then with all seeds what
choice.py chooses of them (`--chosen`), and each time the pages in docs/results. A cell that is there is not made again,
and a command that is started twice shares the cells out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pages
from choice import FIRST, candidates, chosen
from rows import HERE, STREAMS, as_methods, entries, lines_of, places, rows_of, sets_of

from everlearn.methods.sequential import PLAIN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--stream", choices=STREAMS, default=STREAMS[0])
    parser.add_argument("--rows", help="Only these, with commas.")
    parser.add_argument("--only", help="Of these rows the ways whose names match this regular expression.")
    parser.add_argument("--chosen", action="store_true", help="Of each row the chosen strength alone.")
    parser.add_argument("--seeds", default="1", help="With commas.")
    parser.add_argument("--page", action="store_true", help="Run nothing: write the pages.")
    parser.add_argument("--list", action="store_true", help="Run nothing: list the cells.")
    parser.add_argument("--runs", type=Path, default=Path("runs/frontier"))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--recipes", type=Path, default=HERE, help="Folder of masked.yaml and causal.yaml.")
    parser.add_argument("--rows-file", type=Path, default=HERE / "rows.yaml")
    parser.add_argument("--pages", type=Path, default=HERE.parents[1] / "docs/results")
    arguments = parser.parse_args()
    recipe, place = arguments.recipes / f"{arguments.stream}.yaml", arguments.results / arguments.stream
    rows = rows_of(arguments.stream, arguments.rows_file)
    unknown = [name for name in (arguments.rows or "").split(",") if name and name not in rows]
    if unknown:
        parser.error(f"--rows: rows.yaml has no {', '.join(unknown)} for this stream, only {', '.join(rows)}")
    known = entries({row: rows[row] for row in (arguments.rows.split(",") if arguments.rows else rows)}, recipe)
    selected = {name: variant for each in known.values() for name, variant in each.items()}
    if arguments.chosen:
        everything = entries(rows, recipe)
        own = lines_of(place, FIRST)
        kept = {PLAIN, *chosen(known, own).values(), *([] if arguments.rows else candidates(arguments.results))}
        selected = {name: variant for each in everything.values() for name, variant in each.items() if name in kept}
    if arguments.only:
        selected = {name: variant for name, variant in selected.items() if re.search(arguments.only, name)}
    if arguments.list:
        print(*selected, sep="\n")
        return
    code = 0
    if not arguments.page:
        if arguments.data is None:
            parser.error("DATA is missing: the folder of the corpora")
        options = {"--seeds": arguments.seeds, "--results": place}
        options |= {"--runs": arguments.runs / arguments.stream, "--output": place / "index.html"}
        changes = places(recipe, arguments.data.resolve())
        words = [str(part) for pair in options.items() for part in pair]
        call = [sys.executable, "-m", "everlearn", "sweep", str(recipe), *changes, "--equal-compute", *words]
        for sets in dict.fromkeys(map(sets_of, selected.values())):
            methods = as_methods(variant for variant in selected.values() if sets_of(variant) == sets)
            set_too = [word for change in sets for word in ("--set", change)]
            code = max(code, subprocess.run([*call, "--methods", methods, *set_too]).returncode)
    pages.write(arguments.pages, arguments.recipes, arguments.results, arguments.rows_file)
    sys.exit(code)


if __name__ == "__main__":
    main()
