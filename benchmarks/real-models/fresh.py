"""Run what is recommended and plain training on a fresh stream, by `everlearn sweep`.

    python benchmarks/real-models/fresh.py MODEL DATA [--stream far] [--workers 14] [--work FOLDER]

The rules are in README.md. Finished cells are kept in the folder named after the stream and not run again. Several
workers share one accelerator, or the processor.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ORDERS = ("given", "linguistics,restaurants,how_to,vision")
FAR = ("given", "polish,russian,prolog,finnish")
RECOMMENDED = "mas:protect_base=true:normalise=mean:anchor=separate:follow=0.4:strength=0.0215:samples="


@dataclass(frozen=True)
class Part:
    """Cells that follow those of the parts before it: rows (methods and their learning rates) × orders × seeds."""

    rows: tuple[tuple[str, str], ...]
    orders: tuple[str, ...] = ORDERS
    seeds: tuple[int, ...] = (1,)


ALONE = [Part((("separate", "1.2e-4,3e-4"),), ("given",), (seed,)) for seed in (1, 2, 3)]
"""One model per domain, which has no order."""


def other_rates(orders: tuple[str, ...]) -> list[Part]:
    """Return the recommended method at the rates that it did not have from the start."""
    return [Part(((RECOMMENDED + "16", "1.2e-4,6e-4"),), (order,)) for order in orders]


STREAMS = {
    "fresh": [
        Part((("sequential", "2.5e-5,5e-5,1.2e-4"), (RECOMMENDED + "16", "3e-4")), (order,), (seed,))
        for seed in (1, 2, 3)
        for order in ORDERS
    ]
    + ALONE
    + other_rates(ORDERS),
    "length": [
        Part((("sequential", "2.5e-5,5e-5,1.2e-4,2.9e-4"), (RECOMMENDED + "50", "1.2e-4,2.9e-4,6e-4"))),
        Part((("sequential", "5e-5,1.2e-4,2.9e-4"), (RECOMMENDED + "50", "2.9e-4")), seeds=(2,)),
        Part((("wise_ft:alpha=0.5:anchor=base", "2.9e-4"), ("inc_lora:r=16:target_modules=all-linear", "1e-3"))),
        Part((("replay:source=general:share=0.05", "1.2e-4"),)),
    ],
    "far": [
        Part((("sequential", "5e-5,1.2e-4,3e-4"), (RECOMMENDED + "16", "3e-4")), (order,), (seed,))
        for seed in (1, 2, 3)
        for order in FAR
    ]
    + ALONE
    + other_rates(FAR),
}
TEXTS = {"far": "far_text.py"}
"""Scripts that write the text of a stream which is not part of DATA."""


def sweeps(stream: str) -> Iterator[list[str]]:
    """Return the arguments of each sweep, in the order of the runs."""
    for part in STREAMS[stream]:
        for method, rates in part.rows:
            yield [
                *(f"{stream}.yaml", "--quiet", "--equal-compute", "--methods", method),
                *("--set", f"train.learning_rate={rates}", "--orders", ";".join(part.orders)),
                *("--seeds", ",".join(map(str, part.seeds))),
            ]


def run(calls: Sequence[list[str]], work: Path, results: Path) -> None:
    """Run sweeps one after the other, each of which takes the cells that nobody is working on."""
    for call in calls:
        everlearn = [sys.executable, "-m", "everlearn", "sweep", *call, "--results", str(results.resolve())]
        subprocess.run(everlearn, cwd=work, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--stream", choices=STREAMS, default="fresh")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the cells")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    work = arguments.work or Path("runs") / arguments.stream
    work.mkdir(parents=True, exist_ok=True)
    # Relative places, so that cells do not depend on the machine.
    for name, place in (("model", arguments.model), ("data", arguments.data)):
        if not (work / name).exists():
            (work / name).symlink_to(place.resolve())
    shutil.copy(HERE / f"{arguments.stream}.yaml", work)
    if arguments.stream in TEXTS and not (work / arguments.stream).exists():
        subprocess.run([sys.executable, HERE / TEXTS[arguments.stream], work], check=True)
    calls, results = list(sweeps(arguments.stream)), arguments.results or HERE / arguments.stream
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(lambda _: run(calls, work, results), range(arguments.workers)))


if __name__ == "__main__":
    main()
