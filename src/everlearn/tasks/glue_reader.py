"""Read GLUE's nine tasks (arXiv 1804.07461) from its published files, or from a data set with the columns of the hub.

Published files are tables with tabs between the cells. Quotes are plain characters. They have a header, except those of
CoLA. Test labels are not public, so the part that others tune on (``dev``, ``validation``) is tested. MNLI has two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from everlearn import wording
from everlearn.data import hub
from everlearn.data.corpus import Corpus
from everlearn.errors import DataError
from everlearn.tasks.glue_formats import FORMATS, GlueFormat, GlueTask
from everlearn.tasks.labelled import LabelledSet, at_most

HIDDEN = ("", "-", "-1", "-1.0")
"""What stands for a label that is not public, or on which annotators did not agree."""
_IDS = ("#1 ID", "#2 ID")
"""Columns of MRPC's corpus with the numbers of its sentences."""


class GlueSets(NamedTuple):
    """The examples of a task.

    Attributes:
        train: training part.
        test: test part.
        part: number of the test part of each test example, [n]: 0, or 1 for MNLI's mismatched part.
        notes: sentences on rows that were left out.
    """

    train: LabelledSet
    test: LabelledSet
    part: np.ndarray
    notes: list[str]


class Example(NamedTuple):
    """One or two texts, and the number or the value of their label."""

    texts: tuple[str, ...]
    label: float


def read_glue(task: GlueTask) -> GlueSets:
    """Read the training and the test part of a task.

    Raises:
        DataError: a file or a column is missing, a label is unknown, or a part has no example with a label.
    """
    notes: list[str] = []
    examples = list(_part(task, "train", notes))
    if FORMATS[task.task].labels and len({example.label for example in examples}) < 2:
        known = FORMATS[task.task].labels[int(examples[0].label)]
        raise DataError(f"End task '{task.name}': every training example has the label '{known}'; two are needed.")
    train = at_most(task.max_train, examples, task.name)
    tests = [
        at_most(task.max_test, list(_part(task, f"dev{ending}", notes)), f"{task.name} test{ending}")
        for ending in FORMATS[task.task].tests
    ]
    part = np.repeat(np.arange(len(tests)), [len(examples) for examples in tests])
    return GlueSets(
        _labelled(task, train), _labelled(task, [example for examples in tests for example in examples]), part, notes
    )


def _labelled(task: GlueTask, examples: list[Example]) -> LabelledSet:
    labels = FORMATS[task.task].labels
    return LabelledSet(
        texts=[example.texts[0] for example in examples],
        pairs=[example.texts[1] for example in examples] if len(FORMATS[task.task].texts) > 1 else None,
        labels=np.array([example.label for example in examples], np.int64 if labels else np.float64),
        label_names=list(labels),
    )


def _part(task: GlueTask, part: str, notes: list[str]) -> Iterator[Example]:
    form, labelled, unlabelled = FORMATS[task.task], 0, 0
    rows = _rows_of_files(task, part, notes) if task.published else _rows_of_hub(task, part)
    for where, texts, word in rows:
        if word.strip() in HIDDEN:
            unlabelled += 1
            continue
        labelled += 1
        yield Example(texts, _label(form, word.strip(), where))
    if not labelled:
        raise DataError(f"End task '{task.name}': the part '{part}' in '{task.path}' has no example with a label.")
    if unlabelled:
        notes.append(
            f"End task '{task.name}': {wording.count(unlabelled, 'row')} of the part '{part}' without a label "
            f"{'was' if unlabelled == 1 else 'were'} left out."
        )


def _label(form: GlueFormat, word: str, where: str) -> float:
    if word in form.labels:
        return form.labels.index(word)
    numbers = [str(number) for number in range(len(form.labels))]
    if word in numbers:
        return numbers.index(word)
    try:
        value = float(word) if not form.labels else np.nan
    except ValueError:
        value = np.nan
    if not 0 <= value <= 5:
        known = ", ".join(form.labels) or "values from 0 to 5"
        raise DataError(f"{where} has the label '{word}'; those of {form.folder} are {known}.")
    return value


# -- published files ----------------------------------------------------------------------------------------------


def _rows_of_files(task: GlueTask, part: str, notes: list[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    form, folder = FORMATS[task.task], task.published or Path()
    file, keep = folder / f"{part}.tsv", None
    if not file.is_file() and task.task == "mrpc":
        file, keep = folder / "msr_paraphrase_train.txt", _dev_ids(task, folder)
    if not file.is_file():
        raise DataError(f"End task '{task.name}': '{folder}' has no `{part}.tsv`, which GLUE's {form.folder} has.")
    cut, columns = 0, (*form.texts, form.label, *(() if keep is None else _IDS))
    for where, row in table(file, form.header):
        if row is None:
            cut += 1
            continue
        if missing := [column for column in columns if column not in row]:
            listed = ", ".join(f"'{column}'" for column in row)
            raise DataError(f"{where} has no column '{missing[0]}'; its columns are {listed}.")
        if keep is None or (tuple(row[column] for column in _IDS) in keep) == (part == "dev"):
            yield where, tuple(row[column] for column in form.texts), row[form.label]
    if cut:
        notes.append(
            f"End task '{task.name}': {wording.count(cut, 'row')} of {file.name} with another number of cells than its "
            f"header {'was' if cut == 1 else 'were'} left out."
        )


def _dev_ids(task: GlueTask, folder: Path) -> set[tuple[str, ...]]:
    """Return the pairs of sentences of MRPC's corpus that GLUE's split has for validation."""
    file = next((place for name in ("mrpc_dev_ids.tsv", "dev_ids.tsv") if (place := folder / name).is_file()), None)
    if file is None or not (folder / "msr_paraphrase_train.txt").is_file():
        raise DataError(
            f"End task '{task.name}': '{folder}' needs `train.tsv` and `dev.tsv`, or `msr_paraphrase_train.txt` and "
            "`mrpc_dev_ids.tsv`, from which GLUE makes them."
        )
    return {tuple(line.split()) for line in _lines(file)}


def table(file: Path, header: tuple[str, ...] = ()) -> Iterator[tuple[str, Mapping[str, str] | None]]:
    """Yield the rows of a table with their place; None for a row with another number of cells than the header."""
    names = header
    for number, line in enumerate(_lines(file), start=1):
        cells = tuple(line.split("\t"))
        if not names:
            names = cells
        else:
            yield f"{file}, line {number}", dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as lines:  # a text may contain a carriage return
            for line in lines:
                if line.strip("\r\n"):
                    yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}.") from None


# -- data sets ----------------------------------------------------------------------------------------------------


def _rows_of_hub(task: GlueTask, part: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    form = FORMATS[task.task]
    split = part.replace("dev", "validation")
    place = Path(task.path).expanduser()
    if place.is_dir() and not any(place.rglob("*.parquet")):
        raise DataError(
            f"End task '{task.name}': the folder '{task.path}' has neither GLUE's folder `{form.folder}` nor the "
            "Parquet files of a data set."
        )
    with tempfile.TemporaryDirectory() as own:
        corpus = Corpus(path=str(place) if place.is_dir() else task.path, subset=form.subset, split=split)
        instead = "set `path` to the folder with GLUE's published files"
        # `datasets` knows a local data set by the name of its folder, so what may change gets a cache of its own.
        rows = hub.load(corpus, instead, Path(own) if place.is_dir() else None)
        columns = (*(form.hub_texts or form.texts), "label")
        if missing := [column for column in columns if column not in rows.column_names]:
            listed = ", ".join(f"'{column}'" for column in rows.column_names)
            raise DataError(f"'{task.path}' ({form.subset}) has no column '{missing[0]}'; its columns are {listed}.")
        records = [tuple(row[column] for column in columns) for row in rows.select_columns(list(columns))]
    for number, (*texts, label) in enumerate(records, start=1):
        yield f"{task.path} ({form.subset}, {split}), row {number}", tuple(texts), str(label)
