"""The recipe: one YAML file that says everything about a run, typed and strict.

Unknown keys are refused with a suggestion, values are checked before a model is loaded, and the resolved recipe that
a run folder keeps runs again as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from everlearn import files
from everlearn.config.arguments import DEFAULTS, RUN_WIDE, check_argument
from everlearn.data.corpus import Domain
from everlearn.data.endtask import TaskConfig
from everlearn.errors import RecipeError, did_you_mean
from everlearn.evaluation.task import CONFIGS, task_config
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.sequential import PLAIN
from everlearn.model.source import Model


class Group(BaseModel):
    """Base of the recipe's groups."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())


class Data(Group):
    """How text becomes training rows."""

    block_size: int | None = Field(default=None, ge=8)
    """Tokens per row; the smaller of 512 and the model's longest input when left out."""
    mask_probability: float = Field(default=0.15, gt=0, lt=1)
    """Masked objective: share of a row's positions that are predicted."""
    isolate_documents: bool | None = None
    """Hide documents that share a row from each other. Exact and free for causal models (the default there); for
    encoders it costs attention masks, and without it documents of a row see each other, as in most published work."""
    cache: str | None = None
    """Where tokenised corpora are kept; `~/.cache/everlearn/data` when left out."""


class Evaluation(Group):
    """What is measured between domains."""

    blocks: int = Field(default=256, ge=1)
    """Held-out rows per domain and for general text."""
    batch_size: int = Field(default=32, ge=1)
    """Rows per forward pass."""
    end_tasks: Literal["final", "diagonal", "every"] = "diagonal"
    """After which domains the end tasks are fine-tuned: the base model and the last domain always; with `diagonal`
    also right after a task's own domain; with `every` after every domain."""
    end_task_seeds: int = Field(default=3, ge=1)
    """Fine-tunings per end task, each with another seed."""
    columns: Literal["own", "seen", "all"] = "all"
    """Which held-out text is scored after a domain: its own and the general text; that of all domains learnt so far; or
    of every domain. The base model and the last checkpoint are scored on everything. Of T domains these are about 3 T,
    T²/2 and T² scores; forward transfer needs `all`."""
    every: int | None = Field(default=None, ge=1)
    """Also score held-out text inside a stage, each time after so many steps, into `metrics.jsonl`; the same columns,
    with the domain that is being learnt. Training is not changed by it."""
    alone: bool = False
    """Also train each domain alone from the base model (FT in the causal study): one more stage per domain."""


class RunSettings(Group):
    """Where the run is kept and what makes it random."""

    name: str = "run"
    """Shown in tables and on the report."""
    folder: str | None = None
    """The run folder; `runs/<name>` when left out."""
    keep_stages: Literal["all", "last"] | Annotated[int, Field(ge=1)] = "all"
    """Which finished stages keep their weights: all, the last one, or the last so many. Scores, configuration and what
    methods remember are kept of every stage, so resuming and learning more go on as ever."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything: data order, masking, dropout, importance, fine-tuning."""
    notes: tuple[str, ...] = ()
    """Sentences for the report: what a reader should know about the data."""


class General(Domain):
    """General text, that the model should not forget either."""

    name: str = "general"
    """Its name in every table."""


def _tasks(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return [task_config(item, f"end_tasks.{number}") for number, item in enumerate(value)]


def _methods(value: Any) -> list[Any]:
    listed = value if isinstance(value, list | tuple) else [value]
    return [{"name": item} if isinstance(item, str) else item for item in listed]


class Recipe(Group):
    """A whole run."""

    model: Model
    """The language model that is taught."""
    domains: tuple[Domain, ...] = Field(min_length=1)
    """The corpora, in the order in which they are learnt."""
    method: Annotated[tuple[dict[str, Any], ...], BeforeValidator(_methods)] = ({"name": PLAIN},)
    """A method's name, a mapping of `name` and options, or a list of those that work together."""
    objective: Literal["masked", "causal", "text-to-text"] | None = None
    """What is learnt from text; the one that belongs to the model when left out."""
    general: General | None = None
    """General text: its drift is measured, and `replay` can mix it in."""
    end_tasks: Annotated[tuple[SerializeAsAny[TaskConfig], ...], BeforeValidator(_tasks)] = ()
    """What checkpoints are asked, to measure what they know; each of a `kind`, which decides its other keys."""
    data: Data = Data()
    """How text becomes training rows."""
    train: dict[str, Any] = Field(default={}, validate_default=True)
    """`transformers.TrainingArguments` by their own names, for each domain."""
    optimizer: Literal["reset", "carry"] = "reset"
    """What a domain's optimizer begins with: nothing, or the state that the domain before ended with (moments and their
    step counts, saved with each stage; learning rates follow `train`)."""
    evaluation: Evaluation = Evaluation()
    """What is measured between domains."""
    run: RunSettings = RunSettings()
    """Where the run is kept and what makes it random."""

    @field_validator("method")
    @classmethod
    def _known_methods(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        if not value:
            raise ValueError(f"a run needs one; for plain training write `{PLAIN}` (got [])")
        methods = [build(spec) for spec in value]  # raises MethodError with its own sentence
        return tuple({"name": method.label, **method.config.model_dump(mode="json")} for method in methods)

    @field_validator("train")
    @classmethod
    def _our_defaults(cls, value: dict[str, Any]) -> dict[str, Any]:
        return DEFAULTS | value

    @model_validator(mode="after")
    def _arguments_of_domains(self) -> Recipe:
        if self.general is not None and self.general.train:
            raise ValueError("general text is not learnt as a domain is: remove `general.train`")
        for domain in self.domains:
            for name, value in domain.train.items():
                key = f"domains.{domain.name}.train.{name}"
                if name in RUN_WIDE:
                    raise ValueError(f"`{key}`: it is the same for a whole run; set `train.{name}`")
                if name in ("optim", "optim_args") and self.optimizer == "carry":
                    raise ValueError(f"`{key}`: `optimizer: carry` hands on the state of one and the same optimizer")
                check_argument(name, value, f"domains.{domain.name}.train")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        names = [domain.name for domain in self.domains]
        for reserved in sorted({"base", "mean"} & {*names, *(task.name for task in self.end_tasks)}):
            raise ValueError(f"the name '{reserved}' is taken by a row or column of every table; choose another")
        for kind, listed in (("domains", names), ("end_tasks", [task.name for task in self.end_tasks])):
            if twice := sorted({name for name in listed if listed.count(name) > 1}):
                raise ValueError(f"`{kind}` has the name '{twice[0]}' more than once; names must differ")
        if self.general is not None and self.general.name in names:
            raise ValueError(f"a domain cannot be called '{self.general.name}': the general text is (`general.name`)")
        for task in self.end_tasks:
            if task.domain is not None and task.domain not in names:
                raise ValueError(
                    f"end task '{task.name}' belongs to domain '{task.domain}', which is not in `domains`."
                    f"{did_you_mean(task.domain, names)}"
                )
        return self

    def train_of(self, domain: str) -> dict[str, Any]:
        """The training arguments of a domain: `train`, and over it the domain's own."""
        own = next(known.train for known in self.domains if known.name == domain)
        whole = self.train | own
        if "num_train_epochs" in own and "max_steps" not in own:
            whole.pop("max_steps", None)  # TrainingArguments would let it decide, and the domain's own says otherwise
        return whole

    def methods(self) -> list[Method]:
        """Fresh method objects, in the recipe's order."""
        return [build(spec) for spec in self.method]

    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.folder or f"runs/{self.run.name}")

    def changed(self, **groups: Any) -> Recipe:
        """A copy with whole top-level groups replaced, checked again."""
        return parse({**self.model_dump(mode="json"), **groups})

    def to_yaml(self) -> str:
        """The whole recipe as YAML, defaults included: it runs again as it is, also with a later version."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load(path: Path | str, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe and apply ``key=value`` overrides.

    Args:
        path: the YAML file.
        overrides: dotted keys, YAML values: ``train.max_steps=100``, ``domains.0.path=a.txt``, ``method=das``.

    Raises:
        RecipeError: the file is missing, is no YAML, or a key or value is not allowed.
    """
    path = Path(path)
    if path.is_dir() and (path / "recipe.yaml").is_file():
        path = path / "recipe.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.y*ml")]) if path.parent.is_dir() else ""
        raise RecipeError(f"There is no recipe '{path}'.{near}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"'{path}' is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(raw, dict):
        raise RecipeError(f"'{path}' must hold a mapping of keys such as `model` and `domains`.")
    for override in overrides:
        _override(raw, override)
    return parse(raw)


def parse(raw: Mapping[str, Any]) -> Recipe:
    """A recipe from plain data.

    Raises:
        RecipeError: with the first wrong key, its value and what is allowed.
    """
    try:
        return Recipe.model_validate(_local(dict(raw)))
    except ValidationError as error:
        raise RecipeError(_sentence(error)) from None


def save(recipe: Recipe, path: Path) -> None:
    """Write a recipe atomically."""
    files.write_text(path, recipe.to_yaml())


def _override(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", key):
        raise RecipeError(f"'{text}' is no override: write key=value, for example train.max_steps=100.")
    at: Any = raw
    *parents, last = key.split(".")
    for part in parents:
        if isinstance(at, list):
            at = at[_index(at, part, key)]
        else:
            if not isinstance(at.get(part), dict | list):
                at[part] = {} if part != "method" or at.get(part) is None else _methods(at[part])[0]
            at = at[part]
    parsed = _number(yaml.safe_load(value)) if value else None
    if isinstance(at, list):
        at[_index(at, last, key)] = parsed
    else:
        at[last] = parsed


def _index(items: list[Any], part: str, key: str) -> int:
    if part.isdigit() and int(part) < len(items):
        return int(part)
    names = [item["name"] for item in items if isinstance(item, dict) and "name" in item]
    if part in names:
        return next(i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == part)
    raise RecipeError(f"Override '{key}': '{part}' is neither a position below {len(items)} nor a name in the list.")


def _local(raw: dict[str, Any]) -> dict[str, Any]:
    """Local paths made absolute, so that a run can be resumed from anywhere; suite paths replaced by their files."""
    raw = _numbers(raw)

    def place(item: Any, keys: tuple[str, ...]) -> Any:
        if not isinstance(item, dict):
            return item
        return {
            key: _absolute(value) if key in keys and isinstance(value, str) else value for key, value in item.items()
        }

    if isinstance(raw.get("model"), str):
        raw["model"] = {"path": raw["model"]}
    raw["model"] = place(raw.get("model"), ("path", "tokenizer"))
    if isinstance(raw.get("domains"), list):
        raw["domains"] = [
            place(_numbers(item) if isinstance(item, dict) else item, ("path", "validation")) for item in raw["domains"]
        ]
    if "general" in raw:
        if isinstance(raw["general"], str):
            raw["general"] = {"path": raw["general"]}
        raw["general"] = place(raw["general"], ("path", "validation"))
    if isinstance(raw.get("end_tasks"), list):
        files_ = tuple({key for config in CONFIGS.values() for key in config.paths})
        raw["end_tasks"] = [place(item, files_) for item in raw["end_tasks"]]
    return raw


def _numbers(raw: dict[str, Any]) -> dict[str, Any]:
    """The mapping with the numbers of its `train` read as such."""
    if not isinstance(raw.get("train"), dict):
        return raw
    return raw | {"train": {name: _number(value) for name, value in raw["train"].items()}}


def _number(value: Any) -> Any:
    """YAML 1.1 reads 5e-5 as a word; TrainingArguments wants a number."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value


def _absolute(text: str) -> str:
    if text.startswith("suite:"):
        from everlearn.suites import locate

        return str(locate(text.removeprefix("suite:")))
    path = Path(text).expanduser()
    return str(path.resolve()) if path.exists() else text


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    parts = [part for part in first["loc"] if isinstance(part, int) or not str(part).startswith("function-")]
    key = ".".join(str(part) for part in parts)
    if first["type"] == "extra_forbidden":
        fields = _fields_at(parts[:-1])
        return f"Unknown key `{key}`.{did_you_mean(str(parts[-1]), fields)}"
    if first["type"] == "missing":
        return f"The recipe needs `{key}`."
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].upper() + message[1:]
    value = first.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) else f" (got {value!r})"
    return f"`{key}`: {message}{shown}." if key else f"{message}."


def _fields_at(parts: list[Any]) -> Iterable[str]:
    """Names allowed where an unknown key was found."""
    groups: dict[str, type[BaseModel]] = {
        "model": Model,
        "domains": Domain,
        "general": General,
        "data": Data,
        "evaluation": Evaluation,
        "run": RunSettings,
    }
    return groups[parts[0]].model_fields if parts and parts[0] in groups else Recipe.model_fields
