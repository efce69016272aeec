"""The examples of a task as files of prompts and answers, built from the data folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from everlearn.errors import DataError
from everlearn.files import digest
from everlearn_bench.suites import cache
from everlearn_bench.suites.continual_tasks import prompts
from everlearn_bench.suites.continual_tasks.glue_samples import from_glue
from everlearn_bench.suites.continual_tasks.hub import SETS
from everlearn_bench.suites.continual_tasks.hub_samples import ON_HUB, WORD, Row, drawn
from everlearn_bench.suites.continual_tasks.prompts import prompt
from everlearn_bench.suites.continual_tasks.tasks import CACHE, GLUE_ONLY, TASKS, TextTask

VARIABLE = "EVERLEARN_CONTINUAL_TASKS"
PARTS = ("train", "dev", "test")
HELD_OUT = 0.1
"""Share of a published training file that is held out for development."""
NO_LABEL = "-"
"""What 131 test examples of MNLI have instead of a label: annotators did not agree. They are left out."""
HOW = (
    f"Set {VARIABLE}, or `--data` of `everlearn bench`, to a folder with the published files "
    "(`CL_Benchmark/<group>/<data set>/{train,test}.json` of the repository cmnfriend/O-LoRA) or with copies of them "
    "(`tasks/long15_<task>/{train,dev,test}.jsonl.gz`, rows of `text` and `label`), or with GLUE's published files "
    "(`GLUE/CoLA`, …); `--data fetch` gets the published "
    f"ones, `--data {WORD}` draws others from the sets of the Hugging Face hub. docs/continual-fine-tuning.md has the "
    "list."
)


def data_folder(path: Path | str | None = None) -> Path:
    """Return the folder with the data; by default that of the environment variable, or the fetched data.

    The word `hub` is returned as it is: it stands for the datasets of the Hugging Face hub.

    Raises:
        DataError: there is none.
    """
    named = path if path is not None else os.environ.get(VARIABLE)
    if named is not None and str(named) == WORD:
        return ON_HUB
    return cache.data_folder(CACHE, VARIABLE, HOW, path)


def published(task: TextTask, folder: Path) -> tuple[Path, ...]:
    """Return the published files, train and test; empty if one is missing."""
    place = folder / "CL_Benchmark" / task.group / task.dataset
    files = tuple(place / f"{part}.json" for part in ("train", "test"))
    return files if all(file.is_file() for file in files) else ()


def copies(task: TextTask, folder: Path) -> tuple[Path, ...]:
    """Return the re-split copy, train, dev and test; empty if a part is missing."""
    files = []
    for part in PARTS:
        places = [folder / "tasks" / task.copy / f"{part}.jsonl{ending}" for ending in (".gz", "")]
        files += [place for place in places if place.is_file()][:1]
    return tuple(files) if len(files) == len(PARTS) else ()


def available(name: str, folder: Path) -> bool:
    """Return whether the folder has the examples of a task, in any form but the hub's."""
    task = TASKS[name]
    return bool(published(task, folder) or copies(task, folder) or from_glue(name, folder))


def proxy(name: str, data: Path) -> str:
    """Describe the source of a task's examples if they are not the published ones; empty if they are."""
    task = TASKS[name]
    if data != ON_HUB and published(task, data):
        return ""
    if data != ON_HUB and copies(task, data):
        return task.proxy and f"{task.proxy}; not the examples of the published numbers"
    if name in GLUE_ONLY:
        return ""
    if data != ON_HUB and from_glue(name, data):
        return "GLUE's published files, of which the published examples are a sample"
    return f"drawn from the hub's set {SETS[name].name}, not the published examples" if name in SETS else ""


def _sources(name: str, data: Path) -> tuple[Path, ...]:
    task = TASKS[name]
    on_disk = data != ON_HUB and (published(task, data) or copies(task, data) or from_glue(name, data))
    return on_disk or drawn(name, data)


def task_file(name: str, part: str, data: Path, names: bool = True) -> Path:
    """Return the file with prompts and answers of a task, in a fixed random order.

    It holds JSON lines with ``prompt``, ``answer``, and both as one ``text`` for masked models.

    Args:
        name: a key of :data:`~everlearn_bench.suites.continual_tasks.tasks.TASKS`.
        part: ``train``, ``dev`` or ``test``. Evaluations between domains use ``dev``, held out of the training part:
            the ``dev.json`` of the published folder is its ``test.json``.
        data: the data folder, or the value that stands for the hub.
        names: whether prompts name task and dataset.

    Raises:
        DataError: a file is missing or has other content.
    """
    task = TASKS[name]
    files = _sources(name, data)
    if not files:
        raise DataError(
            f"The task '{name}' needs its examples, and '{data}' has none of them (no `tasks/{task.copy}`). {HOW}"
        )

    def write(folder: Path) -> None:
        for each, rows in parted(name, files).items():
            examples = [(prompt(task, row["text"], names), row["label"]) for row in rows]
            lines = ({"prompt": read, "answer": answer, "text": f"{read} {answer}"} for read, answer in examples)
            cache.write_lines(folder / f"{each}.jsonl", lines)

    code = [digest(Path(module)) for module in (__file__, prompts.__file__)]
    facts = json.dumps([task.group, task.dataset, task.labels, task.train, task.test, task.opening, names])
    return cache.derived(CACHE, name, files, (*code, facts), write) / f"{part}.jsonl"


def parted(name: str, files: tuple[Path, ...]) -> dict[str, list[Row]]:
    """Return the examples of each part, ordered by their hashes; no text is in two parts.

    A part has at most as many examples as the published file.

    Args:
        name: name of the task.
        files: the two published files, or the three of a copy.

    Raises:
        DataError: a file has other content.
    """
    task = TASKS[name]
    read = [list(_rows(task, file)) for file in files]
    train, test = _drawn(read[0], task.train), _drawn(read[-1], task.test)
    if len(read) == len(PARTS):
        dev = _drawn(read[1], len(read[1]))
    else:
        dev = train[: max(1, round(HELD_OUT * len(train)))]
        train = train[len(dev) :]
    dev = _without(dev, test)
    return {"train": _without(train, [*dev, *test]), "dev": dev, "test": test}


def _drawn(rows: list[Row], most: int) -> list[Row]:
    """Return at most `most` rows, in an order that depends on the examples only, so a smaller sample is a prefix."""
    return sorted(rows, key=lambda row: hashlib.blake2b(f"{row['text']}\0{row['label']}".encode()).digest())[:most]


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return the rows whose text is not among the others, whatever its label there."""
    texts = {row["text"] for row in others}
    return [row for row in rows if row["text"] not in texts]


def _rows(task: TextTask, file: Path) -> Iterable[Row]:
    try:
        if file.name.endswith(".json"):
            records: Iterable[Mapping[str, Any]] = json.loads(cache.read_text(file))
            yield from _kept(task, file, ((row["sentence"], row["label"]) for row in records))
        else:
            rows = ((str(row["text"]), row["label"]) for row in cache.read_lines(file))
            yield from _kept(
                task, file, ((text if _opened(text) else task.opening + text, label) for text, label in rows)
            )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise DataError(f"{file} holds no examples of '{task.dataset}': {error!r}.") from None


def _opened(text: str) -> bool:
    return text.startswith(("Title:", "Text:"))


def _kept(task: TextTask, file: Path, examples: Iterable[tuple[str, str]]) -> Iterable[Row]:
    for text, word in examples:
        label = task.label(word)
        if label is not None:
            yield {"text": text, "label": label}
        elif word.strip() != NO_LABEL:
            raise DataError(f"{file} has the label '{word}', but those of {task.dataset} are {', '.join(task.labels)}.")
