"""Find how runs differ besides their methods, from their resolved recipes and the training that took place.

There are three kinds of differences:

* *ground*: model, text and scored examples. Runs that differ here cannot be ranked.
* *spent*: order of domains, steps and tokens. Runs that differ here can be ranked, but not compared as equals.
* *configuration*: every other setting, such as the learning rate. Like a method's strength it is part of what is
  compared, and is named in the run's label.

Names, paths, seeds and logging intervals change no result and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from everlearn import wording
from everlearn.comparison.runs import Run
from everlearn.config.overrides import train_of
from everlearn.config.public_paths import still_different
from everlearn.config.reading import read_saved
from everlearn.evaluation.estimate import number

Values = dict[str, tuple[str, ...]]
"""Difference in words → each run's value."""
UNKNOWN = "default"
"""Shown for a setting that a recipe leaves out, if its default value is unknown."""
NONE = "none"
_LISTS = ("domains", "end_tasks")
"""Keys whose value is a list of items with names."""
_ORDER, _BASE = "order of domains", "base"
_WITHOUT_EFFECT = (
    "method", "run.", "report.", "data.cache", "data.max_", "evaluation.end_tasks",
    "evaluation.alone", "evaluation.batch_size", "evaluation.columns", "evaluation.every", "evaluation.samples",
    "evaluation.tasks_every", "evaluation.lm_eval", "evaluation.chat", "model.trust_remote_code",
)  # fmt: skip
"""Prefixes of keys that do not count as a difference: methods and seed, and keys that change no measured number."""
_NO_TRAINING = (
    "save_", "logging_", "log_", "report_to", "dataloader_", "disable_tqdm", "run_name", "output_dir", "resume_",
    "use_cpu", "restore_callback_states", "ddp_", "activation_checkpointing", "gradient_checkpointing", "eval_", "do_",
    "include_", "hub_", "push_to_hub", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
    "prediction_loss_only", "per_device_eval_batch_size", "batch_eval_metrics", "torch_empty_cache_steps",
    "skip_memory_metrics", "project", "trackio_",
)  # fmt: skip
"""Prefixes of training arguments that change no weight."""
_KINDS_OF_WORK = ("steps", "tokens")
"""Keys of a stage's cost that are compared between runs."""
_AMOUNTS = ("max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps")
"""Training arguments that set steps and tokens; steps and tokens themselves are compared if they are known."""
_CONFIGURATION = ("optimizer", "model.attn_implementation", "model.frozen", "model.quantization_config")
"""Prefixes of keys outside `train` that belong to a run's configuration."""
_IN_DIGESTS = ("data.block_size", "model.tokenizer")
"""Keys that change the rows of every text. If the digests of the rows are equal, so are the effects of these keys."""
_LABELS = ("name", "group", "train")
"""Keys of a domain that do not change its text."""
_CLOSE = 0.02
"""Tolerated relative difference of tokens, since a mixture of sources is exact only to one block."""


@dataclass(frozen=True)
class Differences:
    """How runs differ besides method and seed: for each kind, a description of the difference and each run's value."""

    ground: Values = field(default_factory=dict)
    spent: Values = field(default_factory=dict)
    configuration: Values = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything differs."""
        return bool(self.ground or self.spent or self.configuration)


@dataclass(frozen=True)
class Effective:
    """The effective settings of a run.

    Attributes:
        ground: key → value, for model, objective, data and scoring.
        domains: domain → key → value, for its text.
        train: domain → training argument → value.
        configuration: key → value, for settings outside ``train``.
        general: key → value, for the general text; empty if there is none.
    """

    ground: Mapping[str, Any]
    domains: Mapping[str, Mapping[str, Any]]
    train: Mapping[str, Mapping[str, Any]]
    configuration: Mapping[str, Any]
    general: Mapping[str, Any]


def unlike(runs: Sequence[Run]) -> Differences:
    """Return how these runs differ besides method and seed."""
    settled = all(run.settled for run in runs)
    each = [_effective(run, settled) for run in runs]
    known = all(run.recipe for run in runs)
    shared = [name for name in runs[0].domains if all(name in run.domains for run in runs)]
    done = [_work(run) for run in runs]
    ground = _named(_keyed([one.ground for one in each], known))
    if _same_base(runs):
        ground.pop("model", None)
    if shared and all(_same_text(runs, name, trained=True) for name in shared):
        for key in _IN_DIGESTS:
            ground.pop(key, None)
    if known:
        ground |= _named(_texts(runs, each, shared)) | _named(_end_tasks(each))
    counted = {name for name in shared if all((kind, name) in one for kind in _KINDS_OF_WORK for one in done)}
    train = _training(each, shared, counted) if known else ({}, {})
    spent = _order(runs) | (_general(each) if known else {}) | _done(done) | train[0]
    configuration = _named(_keyed([one.configuration for one in each], known)) | train[1]
    return Differences(
        *({key: still_different(v) for key, v in each.items()} for each in (ground, spent, configuration))
    )


def repeats(a: Run, b: Run, any_order: bool = False) -> bool:
    """Return whether two runs differ only in their seeds.

    Args:
        a: a run.
        b: another run.
        any_order: whether the order of the domains may differ too.
    """
    if a.results.get("methods") != b.results.get("methods") or set(a.general) != set(b.general):
        return False
    if a.domains != b.domains and not (any_order and set(a.domains) == set(b.domains)):
        return False
    apart = unlike([a, b])
    return not apart.ground and not apart.configuration and apart.spent.keys() <= {_ORDER}


def _effective(run: Run, settled: bool) -> Effective:
    """Return the settings that were in effect in a run: those of its recipe, with training arguments of each domain.

    If `settled`, they have the values that the model decided, without those that have no effect.
    """
    kept = _of_recipe(run.recipe or "")
    unsaid = {
        key: str(run.results[key])
        for key in ("model", "objective")
        if run.results.get(key) is not None and not {key, f"{key}.path"} & kept.ground.keys()
    }
    values = run.settled if settled else {}
    ground = {key: value for key, value in {**kept.ground, **unsaid}.items() if key not in values}
    return replace(kept, ground=ground | {key: value for key, value in values.items() if value is not None})


def _work(run: Run) -> dict[tuple[str, str], float]:
    """Return the amounts of training by steps or tokens and by learnt domain."""
    amounts = {}
    for stage in run.cost.get("stages") or []:
        for key in _KINDS_OF_WORK:
            value = number(stage.get(key))
            if value is not None:
                amounts[key, str(stage.get("domain"))] = value
    return amounts


def _done(done: Sequence[Mapping[tuple[str, str], float]]) -> Values:
    """Return differences in steps and tokens, over the domains for which all runs report them."""
    apart: dict[str, dict[str, tuple[str, ...]]] = {}
    shared = [at for at in done[0] if all(at in one for one in done)]
    for kind, domain in shared:
        numbers = [one[kind, domain] for one in done]
        if max(numbers) - min(numbers) > _CLOSE * max(numbers):
            apart.setdefault(kind, {})[domain] = tuple(f"{value:,.0f}" for value in numbers)
    names = {domain for _, domain in shared}
    each = " on each domain" if len(names) > 1 else ""
    return {f"{key}{'' if ' on ' in key else each}": own for key, own in _over_domains(apart, names).items()}


def _order(runs: Sequence[Run]) -> Values:
    # A set of existing models has no domains, and thus no order.
    orders = tuple(", ".join(run.domains) or NONE for run in runs)
    return {_ORDER: orders} if len(set(orders)) > 1 else {}


def _training(each: Sequence[Effective], domains: Sequence[str], counted: set[str]) -> tuple[Values, Values]:
    """Return differing training arguments: those that set steps and tokens, and the others.

    Args:
        each: effective settings of every run.
        domains: domains that all runs have.
        counted: domains whose steps and tokens are known, and are compared instead.
    """
    differing: tuple[dict[str, dict[str, tuple[str, ...]]], ...] = ({}, {})
    for domain in domains:
        sides = [one.train.get(domain, {}) for one in each]
        for key in dict.fromkeys(key for side in sides for key in side):
            if key.startswith(_NO_TRAINING) or (key in _AMOUNTS and domain in counted):
                continue
            if key == "num_train_epochs" and all((number(side.get("max_steps")) or 0) > 0 for side in sides):
                continue  # `max_steps` takes precedence
            values = [_value(side[key]) if key in side else None for side in sides]
            if None in values and len(set(values)) > 1:
                values = [_default(key) if value is None else value for value in values]
            if len(set(values)) > 1:
                words = tuple(value or UNKNOWN for value in values)
                differing[key not in _AMOUNTS].setdefault(key, {})[domain] = words
    return _over_domains(differing[0], set(domains)), _over_domains(differing[1], set(domains))


def _over_domains(apart: Mapping[str, Mapping[str, tuple[str, ...]]], domains: set[str]) -> Values:
    """Merge a difference that is the same on several domains into one line."""
    merged: Values = {}
    for key, values in apart.items():
        by_values: dict[tuple[str, ...], list[str]] = {}
        for domain, own in values.items():
            by_values.setdefault(own, []).append(domain)
        for own, names in by_values.items():
            if len(names) == len(domains):
                merged[key] = own
            else:
                merged[
                    f"{key} on {names[0]}" if len(names) == 1 else f"{key} on {wording.count(len(names), 'domain')}"
                ] = own
    return merged


def _texts(runs: Sequence[Run], each: Sequence[Effective], shared: Sequence[str]) -> Values:
    """Return differences in the text of domains and the general set, by digests if known, else by recipe keys."""
    differing: Values = {}
    for name in shared:
        if not _same_text(runs, name, trained=True):
            sides = [one.domains.get(name, {}) for one in each]
            differing |= {f"domains.{name}.{key}": values for key, values in _keyed(sides, True).items()}
    named = all(run.general for run in runs)
    same = named and _same_text(runs, runs[0].general[0], trained=False)
    if all(one.general for one in each) and not same:
        sides = [one.general for one in each]
        differing |= {f"general.{key}": values for key, values in _keyed(sides, True).items()}
    return differing


def _general(each: Sequence[Effective]) -> Values:
    """Return the difference if only some runs have a general text, which methods may use."""
    if all(one.general for one in each) or not any(one.general for one in each):
        return {}
    return {"general text": tuple(_value(one.general.get("path", "given")) if one.general else NONE for one in each)}


def _same_text(runs: Sequence[Run], name: str, trained: bool) -> bool:
    """Return whether held-out and training text are known to be the same, wherever they were read from."""
    marks = [(run.held_out_digest(name), run.training_digest(name) if trained else "") for run in runs]
    return None not in marks[0] and len(set(marks)) == 1


def _same_base(runs: Sequence[Run]) -> bool:
    """Return whether the base models have identical scores on every held-out text, so are copies of one model."""
    rows = []
    for run in runs:
        matrix = run.matrices.get("bits_per_byte")
        if matrix is None or matrix.rows[:1] != [_BASE]:
            return False
        rows.append({column: matrix.cell(0, column).value for column in matrix.columns})
    return bool(rows[0]) and all(None not in row.values() and row == rows[0] for row in rows)


def _end_tasks(each: Sequence[Effective]) -> Values:
    """Return differences between end tasks of the same name; tasks that only some runs have are not compared."""
    differing: Values = {}
    sides = [one.ground.get("end_tasks") or {} for one in each]
    for name in sides[0]:
        if all(name in side for side in sides):
            keys = _keyed([side[name] for side in sides], True)
            differing |= {f"end_tasks.{name}.{key}": values for key, values in keys.items()}
    return differing


def _keyed(sides: Sequence[Mapping[str, Any]], known: bool) -> Values:
    """Return keys whose values differ; if a recipe is missing, keys that a run lacks are skipped as unknown."""
    differing: Values = {}
    for key in dict.fromkeys(key for side in sides for key in side):
        if key == "end_tasks" or (not known and any(key not in side for side in sides)):
            continue
        values = tuple(_value(side[key]) if key in side else UNKNOWN for side in sides)
        if len(set(values)) > 1:
            differing[key] = values
    return differing


def _named(values: Values) -> Values:
    """Rename keys of a recipe for readers: ``domains.law.path`` becomes ``path of law``."""
    renamed: Values = {}
    for key, own in values.items():
        group, _, inside = key.partition(".")
        if group in _LISTS and "." in inside:
            name, _, inside = inside.rpartition(".")
            renamed[f"{inside} of {name}"] = own
        elif group == "general" and inside:
            renamed[f"{inside} of the general text"] = own
        else:
            renamed["model" if key == "model.path" else key] = own
    return renamed


def _value(value: Any) -> str:
    """Write a value for a table; equal numbers are written alike."""
    if value is None or value in ({}, [], ()):
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        try:
            return f"{float(value):g}"  # YAML reads 1e-4 as text
        except ValueError:
            return value
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _default(argument: str) -> str | None:
    """Return the default of a training argument; None if this version of transformers does not have it."""
    from everlearn.config.arguments import default_of  # imports transformers: only if needed

    default = default_of(argument)
    return None if default is None else _value(default[0])


@lru_cache(maxsize=512)
def _of_recipe(recipe: str) -> Effective:
    raw = read_saved(recipe)
    raw = dict(raw) if isinstance(raw, Mapping) else {}
    train = raw.pop("train", None)
    train = dict(train) if isinstance(train, Mapping) else {}
    domains, tasks = (_by_name(raw.pop(key, None)) for key in _LISTS)
    general = raw.pop("general", None)
    raw.pop("method", None)
    flat = {key: value for key, value in flattened(raw).items() if not key.startswith(_WITHOUT_EFFECT)}
    ground: dict[str, Any] = {key: value for key, value in flat.items() if not key.startswith(_CONFIGURATION)}
    if not tasks:
        ground.pop("evaluation.end_task_seeds", None)
    else:
        ground["end_tasks"] = {name: flattened({k: v for k, v in one.items() if k != "name"})
                               for name, one in tasks.items()}  # fmt: skip
    return Effective(
        ground,
        {name: _text_of(one) for name, one in domains.items()},
        {name: train_of(train, one.get("train") or {}) for name, one in domains.items()},
        {key: value for key, value in flat.items() if key.startswith(_CONFIGURATION)},
        _text_of(general) if isinstance(general, Mapping) else {},
    )


def _text_of(domain: Mapping[str, Any]) -> dict[str, Any]:
    return flattened({key: value for key, value in domain.items() if key not in _LABELS})


def _by_name(listed: Any) -> dict[str, Mapping[str, Any]]:
    items: Iterable[Any] = listed if isinstance(listed, list) else ()
    return {str(one.get("name")): one for one in items if isinstance(one, Mapping)}


def flattened(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings and lists of mappings as dotted keys, leaving out None."""
    flat: dict[str, Any] = {}
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            flat |= flattened(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for position, item in enumerate(value):
            name = item.get("name", position) if isinstance(item, Mapping) else position
            flat |= flattened(item, f"{prefix}.{name}")
    elif value is not None and value not in ({}, []):
        flat[prefix] = value
    return flat
