"""The tables of results/demo.md and README's picture, from the cells of the demo's runs in results/demo.

    python docs/demo_page.py                # writes both from the committed cells
    python docs/demo_page.py runs/demo      # takes the cells of a demo that was just run first

The figure is the one that opens a report; it is drawn in the light colours of a page, so that it can stand by itself.
"""

from __future__ import annotations

import functools
import io
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from everlearn import files
from everlearn.report import Comparison, compare, markdown
from everlearn.report.figures.registry import draw, standalone
from everlearn.report.figures.tradeoff import Tradeoff, TradeoffPoint
from everlearn_bench.demo.demo import METHODS

HERE = Path(__file__).resolve().parent
PAGE, PICTURE, RUNS = (HERE / "results" / name for name in ("demo.md", "demo.svg", "demo"))
CELLS = RUNS / "cells.zip"
BEGIN, END = "<!-- tables, by docs/demo_page.py -->\n", "<!-- end of tables -->\n"


def take(folder: Path) -> None:
    """Keep what a comparison of the runs reads, without places of this machine; the same runs make the same bytes."""
    cells: dict[str, bytes] = {}
    for name in METHODS:
        for file in (folder / name / "evaluation").glob("stage-*/*.safetensors"):
            cells[file.relative_to(folder).as_posix()] = file.read_bytes()
        for text in ("results.json", "recipe.yaml"):
            files.write_text(RUNS / name / text, anywhere((folder / name / text).read_text(encoding="utf-8")))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for place, content in sorted(cells.items()):
            archive.writestr(zipfile.ZipInfo(place), content)  # with the format's first day as its time
    files.write_bytes(CELLS, packed.getvalue())


@functools.cache
def unpacked() -> tempfile.TemporaryDirectory[str]:
    """Put the runs' files and cells together for as long as this process goes on."""
    folder = tempfile.TemporaryDirectory()
    shutil.copytree(RUNS, folder.name, dirs_exist_ok=True)
    with zipfile.ZipFile(CELLS) as archive:
        archive.extractall(folder.name)
    return folder


def anywhere(text: str) -> str:
    """Replace the places of the demo's text, base model and runs by what means the same on every machine."""
    text = re.sub(r"/[\w./-]*/suites/docs/base\b", "suite:docs/base", text)
    text = re.sub(r"/[\w./-]*/docs(?:-\w+)?/(\w+/\w+\.jsonl)", r"suite:docs/\1", text)
    return re.sub(r"(?m)^( *folder: )/.*/(\w+)$", r"\1runs/demo/\2", text)


def comparison() -> Comparison:
    """Compare the runs."""
    return compare([Path(unpacked().name) / name for name in METHODS])


def tables() -> str:
    """Return the output of `everlearn report --format markdown` for the runs."""
    return f"{BEGIN}{markdown(comparison()).strip()}\n{END}"


def with_tables(text: str) -> str:
    """Return the page with its tables replaced by new ones."""
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{tables()}{after}"


def picture() -> str:
    """Return the figure as a standalone file."""
    (plate,) = draw("tradeoff", Tradeoff(tradeoff_points(), "bits/byte", ranked=False))
    return standalone(plate)


def tradeoff_points() -> tuple[TradeoffPoint, ...]:
    """Return what each run learnt and forgot, the best final result first."""
    own = comparison()
    learnt, forgotten = (own.measure(own.lead, key) for key in ("learnt", "forgotten"))
    assert learnt is not None
    assert forgotten is not None
    return tuple(TradeoffPoint(own.labels[n], learnt.estimates[n], forgotten.estimates[n]) for n in own.ranking)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
