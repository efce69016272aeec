"""The suite `glue` for recipes, grids and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import DataError, RecipeError
from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.base import register_suite
from everlearn_bench.suites.continual_tasks import streams
from everlearn_bench.suites.continual_tasks.files import copies, data_folder, published
from everlearn_bench.suites.continual_tasks.sources import BY_HAND, sources
from everlearn_bench.suites.continual_tasks.suite import ContinualTasks
from everlearn_bench.suites.continual_tasks.tasks import TASKS as ALL_TASKS
from everlearn_bench.suites.glue.claims import GLUE_CLAIMS
from everlearn_bench.suites.glue.systems import GROUPS, SYSTEMS
from everlearn_bench.suites.settings import PROGRAMS, STREAM, EndTaskSettings, Settings

FETCHED = ("sst-2", "mnli", "qqp", "rte")
TASKS = (*FETCHED, "subj", "trec")
"""The last two are no tasks of GLUE: easier ones, for small models."""
GENERAL = "general"
PARTS = {"path": "train.jsonl.gz", "validation": "validation.jsonl.gz"}
"""Of each folder of general text in the data folder, ``D0/<source>/``."""


@register_suite
class Glue(ContinualTasks):
    """Fine-tuning of a masked model on one task, with the text that it was pre-trained on.

    A stream of one task: what must be protected is pre-training, so the numbers of the table are the accuracy on the
    task and the drift of general text in bits per byte (masked-LM). The model answers through its vocabulary head
    (:class:`everlearn.model.objectives.Masked`), which is also used for general text.
    """

    name = "glue"
    orders = {number: (task,) for number, task in enumerate(TASKS, start=1)}  # noqa: RUF012 - see Suite
    tasks = {task: task for task in TASKS}  # noqa: RUF012 - see Suite
    systems = SYSTEMS
    groups = GROUPS
    paper_names = {"ft": PLAIN}  # noqa: RUF012 - see Suite
    published = None
    claims = GLUE_CLAIMS
    metrics = ("accuracy",)
    sources = sources(FETCHED)
    by_hand = (
        f"{BY_HAND} SUBJ and TREC are in github.com/harvardnlp/sent-conv-torch; they are read as "
        "`tasks/{subj,trec}/{train,dev,test}.jsonl.gz`, rows of `text` and `label`."
    )
    known: tuple[str, ...] = TASKS
    """Tasks with available examples."""
    lacks = (*PROGRAMS, *STREAM, "end_tasks.settings", "end_tasks.aspect", "end_tasks.answers")

    @property
    def first(self) -> tuple[str, ...]:
        """All available tasks: the base model is evaluated on each."""
        return self.known

    def on(self, settings: Settings, data: Path | None) -> Glue:
        """Return the suite with the tasks whose examples are in the folder."""
        suite, folder = type(self)(), data_folder(data)
        there = [task for task in TASKS if published(ALL_TASKS[task], folder) or copies(ALL_TASKS[task], folder)]
        suite.known = tuple(there) or TASKS
        return suite

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: Sequence[Mapping[str, Any]],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        """Return the recipe of a run on one task, with general text for evaluation and for methods that train on it."""
        self.check(settings)
        own = dict(settings.corpora or {})
        if unknown := sorted(set(own) - {GENERAL}):
            raise RecipeError(f"`corpora.{unknown[0]}` is set, but of `glue` only `corpora.{GENERAL}` can be your own.")
        chosen = EndTaskSettings(**settings.end_tasks.given(), answers="chosen")
        rest = settings.model_copy(update={"end_tasks": chosen, "corpora": None})
        tasks = streams.order_of(order, self.orders, self.name)
        run = streams.recipe(tasks, settings=rest, data=data, method=method, seed=seed, name=name, folder=folder)
        text = own.get(GENERAL)
        general = dict(text) if isinstance(text, Mapping) else {"path": text} if text else general_text(data)
        return run | {"objective": "masked", "general": {"name": GENERAL, **general}}


def general_text(data: Path | None) -> dict[str, str]:
    """Return general text that a base model should know, and a held-out part of it.

    Raises:
        DataError: the data folder has none.
    """
    place = data_folder(data) / "D0"
    folders = sorted(file.parent for file in place.glob(f"*/{PARTS['path']}"))
    if not folders:
        raise DataError(
            f"'{place}' has no general text (`<source>/{PARTS['path']}` and `{PARTS['validation']}`). Put some there, "
            f"or name your own in the settings (`corpora: {{{GENERAL}: {{path: …, validation: …}}}}`)."
        )
    return {key: str(place / "*" / file) for key, file in PARTS.items()}
