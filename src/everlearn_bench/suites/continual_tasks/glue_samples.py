"""Examples of the GLUE tasks, converted from GLUE's published files to the format of the other tasks."""

from __future__ import annotations

from pathlib import Path

from everlearn.files import digest, write_json
from everlearn.tasks import glue_reader
from everlearn.tasks.glue_formats import FORMATS, GlueTask
from everlearn.tasks.glue_reader import read_glue
from everlearn.tasks.labelled import LabelledSet
from everlearn_bench.suites import cache
from everlearn_bench.suites.continual_tasks import hub
from everlearn_bench.suites.continual_tasks.hub import SETS
from everlearn_bench.suites.continual_tasks.hub_samples import label_of
from everlearn_bench.suites.continual_tasks.tasks import CACHE, TASKS

FOLDER = "GLUE"
"""Folder with the folders of GLUE's tasks in a data folder."""


def from_glue(name: str, data: Path) -> tuple[Path, ...]:
    """Return the files with the examples of a task, train and test; empty if the folder lacks GLUE's files.

    The validation part is the test part; of MNLI the matched one.

    Raises:
        DataError: a file is missing or has other content.
    """
    if name not in FORMATS:
        return ()
    config = GlueTask(name=name, task=name, path=str(data / FOLDER))  # type: ignore[arg-type]
    if config.published is None:
        return ()

    def write(folder: Path) -> None:
        sets = read_glue(config)
        matched = sets.test.take((sets.part == 0).nonzero()[0])
        for part, examples in (("train", sets.train), ("test", matched)):
            write_json(folder / f"{part}.json", _rows(name, examples))

    facts = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in config.files()]
    code = [digest(Path(module)) for module in (__file__, glue_reader.__file__, hub.__file__)]
    folder = cache.derived(CACHE, f"glue-{name}", (), (*code, *facts), write)
    return folder / "train.json", folder / "test.json"


def _rows(name: str, examples: LabelledSet) -> list[dict[str, str]]:
    place, form = SETS[name], FORMATS[name]
    rows = []
    for number, (text, label) in enumerate(zip(examples.texts, examples.labels.tolist(), strict=True)):
        texts = (text,) if examples.pairs is None else (text, examples.pairs[number])
        cells = dict(zip(form.hub_texts or form.texts, texts, strict=True))
        word = form.labels[label] if form.labels else label
        rows.append({"sentence": place.text.format_map(cells), "label": label_of(TASKS[name], place, word)})
    return rows
