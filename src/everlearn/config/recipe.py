"""The recipe: one YAML file that configures a whole run, typed and strict.

Unknown keys are refused with a suggestion, and values are checked before a model is loaded. The complete recipe that is
saved in a run folder can be run again unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from everlearn import files, plugins
from everlearn.config.addresses import is_address, located
from everlearn.config.arguments import DEFAULTS, MEASURING, RUN_WIDE, check_argument
from everlearn.config.objective import check_objective
from everlearn.config.overrides import Place, named_methods, overridden, put_at, train_of
from everlearn.config.reading import DIGITS, read_yaml, written
from everlearn.data.corpus import Domain
from everlearn.data.mixing import Annealed
from everlearn.data.text_files import Limits
from everlearn.errors import EverlearnError, RecipeError, RunError, did_you_mean
from everlearn.evaluation.quantities import TOLERATED_DRIFT
from everlearn.evaluation.task import CONFIGS, TASK_KINDS, TaskConfig, kind_of, task_config
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.sequential import PLAIN
from everlearn.model.options import Model
from everlearn.options import LONGEST_NAME, TAKEN, Options, home, wrong_key
from everlearn.tasks.chat import ChatTask, switched
from everlearn.tasks.lm_eval import Harness, named

_PLACE = ("path", "sources", "data", "subset", "split", "revision", "max_documents", "shuffle_buffer")
"""Keys of a domain that say where its text is and how much of it is read."""
_UNUSABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Data(Options):
    """How text becomes training rows."""

    block_size: int | None = Field(default=None, ge=8)
    """Tokens per row; by default the smaller of 512 and the model's longest input."""
    mask_probability: float = Field(default=0.15, gt=0, lt=1)
    """Masked objective: share of a row's positions that are predicted."""
    isolate_documents: bool | None = None
    """Hide documents that share a row from each other. Exact and free for causal models (the default there); for
    encoders it costs attention masks, and without it documents of a row see each other, as in most published work."""
    max_row_bytes: int = Field(default=Limits().row_bytes, ge=1024)
    """Largest size of one row of a file in bytes; longer ones are refused. A row is a line, a record of a table, an
    item of a JSON array, or a whole file that is one document."""
    max_expansion: float = Field(default=Limits().expansion, ge=1, allow_inf_nan=False)
    """Largest ratio by which a compressed file may expand; up to `max_row_bytes` any ratio is allowed."""
    max_leaked: float | None = Field(default=None, ge=0, lt=1)
    """Refuse to run if more than this share of held-out documents or test examples is in the training text; by default
    there is only a note."""
    cache: str | None = None
    """Cache folder of tokenised corpora; by default `~/.cache/everlearn/data`."""


class Evaluation(Options):
    """Configuration of the evaluation between domains."""

    blocks: int = Field(default=256, ge=1)
    """Held-out rows per domain and for general text."""
    batch_size: int = Field(default=32, ge=1)
    """Rows per forward pass."""
    stride: int | None = Field(default=None, ge=1)
    """Score held-out text of a causal model in overlapping windows of `data.block_size` tokens that advance by this
    number of tokens: each token is scored once, with the tokens before it as context. A window costs as much as a block
    and scores `stride` tokens. By default blocks do not overlap; those of a domain with answers never do."""
    content: int | None = Field(default=None, ge=0)
    """Also compute the loss over content tokens only. Excluded are the most frequent token types of each held-out set,
    as many as this number (such as 100), and tokens without a letter or digit. By default only the loss over all tokens
    is computed."""
    end_tasks: Literal["final", "diagonal", "groups", "every"] = "diagonal"
    """After which domains models are fine-tuned on end tasks: always for the base model and after the last domain; with
    `diagonal` also right after the domain of a task; with `groups` where the next domain has another `group`; with
    `every` after every domain."""
    end_task_seeds: int = Field(default=3, ge=1)
    """Fine-tunings per end task, each with another seed."""
    columns: Literal["own", "seen", "all"] = "all"
    """Which held-out text is scored after a domain: its own and the general text; that of all domains learnt so far; or
    of every domain. The base model and the last checkpoint are scored on everything. For T domains these are about 3 T,
    T²/2 and T² scores; forward transfer needs `all`."""
    every: int | None = Field(default=None, ge=1)
    """Also score held-out text during a stage, every this number of steps, into `metrics.jsonl`; the same columns,
    including the current domain. Training is not affected."""
    tasks_every: int | None = Field(default=None, ge=1)
    """Also evaluate end tasks during a stage, every this number of steps, into `metrics.jsonl`: those without
    fine-tuning. Training is not affected."""
    samples: int = Field(default=1, ge=0)
    """Number of held-out texts of each domain, and of the general text, that the page shows with the outputs of the
    model before and after each domain: filled blanks, a continuation, an answer. They are stored in the page and in the
    run folder as plain text; 0 stores none. `columns` determines which ones are evaluated when."""
    alone: bool = False
    """Also train each domain alone from the base model: one more stage per domain."""
    lm_eval: Annotated[Harness | None, BeforeValidator(named)] = None
    """Tasks of lm_eval, evaluated before the first domain and after each one: a list of names, or a mapping with
    `tasks` and their settings. Needs `pip install 'everlearn[lm-eval]'`."""
    chat: Annotated[ChatTask | None, BeforeValidator(switched)] = None
    """Whether to test that a chat model still ends its turn, before the first domain and after each one: `true`, or a
    mapping with your own prompts."""

    def always(self) -> tuple[TaskConfig, ...]:
        """Return the tasks on which the base model and every checkpoint are evaluated, besides `end_tasks`."""
        return (*(self.lm_eval.task_configs() if self.lm_eval else ()), *((self.chat,) if self.chat else ()))


class RunSettings(Options):
    """Configuration of the run folder and the random seed."""

    name: str = "run"
    """Name in tables and on the report."""
    folder: str | None = None
    """The run folder; by default `runs/<name>`."""
    keep_stages: Literal["all", "last"] | Annotated[int, Field(ge=1)] = "all"
    """Which finished stages keep their weights: all, the last one, or this number of last ones. Scores, configuration
    and the memory of methods are kept for every stage, so a run can be resumed and extended as usual."""
    stage_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights that stages keep. `bfloat16` needs half the disk: a domain's model is rounded when
    it is saved, before it is scored, and the next domain begins with the rounded weights."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of everything: data order, masking, dropout, importance, fine-tuning."""
    notes: tuple[str, ...] = ()
    """Sentences for the report on what a reader should know about the data."""

    @model_validator(mode="after")
    def _name_is_no_path(self) -> RunSettings:
        """Require a name that is valid as a folder name if no folder is set."""
        if self.folder is None:
            odd = next((letter for letter in self.name if letter in '/\\:*?"<>|' or not letter.isprintable()), None)
            wrong = None
            if odd is not None:
                wrong = f"holds {odd!a}"
            elif not self.name.strip() or self.name.strip() != self.name:
                wrong = "is empty or has spaces around it"
            elif self.name.startswith("."):
                wrong = "starts with a dot"
            elif len(self.name) > LONGEST_NAME:
                wrong = f"has {len(self.name)} characters"
            if wrong:
                raise ValueError(
                    f"`run.name` {wrong}: {self.name[:60]!r}. It is a name of at most {LONGEST_NAME} characters, not a "
                    "path; to choose the folder set `run.folder`"
                )
        return self


class ReportSettings(Options):
    """How the report judges the run."""

    tolerate: float = Field(default=TOLERATED_DRIFT, ge=0, allow_inf_nan=False)
    """Bits per byte that general text may lose in a run that the report accepts."""


class Stop(Options):
    """When a domain ends before its last step: as soon as the model has forgotten more than this.

    A domain ends with the weights of its best step: among the measured steps within the bounds, the one at which its
    own held-out text is predicted best. Without bounds, all measured steps are considered, and none ends the domain
    early.
    """

    general: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Bits per byte that general text may get worse than under the base model."""
    earlier: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Bits per byte that each earlier domain may get worse than right after it was learnt."""
    every: int = Field(default=50, ge=1)
    """Steps between two measurements."""
    then: Literal["end", "lower", "warn"] = "end"
    """What happens beyond a bound. `end`: the domain ends. `lower`: it continues from its best step with half the
    learning rate, up to three times, and then ends. `warn`: there is only a warning."""
    notify: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Where to send a notification when a bound is passed: the URL of a webhook (`$NAME` reads it from an environment
    variable), which gets a POST request with JSON, or a command as a list of words, which gets the JSON on its standard
    input."""


class General(Domain):
    """General text, which the model should not forget either."""

    name: str = "general"
    """Its name in every table."""


def _tasks(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return [task_config(item, f"end_tasks.{number}") for number, item in enumerate(value)]


class Recipe(Options):
    """Configuration of a complete run."""

    model: Model
    """The language model that is trained."""
    domains: tuple[Domain, ...] = Field(min_length=1)
    """The corpora, in training order."""
    method: Annotated[tuple[dict[str, Any], ...], BeforeValidator(named_methods)] = ({"name": PLAIN},)
    """Name of a method, a mapping of `name` and options, or a list of methods to combine."""
    objective: Literal["masked", "causal", "text-to-text"] | None = None
    """The training objective; by default that of the kind of model. In a domain with answers (`target_column`,
    `messages_column`, `row_format`) the loss is computed over the answers only, with every objective."""
    general: General | None = None
    """General text: its drift is measured, and `replay` can mix it in."""
    end_tasks: Annotated[tuple[SerializeAsAny[TaskConfig], ...], BeforeValidator(_tasks)] = ()
    """Tasks on which checkpoints are evaluated; the `kind` of each determines its other keys."""
    data: Data = Data()
    """How text becomes training rows."""
    train: dict[str, Any] = Field(default={}, validate_default=True)
    """`transformers.TrainingArguments` by their own names, for each domain."""
    optimizer: Literal["reset", "carry"] = "reset"
    """What a domain's optimizer begins with: nothing, or the state that the domain before ended with (moments and their
    step counts, saved with each stage; learning rates follow `train`)."""
    evaluation: Evaluation = Evaluation()
    """Configuration of the evaluation between domains."""
    stop: Stop | None = None
    """When a domain ends before its last step, because the model forgets."""
    report: ReportSettings = ReportSettings()
    """How the report judges the run."""
    run: RunSettings = RunSettings()
    """Configuration of the run folder and the random seed."""
    plugins: tuple[str, ...] = ()
    """Installed modules to import before the recipe is read: they register methods, tasks or metrics of their own.
    Packages that declare entry points are found without it."""

    @field_validator("domains", mode="before")
    @classmethod
    def _learnt_again(cls, value: Any) -> Any:
        """Give a domain that `continues` another one the keys of that one that it leaves out."""
        if not isinstance(value, list | tuple):
            return value
        listed = [each.model_dump(exclude_unset=True) if isinstance(each, Domain) else each for each in value]
        known: dict[str, dict[str, Any]] = {}
        again_of: dict[str, str] = {}
        for number, domain in enumerate(listed):
            if not isinstance(domain, dict):
                continue
            if (first := domain.get("continues")) is None:
                known[str(domain.get("name"))] = domain
                continue
            if again := again_of.get(str(first)):
                raise ValueError(
                    f"domain '{domain.get('name')}' continues '{first}', which continues '{again}' itself: write "
                    f"`continues: {again}`"
                )
            if first not in known:
                raise ValueError(
                    f"domain '{domain.get('name')}' continues '{first}', which is no domain before it."
                    f"{did_you_mean(str(first), known).removesuffix('.')}"
                )
            left_out = ("name", "train", *(_PLACE if any(key in domain for key in ("path", "sources", "data")) else ()))
            listed[number] = {key: value for key, value in known[first].items() if key not in left_out} | domain
            if listed[number].get("validation") != known[first].get("validation"):
                raise ValueError(
                    f"domain '{domain.get('name')}' continues '{first}' and is scored on the held-out text of that "
                    "domain: remove its `validation`"
                )
            again_of[str(domain.get("name"))] = str(first)
        return listed

    @field_validator("method")
    @classmethod
    def _known_methods(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        if not value:
            raise ValueError(f"a run needs one; for plain training write `{PLAIN}`")
        methods = [build(spec) for spec in value]  # raises MethodError with its own message
        return tuple({"name": method.label, **method.config.model_dump(mode="json")} for method in methods)

    @field_validator("train")
    @classmethod
    def _our_defaults(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, argument in value.items():
            check_argument(name, argument)  # raises RecipeError with its own message
        return DEFAULTS | value

    @model_validator(mode="after")
    def _arguments_of_domains(self) -> Recipe:
        if self.general is not None and self.general.train:
            raise ValueError("general text is not learnt as a domain is: remove `general.train`")
        if self.general is not None and any(isinstance(source.weight, Annealed) for source in self.general.sources):
            raise ValueError(
                "general text is not learnt as a domain is, so the weights of its sources cannot change: write one "
                "number for each `weight` of `general.sources`"
            )
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
    def _limits(self) -> Recipe:
        limits = Limits(self.data.max_row_bytes, self.data.max_expansion)
        for reader in (*self.domains, *([self.general] if self.general else []), *self.end_tasks):
            reader.limited(limits)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        names = [domain.name for domain in self.domains]
        general = [] if self.general is None else [self.general.name]
        for reserved in sorted(TAKEN & {*names, *general, *(task.name for task in self.tasks)}):
            raise ValueError(f"the name '{reserved}' is taken by a row or column of every table; choose another")
        for kind, listed in (("domains", names), ("end_tasks", [task.name for task in self.tasks])):
            if twice := sorted({name for name in listed if listed.count(name) > 1}):
                raise ValueError(f"`{kind}` has the name '{twice[0]}' more than once; names must differ")
            folded = [name.lower() for name in listed]
            if twice := [name for name in listed if folded.count(name.lower()) > 1]:
                raise ValueError(
                    f"`{kind}` has the names '{twice[0]}' and '{twice[1]}'; they must differ in more than case"
                )
        if self.general is not None and self.general.name in names:
            raise ValueError(f"a domain cannot be called '{self.general.name}': the general text is (`general.name`)")
        for task in self.end_tasks:
            if task.domain is not None and task.domain not in names:
                raise ValueError(
                    f"end task '{task.name}' belongs to domain '{task.domain}', which is not in `domains`."
                    f"{did_you_mean(task.domain, names)}"
                )
        for domain in self.domains:
            for method in self.methods() if domain.continues is not None else ():
                if method.needs.domain_id_test:
                    raise ValueError(
                        f"domain '{domain.name}' continues '{domain.continues}', but method '{method.label}' evaluates "
                        "a text with parameters of that text's domain, which would not be trained further: remove "
                        "`continues`"
                    )
        if self.evaluation.tasks_every is not None and all(TASK_KINDS[task.kind].fine_tunes for task in self.end_tasks):
            raise ValueError(
                "`evaluation.tasks_every` evaluates end tasks during a stage, but `end_tasks` has none without "
                "fine-tuning (those of kind classification are fine-tuned); leave it out"
            )
        return self

    @model_validator(mode="after")
    def _can_stop(self) -> Recipe:
        if self.stop is None:
            return self
        if self.evaluation.every is not None:
            raise ValueError("`stop.every` scores held-out text during a stage: remove `evaluation.every`")
        if self.stop.general is not None and (self.general is None or not self.general.validation):
            raise ValueError("`stop.general` needs held-out general text: set `general`, with `general.validation`")
        bounded = self.stop.general is not None or self.stop.earlier is not None
        if self.stop.then != "end" and not bounded:
            raise ValueError(f"`stop.then: {self.stop.then}` needs a bound: set `stop.general` or `stop.earlier`")
        for method in self.methods() if bounded else ():
            if not method.tested_as_saved:
                raise ValueError(
                    f"`stop.general` and `stop.earlier` evaluate the model in training, but method '{method.label}' "
                    "is evaluated with more than that model; remove the bounds"
                )
        for domain in self.domains:
            schedule = self.train_of(domain.name).get("lr_scheduler_type")
            if self.stop.then == "lower" and schedule in MEASURING:
                raise ValueError(
                    f"`stop.then: lower` lowers the learning rate of the schedule, but `lr_scheduler_type: {schedule}` "
                    "sets the rate by a measured score; choose another schedule"
                )
        if self.stop.general is None and not any(domain.validation for domain in self.domains):
            raise ValueError("`stop` needs held-out text: set `validation` of a domain")
        return self

    @property
    def tasks(self) -> tuple[TaskConfig, ...]:
        """All tasks on which checkpoints are evaluated: `end_tasks`, and those that `evaluation` adds for every one."""
        return (*self.end_tasks, *self.evaluation.always())

    @property
    def scored_every(self) -> int | None:
        """Steps between two scores of held-out text during a stage (`evaluation.every`, `stop.every`), if any."""
        return self.evaluation.every if self.stop is None else self.stop.every

    def train_of(self, domain: str) -> dict[str, Any]:
        """Return the training arguments of a domain: `train`, overridden by the domain's own."""
        return train_of(self.train, next(known.train for known in self.domains if known.name == domain))

    def __eq__(self, other: object) -> bool:
        """Return whether every key has the same value, wherever the recipe was read from."""
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    def methods(self) -> list[Method]:
        """Return new method objects, in the order of the recipe."""
        return [build(spec) for spec in self.method]

    def folder(self) -> Path:
        """Return the run folder."""
        return Path(self.run.folder or f"runs/{self.run.name}")

    def changed(self, **groups: Any) -> Recipe:
        """Return a validated copy in which top-level groups are replaced."""
        return parse({**self.model_dump(mode="json"), **groups})

    def to_yaml(self) -> str:
        """Return the whole recipe as YAML, defaults included, which runs again as it is, with later versions too."""
        return written(self.model_dump(mode="json"))


def load(path: Path | str, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe and apply ``key=value`` overrides.

    Args:
        path: the YAML file.
        overrides: dotted keys with YAML values: ``train.max_steps=100``, ``domains.0.path=a.txt``, ``method=das``.

    Raises:
        RecipeError: the file is missing or not valid YAML, or a key or value is not allowed.
    """
    path = home(path, "RECIPE")
    if path.is_dir() and (path / "recipe.yaml").is_file():
        path = path / "recipe.yaml"
    raw = read_yaml(path)
    texts = overridden(raw, overrides)
    try:
        return _with_texts(raw, texts)
    except EverlearnError:
        plugins.check_record(_plugins_beside(path), path.parent)  # a missing plugin explains an unknown name
        raise


def _with_texts(raw: dict[str, Any], texts: dict[Place, str]) -> Recipe:
    """Validate a recipe; where it must hold text, take the text of an override instead of its value in YAML."""
    while True:
        try:
            return _recipe(raw)
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            if error.errors()[0]["type"] != "string_type" or place not in texts:
                raise RecipeError(wrong_key(Recipe, error)) from None
            put_at(raw, place, texts.pop(place))


def _plugins_beside(path: Path) -> Any:
    """Return the plugins that a run recorded beside its recipe; None if there is no such record."""
    environment = path.parent / "environment.json"
    try:
        recorded = files.read_json(environment) if environment.is_file() else None
    except RunError:  # damaged, or of another program
        return None
    return recorded.get("plugins") if isinstance(recorded, Mapping) else None


def parse(raw: Mapping[str, Any]) -> Recipe:
    """Validate a recipe from plain data.

    Raises:
        RecipeError: names the first wrong key, its value and what is allowed.
    """
    try:
        return _recipe(raw)
    except ValidationError as error:
        raise RecipeError(wrong_key(Recipe, error)) from None


def parse_domain(raw: Mapping[str, Any]) -> Domain:
    """Validate one domain from plain data, as :func:`parse` does for those of a recipe.

    Raises:
        RecipeError: names the first wrong key, its value and what is allowed.
    """
    try:
        return Domain.model_validate(_numbers(dict(raw)))
    except ValidationError as error:
        raise RecipeError(wrong_key(Domain, error, ("domains", str(raw.get("name", 0))))) from None


def _recipe(raw: Mapping[str, Any]) -> Recipe:
    modules = raw.get("plugins") or ()
    if isinstance(modules, list | tuple) and all(isinstance(name, str) for name in modules):
        plugins.bring(modules, "plugins")
    return Recipe.model_validate(_local(dict(raw)))


def save(recipe: Recipe, path: Path) -> None:
    """Write a recipe atomically, and list it in the seal of its folder."""
    files.write_text(path, recipe.to_yaml(), sealed=True)


def _local(raw: dict[str, Any]) -> dict[str, Any]:
    """Make local paths absolute, so that a run can be resumed from any folder; replace suite paths by their files."""
    _check_plain(raw)
    raw = _numbers(raw)

    def place(item: Any, keys: tuple[str, ...], at: str, make: Callable[[str, str], str] = located) -> Any:
        if not isinstance(item, dict):
            return item
        if item.get("sources") and item.get("path") == "":  # as in a saved recipe
            item = {key: value for key, value in item.items() if key != "path"}
        placed = {
            key: make(value, f"{at}.{key}") if key in keys and isinstance(value, str) else value
            for key, value in item.items()
        }
        if isinstance(placed.get("sources"), list | tuple):
            placed["sources"] = [place(each, keys, f"{at}.sources.{n}") for n, each in enumerate(placed["sources"])]
        return placed

    for group in ("model", "general"):
        if isinstance(raw.get(group), str):
            raw[group] = {"path": raw[group]}
    for group, keys in (("model", ("path", "tokenizer")), ("general", ("path", "validation"))):
        if group in raw:
            raw[group] = place(raw[group], keys, group)
        if group == "model" and any(is_address(value) for _, value in _leaves(raw)):
            check_objective(raw.get("model"), raw.get("objective"))
    for group, key in (("run", "folder"), ("data", "cache")):
        if group in raw:
            raw[group] = place(raw[group], (key,), group, lambda path, where: str(home(path, where)))
    if isinstance(raw.get("domains"), list):
        raw["domains"] = [
            place(_numbers(item) if isinstance(item, dict) else item, ("path", "validation"), f"domains.{number}")
            for number, item in enumerate(raw["domains"])
        ]
    if isinstance(raw.get("evaluation"), dict):
        inside = {"lm_eval": ("include_path",), "chat": ChatTask.paths}
        raw["evaluation"] = {
            key: place(value, inside[key], f"evaluation.{key}") if key in inside else value
            for key, value in raw["evaluation"].items()
        }
    if isinstance(raw.get("end_tasks"), list):
        raw["end_tasks"] = [place(item, _files_of(item), f"end_tasks.{n}") for n, item in enumerate(raw["end_tasks"])]
    return raw


def _files_of(task: Any) -> tuple[str, ...]:
    """Return the keys of an end task whose values are paths; none where there is no such kind."""
    kind = kind_of(task) if isinstance(task, dict) else None
    return CONFIGS[kind].paths if isinstance(kind, str) and kind in CONFIGS else ()


def _check_plain(raw: Mapping[str, Any]) -> None:
    """Refuse text with control characters, and numbers that are not finite or far too long."""
    for key, value in _leaves(raw):
        if isinstance(value, int) and abs(value) >= 10**DIGITS:
            raise RecipeError(f"`{key}` is a number of more than {DIGITS} digits.")
        if "train" in key.split("."):  # is checked apart
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise RecipeError(f"`{key}` is {value}: numbers must be finite.")
        if isinstance(value, str) and (odd := _UNUSABLE.search(value)):
            raise RecipeError(
                f"`{key}` holds the character {odd[0]!a}, which cannot be printed: {value[:60]!a}. Remove it."
            )


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is neither a mapping nor a list, with the path of its key."""
    if isinstance(value, Mapping | list | tuple):
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _numbers(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping with the numbers of its `train` group parsed."""
    if not isinstance(raw.get("train"), dict):
        return raw
    return raw | {"train": {name: _number(value) for name, value in raw["train"].items()}}


def _number(value: Any) -> Any:
    """Parse 5e-5, which other YAML 1.1 readers take for a string, as TrainingArguments needs a number."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value
