"""``TrainingArguments`` from a recipe, under their own names; wrong values and arguments without effect are refused."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import logging
import math
import typing
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers import TrainingArguments
from transformers.debug_utils import DebugOption
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.utils.logging import log_levels

from everlearn.errors import RecipeError, did_you_mean, first_line

FORCED: dict[str, Any] = {
    "ignore_data_skip": True,  # our loader saves its position; skipping would read everything again
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,  # costs a device sync per step, and hides the values on which training stops
    "label_names": ["labels"],
    "disable_tqdm": True,  # the learner shows one bar for the whole stream
}
MEASURING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow a measured score instead of the step."""
DEFAULTS: dict[str, Any] = {"save_total_limit": 2, "logging_steps": 10, "save_steps": 500, "report_to": "none"}
"""Defaults that differ from those of a single training, for a run of many stages."""
_EVALUATION = "everlearn evaluates between domains; see `evaluation`"
_ROWS = "rows are packed beforehand, of one length, in an order that the seed decides"
_HUB = "a finished stage goes to the hub with `everlearn export STAGE FOLDER --push HUB_ID`"
REFUSED = {
    "output_dir": "the run folder decides it; set `run.folder`",
    "seed": "set `run.seed`",
    "data_seed": "set `run.seed`",
    **dict.fromkeys(
        (
            "do_train",
            "do_eval",
            "do_predict",
            "eval_strategy",
            "eval_steps",
            "eval_delay",
            "eval_on_start",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "eval_accumulation_steps",
            "per_device_eval_batch_size",
            "bf16_full_eval",
            "fp16_full_eval",
            "include_for_metrics",
            "batch_eval_metrics",
            "prediction_loss_only",
            "metric_for_best_model",
            "greater_is_better",
            "load_best_model_at_end",
        ),
        _EVALUATION,
    ),
    **dict.fromkeys(
        (
            "dataloader_drop_last",
            "dataloader_num_workers",
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
            "train_sampling_strategy",
            "length_column_name",
            "group_by_length",
        ),
        _ROWS,
    ),
    **dict.fromkeys(
        (
            "push_to_hub",
            "hub_model_id",
            "hub_token",
            "hub_private_repo",
            "hub_strategy",
            "hub_always_push",
            "hub_revision",
        ),
        _HUB,
    ),
    "average_tokens_across_devices": "every token counts the same on every device",
    "label_smoothing_factor": "the objectives compute their own loss, which has no smoothing",
    "use_liger_kernel": "it replaces the loss, which everlearn computes only where there is a label",
    "auto_find_batch_size": "another batch size would change what is compared",
    "resume_from_checkpoint": "use `everlearn resume RUN`",
    "enable_jit_checkpoint": "a signal ends a run after its step anyway, and `everlearn resume` continues it",
    "save_only_model": "a run must be able to resume from a checkpoint",
    "deepspeed": "methods act on gradients and weights that PyTorch holds; use `fsdp`",
    "parallelism_config": "a row of a batch stays on one device; use `fsdp`",
    **dict.fromkeys(FORCED, "everlearn sets it"),
}
_DEVICES = {"cuda", "device", "gpu", "no_cuda", "no_gpu", "use_cuda", "use_gpu", "use_mps", "use_mps_device"}
_DEVICE = " A GPU is used wherever there is one; `use_cpu: true` keeps to the CPU."
COMPILING = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
"""Arguments that everlearn carries out itself (:mod:`everlearn.run.compiled_layers`): the Trainer would compile the
loss with the model, and keep them in the environment of the process."""
RUN_WIDE = {
    *("bf16", "fp16", "tf32", "use_cpu", "fsdp", "fsdp_config", "accelerator_config", "full_determinism"),
    *("ddp_backend", "ddp_timeout", "report_to", "run_name", "trackio_space_id"),
}
"""Arguments that set up the processes, and so cannot differ between domains."""
_WORDS = {
    "report_to": {*INTEGRATION_TO_CALLBACK, "all", "none"},
    "debug": {option.value for option in DebugOption},
    "log_level": {*log_levels, "passive"},
    "log_level_replica": {*log_levels, "passive"},
    "include_num_input_tokens_seen": {"all", "non_padding", "no"},
    "ddp_backend": {"nccl", "mpi", "ccl", "gloo", "hccl", "cncl", "mccl"},
}
"""Strings that an argument allows, alone or in a list, if its type does not say so."""
_TYPES = {"fsdp": bool | str | None}
"""Types of arguments that are typed as a string and documented as a boolean."""
_NOT_HERE = {("save_strategy", "best"): _EVALUATION}
"""Strings that an argument allows, but not in a recipe, and why."""
_FILES = ("accelerator_config", "fsdp_config")
"""A mapping, its JSON, or a file with it."""
ABOVE_0 = {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "learning_rate"),
    *("adam_epsilon", "save_steps", "logging_steps", "save_total_limit", "torch_empty_cache_steps"),
    *("ddp_timeout", "ddp_bucket_cap_mb", "max_steps"),
}
NOT_BELOW_0 = {"weight_decay", "max_grad_norm", "warmup_steps", "adam_beta1", "adam_beta2", "neftune_noise_alpha"}
BELOW_1 = {"adam_beta1", "adam_beta2"}
LARGEST = 2**31 - 1
ALSO = {"max_steps": -1}
"""Argument → a special value with which another argument (`num_train_epochs`) takes effect instead."""
INSTEAD = {"max_steps": "Leave it out to train for `train.num_train_epochs`."}
"""Argument → advice for the message if its number is too low."""
_NOTHING = (None, False, "no")


@functools.cache
def _fields() -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of every argument, by name."""
    hints = typing.get_type_hints(TrainingArguments)
    return {f.name: (hints[f.name], f.default) for f in dataclasses.fields(TrainingArguments) if f.init}


def default_of(name: str) -> tuple[Any] | None:
    """Return the default of an argument as a tuple of one item; None if there is no such argument."""
    if name not in _fields():
        return None
    default = DEFAULTS.get(name, _fields()[name][1])
    default = None if default is dataclasses.MISSING or default == ALSO.get(name) else default
    return (getattr(default, "value", default),)


def check_argument(name: str, value: Any, group: str = "train") -> None:
    """Refuse a name that is unknown or has no effect here, and a value of the wrong type or range.

    Args:
        name: name of the argument.
        value: its value.
        group: the group of the recipe that it is in.

    Raises:
        RecipeError: the message names the key and the value.
    """
    fields = _fields()
    if name in REFUSED:
        default = fields[name][1] if name in fields else None
        required = FORCED.get(name, default)
        harmless = value == required or (
            value in _NOTHING and str(getattr(required, "value", required)) in ("None", "no")
        )
        if not harmless:
            raise RecipeError(f"`{group}.{name}` cannot be set: {REFUSED[name]}.")
        return
    if name not in fields:
        hint = _DEVICE if name in _DEVICES else did_you_mean(name, set(fields) - set(REFUSED))
        raise RecipeError(f"`{group}.{name}` is not a name of TrainingArguments.{hint}")
    _check_plain(f"{group}.{name}", value)
    kind: Any = _TYPES.get(name, fields[name][0])
    _check_words(f"{group}.{name}", value, _words(name, kind))
    if name in _FILES and isinstance(value, str) and not value.startswith("{") and not Path(value).is_file():
        raise RecipeError(f"`{group}.{name}` is '{value}', and there is no such file. Write the mapping itself.")
    if set(typing.get_args(kind) or (kind,)) <= {bool, int, float, str, type(None)}:
        try:
            _checker(kind).validate_python(value)
        except ValidationError as error:
            raise RecipeError(f"`{group}.{name}`: {error.errors()[0]['msg']} (got {value!r}).") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_range(name, value, f"`{group}.{name}`")
    if why := _NOT_HERE.get((name, str(value))):
        raise RecipeError(f"`{group}.{name}: {value}` cannot be used: {why}.")


@functools.cache
def _checker(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(strict=True, allow_inf_nan=False))


def _words(name: str, kind: Any) -> set[str]:
    """Return the strings that an argument allows; empty if it is not limited to some."""
    enums = [each for each in typing.get_args(kind) if isinstance(each, type) and issubclass(each, enum.Enum)]
    return _WORDS.get(name) or {member.value for each in enums for member in each}


def _check_words(key: str, value: Any, words: set[str]) -> None:
    if not words or value in (None, True, False):
        return
    # `debug` is a string of words.
    for word in value.split() or [""] if isinstance(value, str) else value if isinstance(value, list) else [value]:
        word = getattr(word, "value", word)
        if str(word) not in words and word != "":
            raise RecipeError(f"`{key}` cannot be '{word}'.{did_you_mean(str(word), words)}")


def _check_plain(key: str, value: Any) -> None:
    """Refuse values that YAML and JSON cannot both represent, as the saved recipe must."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise RecipeError(f"`{key}` has the key {name!r}; keys are texts, in quotes where YAML reads more.")
            _check_plain(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _check_plain(f"{key}.{number}", inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"`{key}` must be a finite number (got {value!r}).")
    elif not isinstance(value, str | int | float | bool | enum.Enum | None):
        raise RecipeError(
            f"`{key}` must be a text, a number, true, false, null, a list or a mapping (got {value!r}). A date in "
            "quotes is a text."
        )


def _check_range(name: str, value: float, key: str) -> None:
    if value == ALSO.get(name):
        return
    words = None
    if name in ABOVE_0 and not value > 0:
        words = "must be above 0"
    elif name in NOT_BELOW_0 and not value >= 0:
        words = "must be 0 or more"
    elif name in BELOW_1 and not value < 1:
        words = "must be below 1"
    elif isinstance(value, int) and abs(value) > LARGEST:
        words = f"must be {LARGEST:,} or less"
    if words is not None:
        more = f" {INSTEAD[name]}" if name in INSTEAD and value <= 0 else ""
        raise RecipeError(f"{key} {words} (got {str(value)[:40]}).{more}")


_logged: set[str] = set()


def _only_once(record: logging.LogRecord) -> bool:
    """Drop a notice that was logged before: a plan or a run creates the same arguments several times."""
    message = record.getMessage()
    new = message not in _logged
    _logged.add(message)
    return new


def training_arguments(options: dict[str, Any], output_dir: Path, seed: int, steps: int = -1) -> TrainingArguments:
    """Create ``TrainingArguments`` from the ``train`` group of a recipe, whose names are used verbatim.

    Args:
        options: the group.
        output_dir: output folder of the stage.
        seed: seed of the stage.
        steps: number of steps of the stage; -1 leaves the number to the options.

    Raises:
        RecipeError: a name is unknown or has no effect here, or a value is not allowed.
    """
    for name, value in options.items():
        check_argument(name, value)
    user_options = {name: copy.deepcopy(value) for name, value in options.items() if name not in {*REFUSED, *COMPILING}}
    chosen: dict[str, Any] = DEFAULTS | user_options | FORCED
    if not torch.accelerator.is_available():
        chosen.setdefault("use_cpu", True)
        chosen.setdefault("dataloader_pin_memory", False)
    if steps > 0:
        chosen["max_steps"] = steps
    notices = logging.getLogger(TrainingArguments.__module__)
    notices.addFilter(_only_once)
    try:
        args = TrainingArguments(output_dir=str(output_dir), seed=seed, **chosen)
    except Exception as error:  # any exception here is caused by these options
        first = first_line(error).rstrip(".")
        raise RecipeError(f"`train` is not accepted by TrainingArguments: {first}.") from None
    finally:
        notices.removeFilter(_only_once)
    if args.fsdp and args.fsdp_plugin_args["fsdp_version"] != 2:
        raise RecipeError("`train.fsdp_config.version` must be 2: FSDP1 hides the weights that methods act on.")
    if args.n_gpu > 1:
        args._n_gpu = 1  # DataParallel would split the batches; several devices are used by several processes
    return args
