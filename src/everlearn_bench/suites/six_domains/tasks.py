"""The six end tasks of DAS (arXiv 2302.03241), rebuilt from the published files.

The released code merges the development part into the test part, then moves the first K training examples of each label
to the test part, K = int(N·(1−r)) // labels with N training examples and a share r that is kept. Restaurant is used
unchanged, without its 150 development examples. The twelve sizes (:data:`SIZES`) are checked whenever the tasks are
built.

Aspect tasks have both forms of their input: columns ``aspect`` and ``sentence`` for a pair, which every tokenizer can
join (RoBERTa: ``<s> aspect </s></s> sentence </s>``), and ``text``, the single string of the released code, ``aspect
</s>sentence``, which is meaningful only to a tokenizer whose separator is ``</s>``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlearn.errors import DataError
from everlearn_bench.suites.six_domains.cache import derived, find, read_lines, read_text, write_lines

Row = dict[str, str]
RAW = "six_end_tasks_raw"
PARTS = ("train", "test")
POLARITY = {"+": "positive", "-": "negative"}


@dataclass(frozen=True)
class TaskSource:
    """The source of an end task.

    Attributes:
        title: its usual name.
        train: published files of the training part, in the order that determines what is held out.
        test: published files of the test part.
        kept: r, the share of the training part that is kept; None leaves it unchanged.
        labels: number of labels in K.
    """

    title: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    kept: float | None
    labels: int


def _parts(name: str, parts: Sequence[str], suffix: str = "json") -> tuple[str, ...]:
    return tuple(f"{name}.{part}.{suffix}" for part in parts)


_CAMERAS = ("NikonCoolpix4300", "CanonPowerShotSD500", "CanonS100")
TASKS = {
    "restaurant": TaskSource(
        "SemEval-2014 restaurants", ("restaurant14.train.json",), ("restaurant14.test.json",), None, 3
    ),
    "acl": TaskSource(
        "ACL-ARC citation intent",
        ("citation_intent.train.jsonl",),
        _parts("citation_intent", ("test", "dev"), "jsonl"),
        0.9,
        6,
    ),
    "ai": TaskSource(
        "SciERC relations",
        ("sciie-relation-extraction.train.jsonl",),
        _parts("sciie-relation-extraction", ("test", "dev"), "jsonl"),
        0.7,
        7,
    ),
    "phone": TaskSource(
        "Nokia phones",
        _parts("Nokia6610", ("train", "dev", "test")),
        _parts("Nokia6600", ("train", "dev", "test")),
        0.7,
        2,
    ),
    "pubmed": TaskSource(
        "ChemProt",
        ("chemprot.train.jsonl",),
        _parts("chemprot", ("test", "dev"), "jsonl"),
        0.5,
        13,
    ),
    "camera": TaskSource(
        "digital cameras",
        _parts("CanonG3", ("train", "test", "dev")),
        tuple(f"{camera}.{part}.json" for part in ("train", "dev", "test") for camera in _CAMERAS),
        0.8,
        2,
    ),
}
"""By the domain whose knowledge they measure."""
SIZES = {
    "restaurant": (3452, 1120),
    "acl": (1520, 421),
    "ai": (2260, 2388),
    "phone": (239, 553),
    "pubmed": (2667, 7398),
    "camera": (230, 626),
}
"""Training and test examples, as the authors state them."""
CEILING = {"pubmed": 6546 / 7398}
"""Best accuracy that can be had where the hold-out took every training example of a label: six of ChemProt's 13."""


def task_file(name: str, part: str, data: Path) -> Path:
    """Return a rebuilt part of an end task: JSON lines with ``text`` (``aspect`` and ``sentence``) and ``label``.

    Args:
        name: a key of :data:`TASKS`.
        part: ``train`` or ``test``.
        data: the data folder.

    Raises:
        DataError: a published file is missing (the message names it), or is not the one that the authors used.
    """
    task = TASKS[name]
    instead = f"Put it there, or leave the end task '{name}' out (`end_tasks`)."
    files = {raw: find(data, f"{RAW}/{raw}", f"the end task '{name}'", instead) for raw in (*task.train, *task.test)}

    def write(folder: Path) -> None:
        train, test = ([row for raw in part for row in read_raw(files[raw])] for part in (task.train, task.test))
        if task.kept is not None:
            train, moved = hold_out(train, task.kept, task.labels)
            test += moved
        if (len(train), len(test)) != SIZES[name]:
            raise DataError(
                f"The end task '{name}' would have {len(train)} training and {len(test)} test examples instead of "
                f"{SIZES[name][0]} and {SIZES[name][1]}: the files in '{data / RAW}' are not those that were published."
            )
        for part, rows in zip(PARTS, (train, test), strict=True):
            write_lines(folder / f"{part}.jsonl", rows)

    return derived(f"tasks-{name}", list(files.values()), __file__, write) / f"{part}.jsonl"


def hold_out(train: Sequence[Row], kept: float, labels: int) -> tuple[list[Row], list[Row]]:
    """Split a training part: the rest, and the first K examples of each label, K = int(N·(1−r)) // labels.

    Args:
        train: N examples in their published order.
        kept: r.
        labels: number of labels of the task.
    """
    most, seen = int(len(train) * (1 - kept)) // labels, Counter[str]()
    stays: list[Row] = []
    moved: list[Row] = []
    for row in train:
        seen[row["label"]] += 1
        (moved if seen[row["label"]] <= most else stays).append(row)
    return stays, moved


def read_raw(path: Path) -> list[Row]:
    """Return the examples of one published file, in its order.

    Raises:
        DataError: it is damaged or has other content.
    """
    try:
        if ".jsonl" in path.name:
            return [{"text": row["text"], "label": row["label"]} for row in read_lines(path)]
        return [_aspect(row) for row in json.loads(read_text(path)).values()]
    except (KeyError, AttributeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not what was published: {error!r}.") from None


def _aspect(row: dict[str, Any]) -> Row:
    aspect, sentence, polarity = row["term"], row["sentence"], row["polarity"]
    label = POLARITY.get(polarity, polarity)
    return {"text": f"{aspect} </s>{sentence}", "aspect": aspect, "sentence": sentence, "label": label}
