"""``results.json``: what a run measured, as the report and every comparison read it.

One sign for every metric: forgetting ≥ 0 is bad, learnt and transfer ≥ 0 are good. Each number's definition is in
:mod:`everlearn.evaluation.matrix`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from everlearn import files
from everlearn.errors import RunError
from everlearn.version import __version__

FILE = "results.json"
Number = Annotated[float, Field(allow_inf_nan=False)]
Cells = list[list[Number | None]]


class Part(BaseModel):
    """Base of the parts of the results: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class Estimate(Part):
    """A number and its 95 % confidence interval."""

    value: Number
    """The number itself."""
    low: Number | None = None
    """Lower end; null where there is too little to resample."""
    high: Number | None = None
    """Upper end."""


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


class Matrix(Part):
    """Scores of every checkpoint (row) on every held-out set or end task (column)."""

    higher_is_better: bool
    """False for losses."""
    unit: str
    """Of the values."""
    rows: list[str]
    """``base``, then the domain learnt last."""
    columns: list[str]
    """Names of held-out sets or end tasks."""
    task_domains: dict[str, str | None] | None = None
    """End tasks only: the domain that a task belongs to; null for a general task."""
    values: Cells
    """[rows][columns]; null where nothing was measured."""
    low: Cells
    """Lower ends of the 95 % intervals."""
    high: Cells
    """Upper ends."""

    @model_validator(mode="after")
    def _shapes(self) -> Matrix:
        for name in ("values", "low", "high"):
            cells = getattr(self, name)
            if len(cells) != len(self.rows) or any(len(row) != len(self.columns) for row in cells):
                raise ValueError(f"`{name}` must be {len(self.rows)} rows of {len(self.columns)} columns")
        return self


class Summary(Part):
    """Numbers derived from one matrix."""

    learnt: Estimates = {}
    """Just learnt against the base model; ≥ 0 is good."""
    forgotten: Estimates = {}
    """Just learnt against the last checkpoint, earlier domains; ≥ 0 is bad."""
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
    """Last logged training loss."""


class Cost(Part):
    """Time and memory."""

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
    """Share of the tokens that were trained on."""
    tokens: int
    """How many."""


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
    matrices: dict[str, Matrix] = {}
    """By metric: bits_per_byte, loss, perplexity, accuracy, macro_f1."""
    summary: dict[str, Summary] = {}
    """By metric."""
    study: Study = Study()
    """The causal study's perplexities."""
    cost: Cost = Cost()
    """Time and memory."""
    mixture: list[Share] = []
    """What was mixed in."""
    notes: list[str] = []
    """Plain sentences worth reading."""

    def save(self, path: Path) -> None:
        """Replace ``results.json`` atomically; `path` is the file."""
        files.write_json(path, self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read ``results.json``; `path` is the file or the run folder.

        Raises:
            RunError: the file is missing, damaged or of another version.
        """
        path = path / FILE if path.is_dir() else path
        raw = files.read_json(path)
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            version = raw.get("everlearn") if isinstance(raw, dict) else None
            other = f" It was written by everlearn {version}, this is {__version__}." if version != __version__ else ""
            raise RunError(f"{path} cannot be used: `{key}`: {first['msg']}.{other}") from None
