"""Write the page of what was found, docs/results/endurance.md, from the records beside it: python -m endurance.page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everlearn import files

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = RESULTS / "endurance.md"
BEGINNING = """# Endurance

This page reports commands that are killed or refused by the system, wrong inputs, and streams of many domains.
Every case is generated from its number, so it can be repeated. Every number below is read from the records beside this
page, `endurance-*.json`. The aim is 1,000 different faults, 100,000 inputs, and 200 domains
with every method that has a memory; the records have {}, {} and {}.
"""
FAULTS = """## Faults

`make faults` runs two domains with one of {methods} methods on tiny models, once undisturbed and once with a fault,
after which the command is repeated. Every tensor of every stage and of the memories, every score and every note must
be equal, bit for bit, and no partial file may remain. Left out, because the tiny models do not support them: {refused}.
"""
FUZZ = """## Fuzz

`make fuzz`: a randomly changed input must either work or end with one sentence that explains the error.
"""
SOAK = """## Soak

`make soak COUNT={stages}`: {stages} domains one after another under each of {methods} methods that keep something. What
a stage keeps must be no more than its method declares, the number of open files must not grow, and the process by no
more than 32 MB beside what is declared. Processor seconds of a stage are medians of an early and of the last quarter.
"""


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Rows as Markdown; numbers with commas."""
    text = [tuple(f"{each:,}" if isinstance(each, int) else str(each) for each in row) for row in rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in (head, ("---",) * len(head), *text))


def failures(runs: list[dict[str, Any]]) -> str:
    """What failed, as a list."""
    lines = [f"* {line[:160]}\n" for run in runs for line in run["failed"]]
    return "None failed.\n" if not lines else f"Failed: {len(lines)}.\n\n" + "".join(lines)


def repeated(runs: list[dict[str, Any]]) -> str:
    """Say which cases are in two records: a record has every number from its seed on, but for refused methods."""
    text, seen, failed = "", set[int](), set[int]()
    for run in runs:
        numbers, wrong = set(range(run["seed"], run["seed"] + run["total"])), set(map(_number, run["failed"]))
        if twice := numbers & seen:
            passed = ", ".join(map(str, sorted(failed & twice - wrong)))
            text += f"\nCases {min(twice)} to {max(twice)} are counted twice: they were made again later"
            text += f", and those that had failed ({passed}) passed.\n" if passed else ".\n"
        seen, failed = seen | numbers, failed - numbers | wrong
    return text


def _number(line: str) -> int:
    """Return the number of the case in a line like "killed 12: what happened"."""
    return int(line.partition(":")[0].rpartition(" ")[2])


def counts(runs: list[dict[str, Any]]) -> str:
    """How many cases of each kind, and what failed."""
    kinds: Counter[str] = Counter()
    for run in runs:
        kinds.update(run["cases"])
    rows = [*sorted(kinds.items()), ("together", kinds.total())]
    seconds, begins = sum(run["seconds"] for run in runs), " and ".join(f"{run['seed']:,}" for run in runs)
    shared = f"{runs[0]['environment']['processors']} processors shared with much other work"
    return (
        f"{table(('kind', 'cases'), rows)}\nFrom case {begins} on, in {seconds:,} seconds, {shared}. {failures(runs)}"
    )


def soaked(runs: list[dict[str, Any]]) -> list[str]:
    """The section on long streams, of the records with as many domains as the last one."""
    last = runs[-1]
    runs = [run for run in runs if run["stages"] == last["stages"]]
    methods = {name: each for run in runs for name, each in run["methods"].items()}
    head = ("method", "bytes kept after 1 stage", "after all", "declared", "process grew by", "seconds early", "late")
    rows = [
        (f"`{name}`", *each["kept"], each["declared"][1], each["grown"], *(f"{s:.3f}" for s in each["seconds"]))
        for name, each in sorted(methods.items())
    ]
    slower = [name for name, each in sorted(methods.items()) if each["seconds"][-1] > 2 * each["seconds"][0]]
    refused = sorted({name for run in runs for name in run["refused by the tiny models"]})
    failed = [line for run in runs for line in run["failed"] if line.split(": ")[1] not in methods]
    few = [
        f"* `{name}` learnt {each['stages']} domains, and no more: {each['ended']}\n"
        for name, each in sorted(methods.items())
        if each["stages"] < last["stages"]
    ]
    return [
        SOAK.format(stages=last["stages"], methods=len(methods)),
        table(head, rows),
        failures([{"failed": failed}])
        + (f"\nLate domains take more than twice as long as early ones: {named(slower)}.\n" if slower else "")
        + ("\n" + "".join(few) if few else "")
        + (f"\nRefused by the tiny models: {named(refused)}.\n" if refused else "")
        + (f"\nNot reached in the time: {named(last['not reached'])}.\n" if last["not reached"] else ""),
    ]


def named(names: Iterable[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """The text of the page; what has no record is left out."""
    found = {path.stem.partition("-")[2]: files.read_json(path) for path in sorted(RESULTS.glob("endurance-*.json"))}
    methods = {name for run in found["faults"] for name in run["methods"]}
    refused = sorted({name for run in found["faults"] for name in run["refused by the tiny models"]})
    cases = (sum(sum(run["cases"].values()) for run in found[kind]) for kind in ("faults", "fuzz"))
    stages = found["soak"][-1]["stages"] if "soak" in found else 0
    return "\n".join(
        [
            BEGINNING.format(*(f"{number:,}" for number in (*cases, stages))),
            FAULTS.format(methods=len(methods), refused=named(refused) or "none"),
            counts(found["faults"]) + repeated(found["faults"]),
            FUZZ,
            counts(found["fuzz"]),
            *(soaked(found["soak"]) if "soak" in found else []),
        ]
    )


if __name__ == "__main__":
    files.write_text(PAGE, page())
