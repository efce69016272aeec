"""Define ``results.json``, the measurements of a run, as reports and comparisons read it.

Signs are the same for every metric: positive forgetting is a loss, positive learning and transfer are gains. The
quantities are defined in :mod:`everlearn.evaluation.quantities`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from everlearn import files
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.score_table import Number, ScoreTable
from everlearn.version import __version__

FILE = "results.json"


class Part(BaseModel):
    """Base class of the parts of the results; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


Estimates = dict[str, Estimate]
"""Column (and ``mean`` over them) → estimate; a column without an estimate is absent."""


class MethodUsed(Part):
    """A method with which the run was trained."""

    name: str
    """Name in recipes."""
    title: str
    """Name as in its paper."""
    paper: str = ""
    """URL of the paper; empty for plain training."""
    options: dict[str, Any] = {}
    """All options, with defaults."""
    as_saved: bool = True
    """Whether a stage's folder alone holds the model that was scored; false if adapters, gates or prompts are
    needed."""


class Summary(Part):
    """Quantities derived from one metric's scores (:data:`everlearn.evaluation.quantities.QUANTITIES`).

    Quantities of plugins are further keys.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Estimates]

    learnt: Estimates = {}
    """Right after the own stage against the base model; positive is a gain."""
    forgotten: Estimates = {}
    """Earlier domains: right after the own stage against the last checkpoint; positive is a loss."""
    gained: Estimates = {}
    """Domains seen so far: the last checkpoint against the base model; positive is a gain."""
    forgotten_max: Estimates = {}
    """The best checkpoint so far against the last one."""
    backward_transfer: Estimates = {}
    """The negative of `forgotten`."""
    forward_transfer: Estimates = {}
    """Right before the own stage against the base model; positive is a gain."""
    forgetting_rate: Estimates = {}
    """``mean`` only: (1 / (T−1)) Σ over earlier domains, as defined by DAS."""
    general_drift: Estimates = {}
    """General columns: the base model against the last checkpoint; positive is a loss."""
    average: Estimates = {}
    """``mean`` only: mean of the last row over the domains seen so far, in the metric's unit."""
    share_forgotten: Estimates = {}
    """Standardised accuracy only: the share of it that is lost at the end."""
    share_forgotten_per_step: Estimates = {}
    """``mean`` only: the same, divided by the number of later stages."""
    share_forgotten_clipped: Estimates = {}
    """As `share_forgotten`, of accuracies clipped to [0, 1]; 1 for a task that was never learnt."""
    share_forgotten_clipped_per_step: Estimates = {}
    """``mean`` only: the same, divided by the number of later stages."""

    @model_serializer(mode="wrap")
    def _without_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out quantities of standardised accuracy for other metrics."""
        return {key: value for key, value in handler(self).items() if value or not key.startswith("share_forgotten")}


class Took(Part):
    """``_time.json`` beside the cells of a row."""

    seconds: Number
    """Seconds that it took to measure them."""


class SourceShare(Part):
    """A source's share of a stage's tokens, as saved with the stage."""

    source: str
    """What was mixed in."""
    asked: Number
    """Requested share."""
    realised: Number
    """Share of the tokens that were trained on; of the rows if a sample of earlier rows was added."""
    tokens: int
    """Number of tokens."""


class StageWork(Part):
    """The work of training one domain."""

    domain: str
    """Name of the domain."""
    seconds: Number
    """Wall time of the stage."""
    tokens: int
    """Tokens trained on."""
    steps: int
    """Optimizer steps."""
    planned_steps: int | None = None
    """Optimizer steps that the domain would have had, if it could end earlier (`stop`)."""
    final_loss: Number | None = None
    """The objective's loss that was logged last, without the methods' losses."""


class StageFacts(StageWork):
    """``stage.json`` in a stage's folder."""

    index: int
    """Number of the stage, from 1."""
    training_seconds: Number
    """Wall time of training."""
    peak_memory_bytes: int
    """Peak memory of the accelerator, or of the process if there is none."""
    mixture: list[SourceShare] = []
    """Sources that were mixed in."""
    fingerprint: str = ""
    """Fingerprint of the text."""
    held_out_end: str | None = "unknown"
    """Fingerprint of the text if its end is held out; null if documents are, by their hash."""
    pass_steps: int | None = None
    """Steps of one pass over the text; null if unknown (streams)."""
    notes: list[str] = []
    """Warnings about its data, a sentence each."""


class StageCost(StageWork):
    """The cost of training one domain."""

    tokens_per_second: Number
    """Throughput while training."""


class Spent(Part):
    """The time and memory that a run took."""

    seconds: Number = 0.0
    """Wall time in total."""
    training_seconds: Number = 0.0
    """Wall time of training."""
    evaluation_seconds: Number = 0.0
    """Wall time of evaluation."""
    tokens: int = 0
    """Tokens trained on."""
    tokens_per_second: Number = 0.0
    """Throughput while training."""
    peak_memory_bytes: int = 0
    """Peak memory of the accelerator, or of the process if there is none."""
    stages: list[StageCost] = []
    """Costs of the stages."""


class Share(SourceShare):
    """A source's share of a stage's tokens, with the stage."""

    stage: int
    """Number of the stage, from 1."""
    domain: str
    """Domain of the stage."""


class Waypoint(Part):
    """The scores after a number of training tokens."""

    tokens: Number
    """Training tokens since the start of the stream."""
    learnt: dict[str, dict[str, Number]]
    """Metric → held-out set or end task of the stream's domains → score."""
    kept: dict[str, dict[str, Number]]
    """The same for general text and for tasks without a domain."""


class GridCell(Part):
    """The identity of a run in a grid (row, order and seed), with further columns of the grid's tables."""

    suite: str
    """Name of the suite."""
    row: str
    """Method, variant or arrangement."""
    title: str
    """Title in tables."""
    paper: str = ""
    """URL of the method's paper."""
    order: int | None
    """Number of the order; null if it makes no difference."""
    seed: int | None
    """Seed of training; null if it makes no difference."""
    options: dict[str, Any] = {}
    """Options of the method that differ from its defaults, and keys of the recipe that differ from other rows."""
    domain_id_at_test: bool = False
    """Whether the method got the domain of each text in evaluation."""
    old_data: bool = False
    """Whether the method kept text of earlier domains."""
    parameters: int = 0
    """Trainable parameters that the method adds for a domain."""
    passes_per_step: Number = 0.0
    """Extra forward and backward passes per step, as declared by the method."""
    extra_tokens: Number | None = None
    """Tokens of the methods' extra passes, in units of a forward and backward pass, as declared by the methods: in the
    steps, and outside of them (importance, generated text). Null if unknown."""
    examples: dict[str, int] = {}
    """End task → number of its test examples; empty if unknown."""
    shares: dict[str, list[Number]] = {}
    """End task → share of each label among its test examples, for the row that always answers one label."""
    points: list[Waypoint] = []
    """Scores inside the stages, if end tasks are scored there (`evaluation.tasks_every`)."""
    settings: dict[str, Any]
    """What all cells of the grid share: settings, and digests of model and data."""

    @property
    def name(self) -> str:
        """Return the name of the file, without its extension."""
        return cell_name(self.row, self.order, self.seed)


def cell_name(row: str, order: int | None, seed: int | None) -> str:
    """Return a name such as ``das-order0-seed1``; parts that make no difference are left out."""
    parts = [row, *([f"order{order}"] if order is not None else []), *([f"seed{seed}"] if seed is not None else [])]
    return "-".join(parts)


class RunFacts(Part):
    """The facts of a run."""

    everlearn: str = __version__
    """Version that wrote the file."""
    run: str
    """Name of the run."""
    methods: list[MethodUsed]
    """Methods, in the recipe's order."""
    status: Literal["running", "finished", "failed"] = "running"
    """State of the run."""
    objective: str
    """Objective: masked, causal or text-to-text."""
    model: str
    """Path or hub id of the base model."""
    seed: int
    """Seed of the run."""


class Results(RunFacts):
    """Everything that a run measured."""

    domains: list[str]
    """All domains of the stream in order, whether learnt yet or not."""
    general: list[str] = []
    """Names of the general sets."""
    groups: dict[str, str] = {}
    """Domain → its group (`domains.<name>.group`); domains without a group are absent."""
    effective: dict[str, Any] = {}
    """Key of the recipe whose value depends on the model → the value in effect; null where the key has no effect."""
    leaked: dict[str, Number] = {}
    """Domain, general set or end task → the share of its held-out text or examples that was found in training text;
    absent below 1 %."""
    matrices: dict[str, ScoreTable] = {}
    """Metric → scores, in the order of :data:`everlearn.evaluation.metrics.METRICS`."""
    summary: dict[str, Summary] = {}
    """Metric → quantities."""
    alone: dict[str, dict[str, Number]] = {}
    """Metric of text → domain → score of the base model trained on that domain alone (`evaluation.alone`)."""
    cost: Spent = Spent()
    """Time and memory."""
    mixture: list[Share] = []
    """Shares of the sources that were mixed in."""
    notes: list[str] = []
    """Sentences for the reader of the results."""
    grid: GridCell | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the run is in a grid; absent for other runs."""

    def save(self, path: Path) -> None:
        """Write ``results.json`` atomically; `path` is the file."""
        files.write_text(path, self.text(), sealed=True)

    def text(self) -> str:
        """Return the content of ``results.json``, with a line for each score."""
        raw = self.model_dump(mode="json")
        scores = {f"scores of {name}": table["cells"] for name, table in raw["matrices"].items()}
        for name, table in raw["matrices"].items():
            table["cells"] = f"scores of {name}"
        text = json.dumps(raw, indent=1, ensure_ascii=False, allow_nan=False)
        for name, cells in scores.items():
            lines = ",\n    ".join(json.dumps(cell, ensure_ascii=False, allow_nan=False) for cell in cells)
            text = text.replace(f'"cells": {json.dumps(name)}', f'"cells": [\n    {lines}]' if cells else '"cells": []')
        return text + "\n"

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read ``results.json``; `path` is the file or the run folder.

        Raises:
            RunError: the file is missing, damaged or of another version.
        """
        return read(cls, path / FILE if path.is_dir() else path)


Kind = TypeVar("Kind", bound=BaseModel)


def read(kind: type[Kind], path: Path) -> Kind:
    """Read a JSON file of a run into its type.

    Raises:
        RunError: the file is missing, damaged or of another version; the message names file, key and value.
    """
    raw = files.read_json(path)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RunError(_sentence(path, raw, error.errors())) from None


def check_types(raw: Any, path: Path) -> None:
    """Refuse results with values of wrong types.

    Missing and unknown keys are allowed, so that an unfinished run, or one of another version, can be shown.

    Args:
        raw: the content of a ``results.json``.
        path: the file, for the message.

    Raises:
        RunError: a value has a wrong type; the message names file, key and value.
    """
    try:
        Results.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        if wrong := [each for each in error.errors() if each["type"] not in ("missing", "extra_forbidden")]:
            raise RunError(_sentence(path, raw, wrong)) from None
    if "matrices" not in raw:
        raise RunError(f"{path} is damaged: it has no `matrices`, the tables of scores.")


def _sentence(path: Path, raw: Any, errors: Sequence[Any]) -> str:
    first = errors[0]
    key = ".".join(str(part) for part in first["loc"])
    where = f"`{key}`: " if key else ""
    message = first["msg"].removeprefix("Value error, ")
    shown = repr(first.get("input"))
    got = f" (got {shown if len(shown) < 60 else shown[:60] + '…'})" if first["type"] != "missing" else ""
    version = raw.get("everlearn") if isinstance(raw, dict) else __version__
    same = version in (None, __version__)
    other = "" if same else f" It was written by everlearn {version}, this is {__version__}."
    return f"{path} cannot be used: {where}{message[:1].lower()}{message[1:]}{got}.{other}"
