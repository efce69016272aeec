"""``results.json``: what a run measured, as the report and every comparison read it.

One sign for every metric: forgetting ≥ 0 is bad, learnt and transfer ≥ 0 are good. Each number's definition is in
:mod:`everlearn.evaluation.quantities`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from everlearn import files
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate
from everlearn.version import __version__

FILE = "results.json"
Number = Annotated[float, Field(allow_inf_nan=False)]


class Part(BaseModel):
    """Base of the parts of the results: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


Estimates = dict[str, Estimate]
"""By column, and ``mean`` over them; a column without the number is absent."""


class MethodUsed(Part):
    """A method that the run trained with."""

    name: str
    """Its word in recipes."""
    title: str
    """Its name as the paper writes it."""
    paper: str = ""
    """URL of the paper; empty for plain training."""
    options: dict[str, Any] = {}
    """Every option, defaults included."""
    as_saved: bool = True
    """Whether whoever loads a stage's folder has the model that was scored, without adapters, gates or prompts."""


Score = Annotated[
    tuple[str, str, Number, Number | None, Number | None],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
"""A measured score: label of the row, column, value, lower and upper end of its 95 % interval (null: not known)."""


class ScoreTable(Part):
    """One metric's scores: checkpoints (rows) on held-out sets or end tasks (columns), where they were measured.

    Only what was measured is kept, so that it grows with the number of measurements.
    """

    title: str = ""
    """Of the metric, as tables write it."""
    higher_is_better: bool
    """False for losses."""
    unit: str
    """Of the values."""
    rows: list[str]
    """Labels: ``base``, then the domain learnt last; or what checkpoints are called."""
    columns: list[str]
    """Names of held-out sets or end tasks."""
    task_domains: dict[str, str | None] | None = None
    """End tasks only: the domain that a task belongs to; null for a general task."""
    cells: list[Score]
    """By row, then by column."""

    @model_validator(mode="after")
    def _places(self) -> ScoreTable:
        rows, columns = set(self.rows), set(self.columns)
        for row, column, *_ in self.cells:
            if row not in rows or column not in columns:
                raise ValueError(f"`cells` has a score of '{column}' at '{row}', which is no row or column")
        return self

    def estimates(self) -> dict[tuple[str, str], Estimate]:
        """(row, column) → score with its interval."""
        return {(row, column): Estimate(*score) for row, column, *score in self.cells}

    def dense(self, part: Literal["value", "low", "high"] = "value") -> list[list[float | None]]:
        """[rows][columns], None where nothing was measured; for a few rows and columns."""
        found = self.estimates()
        return [[getattr(found.get((row, c)), part, None) for c in self.columns] for row in self.rows]

    @property
    def values(self) -> list[list[float | None]]:
        """:meth:`dense` values."""
        return self.dense()

    @property
    def low(self) -> list[list[float | None]]:
        """:meth:`dense` lower ends."""
        return self.dense("low")

    @property
    def high(self) -> list[list[float | None]]:
        """:meth:`dense` upper ends."""
        return self.dense("high")


class Summary(Part):
    """Numbers derived from one metric's scores (:data:`everlearn.evaluation.quantities.QUANTITIES`).

    Quantities that plugins bring stand beside these.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Estimates]

    learnt: Estimates = {}
    """Just learnt against the base model; ≥ 0 is good."""
    forgotten: Estimates = {}
    """Just learnt against the last checkpoint, earlier domains; ≥ 0 is bad."""
    gained: Estimates = {}
    """The last checkpoint against the base model, domains seen so far; ≥ 0 is good."""
    forgotten_max: Estimates = {}
    """Best so far against the last checkpoint."""
    backward_transfer: Estimates = {}
    """The negative of `forgotten`."""
    forward_transfer: Estimates = {}
    """Right before its own domain against the base model; ≥ 0 is good."""
    forgetting_rate: Estimates = {}
    """``mean`` only: (1 / (T−1)) Σ over earlier domains, as DAS defines it."""
    general_drift: Estimates = {}
    """General columns: base model against the last checkpoint; ≥ 0 is bad."""
    average: Estimates = {}
    """``mean`` only: the last row over the domains seen so far, in the metric's own unit."""
    share_forgotten: Estimates = {}
    """Standardised accuracy alone: the share of it that is lost at the end."""
    share_forgotten_per_step: Estimates = {}
    """``mean`` only: the same divided by the number of later stages."""
    share_forgotten_clipped: Estimates = {}
    """As `share_forgotten`, of accuracies clipped to [0, 1]; 1 for a task that was never learnt."""
    share_forgotten_clipped_per_step: Estimates = {}
    """``mean`` only: the same divided by the number of later stages."""

    @model_serializer(mode="wrap")
    def _without_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what other metrics than the standardised one never have."""
        return {key: value for key, value in handler(self).items() if value or not key.startswith("share_forgotten")}


class Spread(Part):
    """A measure over several domains."""

    mean: Number
    """Over them."""
    median: Number
    """Over them."""
    domains: int
    """How many have it."""


class Study(Part):
    """Perplexities by domain as the causal study names them, and forgetting in nats (log-perplexity)."""

    zero_shot: dict[str, Number | None] = {}
    """ZS: the base model."""
    fine_tuned_alone: dict[str, Number | None] = {}
    """FT: the base model trained on this domain alone; null where that was not run."""
    continual: dict[str, Number | None] = {}
    """CPT: right after the domain was learnt."""
    last_checkpoint: dict[str, Number | None] = {}
    """LC: the last checkpoint, domains seen so far."""
    forgotten: dict[str, Number | None] = {}
    """FG: log LC − log CPT, earlier domains."""
    forgotten_max: dict[str, Number | None] = {}
    """FG, max form: log LC − the lowest log-perplexity since the domain was learnt."""
    median: dict[str, Number | None] = {}
    """Of each of the above over its domains: raw means of perplexities are ruled by odd domains."""
    transfer: dict[str, dict[str, dict[str, Spread]]] = {}
    """Metric of text → measure (:data:`everlearn.evaluation.transfer.MEASURES`) → ``all``, and each super-domain."""


class Took(Part):
    """``_time.json`` beside the cells of a row."""

    seconds: Number
    """That measuring them took."""


class SourceShare(Part):
    """A source's share of a stage's tokens, as the stage keeps it."""

    source: str
    """What was mixed in."""
    asked: Number
    """Share asked for."""
    realised: Number
    """Share of the tokens that were trained on; of the rows where a sample of earlier rows was added."""
    tokens: int
    """How many."""


class StageFacts(Part):
    """``stage.json`` in a stage's folder."""

    domain: str
    """Its name."""
    index: int
    """1 for the first domain."""
    steps: int
    """Optimizer steps."""
    seconds: Number
    """Wall time of everything."""
    training_seconds: Number
    """Of that, training."""
    peak_memory_bytes: int
    """On the accelerator, or of the process where there is none."""
    tokens: int
    """Trained on."""
    final_loss: Number | None = None
    """The objective's loss, without what methods add, as it was logged last."""
    mixture: list[SourceShare] = []
    """What was mixed in."""
    fingerprint: str = ""
    """Of the text."""
    pass_steps: int | None = None
    """Steps until text comes for the second time; null where it is not known (streams)."""
    notes: list[str] = []
    """What was found about its data, a sentence each."""


class StageCost(Part):
    """One domain's training."""

    domain: str
    """Its name."""
    seconds: Number
    """Wall time of the stage."""
    tokens: int
    """Tokens trained on."""
    steps: int
    """Optimizer steps."""
    tokens_per_second: Number
    """While training."""
    final_loss: Number | None = None
    """The objective's loss, without what methods add, as it was logged last."""


class Spent(Part):
    """Time and memory that a run took."""

    seconds: Number = 0.0
    """Wall time of everything."""
    training_seconds: Number = 0.0
    """Of that, training."""
    evaluation_seconds: Number = 0.0
    """Of that, evaluation."""
    tokens: int = 0
    """Tokens trained on."""
    tokens_per_second: Number = 0.0
    """While training."""
    peak_memory_bytes: int = 0
    """On the accelerator, or of the process where there is none."""
    stages: list[StageCost] = []
    """By domain."""


class Share(Part):
    """A source's share of a stage's tokens, asked for and realised."""

    stage: int
    """1 for the first domain."""
    domain: str
    """That is being learnt."""
    source: str
    """What was mixed in."""
    asked: Number
    """Share asked for."""
    realised: Number
    """Share of the tokens that were trained on; of the rows where a sample of earlier rows was added."""
    tokens: int
    """How many tokens, counted."""


class RunFacts(Part):
    """What was run."""

    everlearn: str = __version__
    """Version that wrote the file."""
    run: str
    """The run's name."""
    methods: list[MethodUsed]
    """In the recipe's order."""
    status: Literal["running", "finished", "failed"] = "running"
    """How far it is."""
    objective: str
    """masked, causal or text-to-text."""
    model: str
    """Path or hub id of the base model."""
    seed: int
    """Of the run."""


class Results(RunFacts):
    """Everything a run measured."""

    domains: list[str]
    """The whole stream, in order, learnt yet or not."""
    general: list[str] = []
    """Names of general sets."""
    groups: dict[str, str] = {}
    """Domain → what it belongs to (`domains.<name>.group`); domains of no group are absent."""
    matrices: dict[str, ScoreTable] = {}
    """By metric, in the order of :data:`everlearn.evaluation.metrics.METRICS`."""
    summary: dict[str, Summary] = {}
    """By metric."""
    study: Study = Study()
    """The causal study's perplexities."""
    cost: Spent = Spent()
    """Time and memory."""
    mixture: list[Share] = []
    """What was mixed in."""
    notes: list[str] = []
    """Plain sentences worth reading."""

    def save(self, path: Path) -> None:
        """Replace ``results.json`` atomically; `path` is the file. Every score is one line of it."""
        raw = self.model_dump(mode="json")
        scores = {f"scores of {name}": table["cells"] for name, table in raw["matrices"].items()}
        for name, table in raw["matrices"].items():
            table["cells"] = f"scores of {name}"
        text = json.dumps(raw, indent=1, ensure_ascii=False, allow_nan=False)
        for name, cells in scores.items():
            lines = ",\n    ".join(json.dumps(cell, ensure_ascii=False, allow_nan=False) for cell in cells)
            text = text.replace(f'"cells": {json.dumps(name)}', f'"cells": [\n    {lines}]' if cells else '"cells": []')
        files.write_text(path, text + "\n", sealed=True)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read ``results.json``; `path` is the file or the run folder.

        Raises:
            RunError: the file is missing, damaged or of another version.
        """
        return read(cls, path / FILE if path.is_dir() else path)


Kind = TypeVar("Kind", bound=BaseModel)


def read(kind: type[Kind], path: Path) -> Kind:
    """A JSON file of a run, typed.

    Raises:
        RunError: the file is missing, damaged or of another version; the sentence names file, key and value.
    """
    raw = files.read_json(path)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RunError(_sentence(path, raw, error.errors())) from None


def check_types(raw: Any, path: Path) -> None:
    """Refuse results whose values are not what they must be. What is missing, or more than is known, may be: a run of
    another version, or one under way, is shown as far as it goes.

    Args:
        raw: the content of a ``results.json``.
        path: where it was read, for the sentence.

    Raises:
        RunError: a value is of a wrong type; the sentence names file, key and value.
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
