"""Examples sampled from the datasets of the tasks on the Hugging Face hub, as files in the published form."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from everlearn.data import hub as access
from everlearn.data.corpus import Corpus
from everlearn.errors import DataError
from everlearn.files import digest, write_json
from everlearn.seeding import seed_for
from everlearn_bench.suites import cache
from everlearn_bench.suites.continual_tasks import hub
from everlearn_bench.suites.continual_tasks.hub import SETS, HubSet
from everlearn_bench.suites.continual_tasks.tasks import CACHE, TASKS, TextTask

WORD = "hub"
"""What stands for the hub where a data folder is named, and the folder with copies of its sets in a data folder."""
ON_HUB = Path(WORD)
SEED = 0
"""Of every draw: the same examples for every method and seed of training."""
INSTEAD = (
    f"copy the set into the data folder as `{WORD}/<owner>/<name>` (`hf download --repo-type dataset`), "
    "or take the published files (`--data fetch`)"
)
Row = dict[str, str]


def drawn(name: str, data: Path, seed: int = SEED) -> tuple[Path, ...]:
    """Return the files with the examples of a task, train and test, sampled once on demand.

    They have as many examples as the published files.

    Args:
        name: name of the task.
        data: :data:`ON_HUB`, or a data folder with copies of the datasets, ``hub/<owner>/<name>``.
        seed: seed of the sample.

    Returns:
        Two paths; empty if the task has no dataset, or the folder no copy of it.

    Raises:
        DataError: the dataset is not available, or has other content.
    """
    if name not in SETS:
        return ()
    task, place = TASKS[name], SETS[name]
    path, facts = place.path, ["hub"]
    if data != ON_HUB:
        copy = data / WORD / place.path
        if not copy.is_dir():
            return ()
        path = str(copy)
        # Size and time identify a file, since datasets of a gigabyte would take long to digest each time.
        stats = ((file, file.stat()) for file in sorted(copy.rglob("*")) if file.is_file())
        facts = [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]

    def write(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            for part, split, most in (("train", "train", task.train), ("test", place.test, task.test)):
                corpus = Corpus(path=path, subset=place.subset, split=split)
                rows = access.load(corpus, INSTEAD, None if data == ON_HUB else Path(own))
                sample = _draw(place, task, split, rows, np.random.default_rng(seed_for(name, part, seed)))
                write_json(folder / f"{part}.json", list(itertools.islice(sample, most)))

    code = [digest(Path(module)) for module in (__file__, hub.__file__)]
    mark = json.dumps([task.labels, task.train, task.test, seed, *facts])
    folder = cache.derived(CACHE, f"{WORD}-{name}", (), (*code, mark), write)
    return folder / "train.json", folder / "test.json"


def _draw(place: HubSet, task: TextTask, split: str, rows: Any, random: np.random.Generator) -> Iterator[Row]:
    """Yield the examples of a part that have a label, in random order."""
    names = getattr(rows.features.get(place.label), "names", None)
    none = True
    for index in random.permutation(len(rows)):
        row = {key: "" if value is None else value for key, value in rows[int(index)].items()}
        try:
            label, text = _label(task, place, row[place.label], names), place.text.format_map(row)
        except KeyError as error:
            fields = ", ".join(f"'{key}'" for key in row)
            raise DataError(f"The hub's set {place.name} has no field {error}; its fields are {fields}.") from None
        if label is not None:
            none = False
            yield {"sentence": text, "label": label}
    if none:
        raise DataError(f"The part '{split}' of the hub's set {place.name} has no example with a label.")


def _label(task: TextTask, place: HubSet, value: Any, names: list[str] | None) -> str | None:
    """Return a label as published, by its name in the dataset; None if the dataset hides it."""
    if value == "" or ((names or place.step) and value == -1):
        return None
    return label_of(task, place, names[value] if names else value)


def label_of(task: TextTask, place: HubSet, value: Any) -> str:
    """Return the published label for a label name of the dataset, or for a numeric value.

    Raises:
        DataError: there is no such label.
    """
    word = str(value) if place.step is None else f"{round(float(value) / place.step) * place.step:.1f}"
    known = {_plain(label): label for label in task.labels}
    known |= {_plain(hub_label): label for hub_label, label in place.labels.items()}
    if _plain(word) not in known:
        raise DataError(
            f"The hub's set {place.name} has the label '{word}', but those of {task.dataset} are "
            f"{', '.join(task.labels)}."
        )
    return known[_plain(word)]


def _plain(word: str) -> str:
    """Reduce a name to lower-case letters and digits: datasets write `WrittenWork`, published files `Written Work`."""
    return "".join(letter for letter in word.casefold() if letter.isalnum())
