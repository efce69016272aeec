"""Build the Trainer of a stage, its optimizer and its schedule, without a training step.

Whatever transformers, accelerate, an optimizer's package or a tracker refuses is refused here, before anything is
written or measured.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.utils.checkpoint
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from everlearn.config.arguments import training_arguments
from everlearn.errors import EverlearnError, MethodError, ModelError, RecipeError, did_you_mean, first_line
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import overrides
from everlearn.model.adapted import is_adapted
from everlearn.model.sharding import shared_parameters
from everlearn.model.vocabulary_head import unwrap
from everlearn.run.compiled_layers import check_compiling
from everlearn.seeding import seeded
from everlearn.wording import count


def rehearse(options: dict[str, Any], model: PreTrainedModel, methods: Sequence[Method], seed: int) -> str:
    """Build the Trainer, optimizer and schedule of a stage, discard them, and describe them in a line.

    Args:
        options: the training arguments of the stage (`train`).
        model: any model of the run; it may be moved to the device.
        methods: the methods of the run.
        seed: the seed of the run.

    Raises:
        RecipeError: an option cannot be used here; the message names it.
        MethodError: a method does not work with this distribution over processes.
        ModelError: the model cannot be trained with this configuration.
    """
    # The Trainer makes its output folder and seeds the global random generators: neither must outlast this check.
    with tempfile.TemporaryDirectory() as place, seeded(seed, "rehearsal"):
        args = training_arguments(options, Path(place), seed, 1)
        for name in args.report_to or ():
            with refused({"report_to": name}):
                for callback in get_reporting_integration_callbacks([name]):
                    callback()
        check_processes(args)
        _check_activation_checkpointing(args, model)
        with refused({}):
            trainer = Trainer(model=model, args=args)
        check_distribution(trainer, methods)
        check_compiling(options, model, methods, trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
        with refused(options_set(args, "optim", "optim_args", "optim_target_modules")):
            optimizer = trainer.create_optimizer()
        with refused(options_set(args, "lr_scheduler_type", "lr_scheduler_kwargs")):
            trainer.create_scheduler(1, optimizer)
        optim = options_set(args, "optim")["optim"]
        return f"{optim}, learning rate {args.learning_rate:g}, {_precision(trainer)} on {args.device}"


def check_devices(cpu: bool) -> None:
    """Refuse more processes on this machine than it has accelerators.

    Raises:
        RecipeError: a process would have no accelerator of its own.
    """
    processes, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.accelerator.device_count()
    if not cpu and 0 < devices < processes:
        raise RecipeError(
            f"Each process needs an accelerator of its own, and this machine has {devices} for "
            f"{count(processes, 'process')}. Start no more than {devices} (`torchrun --nproc-per-node {devices}`), or "
            "set `train.use_cpu: true`."
        )


def check_processes(args: TrainingArguments) -> None:
    """Refuse FSDP in a single process, before a Trainer is created.

    Raises:
        RecipeError: `train.fsdp` is set and there is only one process.
    """
    if args.fsdp and args.world_size == 1:
        raise RecipeError("`train.fsdp` needs several processes, each with an accelerator; this is one.")


def check_distribution(trainer: Trainer, methods: Sequence[Method]) -> None:
    """Refuse a distribution over processes that the methods or the model cannot work with.

    Raises:
        RecipeError: FSDP without accelerators, FSDP1, or FSDP where the model cannot be divided.
        MethodError: a method does not work with DeepSpeed.
    """
    args: TrainingArguments = trainer.args
    model: nn.Module = trainer.model  # type: ignore[assignment]  # it has one
    masking = [m.label for m in methods if overrides(m, "mask") or overrides(m, "gradients")]
    if trainer.is_deepspeed_enabled and masking:
        raise MethodError(
            f"Method '{masking[0]}' masks parameters, which DeepSpeed (`train.deepspeed`) gives no access to. Use "
            "DDP or FSDP (`train.fsdp`)."
        )
    if trainer.is_deepspeed_enabled and (why := _why_full_model(methods)):
        raise MethodError(f"`train.deepspeed` cannot divide this run: {why}. Leave it out (plain DDP).")
    if args.fsdp and not trainer.is_fsdp_enabled:
        raise RecipeError("`train.fsdp` needs an accelerator for each process; accelerate would do plain DDP here.")
    if trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version != 2:
        raise RecipeError("FSDP1 hides the weights that methods act on: set `fsdp_version: 2` for accelerate.")
    if trainer.is_fsdp_enabled and (why := why_not_sharded(model, methods)):
        raise RecipeError(f"`train.fsdp` cannot divide this run: {why}. Leave it out (plain DDP).")


def why_not_sharded(model: nn.Module, methods: Sequence[Method]) -> str:
    """Return why FSDP2 cannot divide a model that these methods train; "" if it can."""
    if why := _why_full_model(methods):
        return why
    reading = [method.label for method in methods if method.needs.memory == "statistics"]
    if reading and (is_adapted(model) or any(method.adds_peft for method in methods)):
        return f"method '{reading[0]}' reads the weights that adapters change, W + s B A, which need all of A and B"
    shared, kind = shared_parameters(model), type(unwrap(model)).__name__
    return f"'{shared[0]}' of {kind} belongs to several modules, which form different groups" if shared else ""


def _why_full_model(methods: Sequence[Method]) -> str:
    """Return which method needs the whole model in each process; "" if none does."""
    writing = [method.label for method in methods if method.needs.writes]
    return f"method '{writing[0]}' writes text with the whole model in each step" if writing else ""


def _check_activation_checkpointing(args: TrainingArguments, model: PreTrainedModel) -> None:
    """Check `train.activation_checkpointing`, which the Trainer and torch would refuse only in the first step."""
    if not args.activation_checkpointing:
        return
    if not model.supports_gradient_checkpointing:
        raise ModelError(f"{type(model).__name__} does not support `train.activation_checkpointing`. Remove it.")
    known = [name for name in inspect.signature(torch.utils.checkpoint.checkpoint).parameters if name != "function"]
    for name in args.activation_checkpointing_kwargs or {}:
        if name not in known:
            raise RecipeError(
                f"`train.activation_checkpointing_kwargs` has no option '{name}'.{did_you_mean(name, known)}"
            )


def _precision(trainer: Trainer) -> str:
    mixed = trainer.accelerator.mixed_precision
    return "float32" if mixed == "no" else str(mixed)


def options_set(args: TrainingArguments, *names: str) -> dict[str, Any]:
    """Return the named arguments that are set, with enums as their values."""
    values = {name: getattr(args, name) for name in names}
    return {name: getattr(value, "value", value) for name, value in values.items() if value}


@contextlib.contextmanager
def refused(options: Mapping[str, Any]) -> Iterator[None]:
    """Turn any exception that libraries raise about these options into a `RecipeError` with its first line."""
    try:
        yield
    except EverlearnError:
        raise
    except Exception as error:
        what = ", ".join(f"`train.{name}: {value}`" for name, value in options.items()) or "`train`"
        raise RecipeError(f"{what} cannot be used here: {first_line(error).rstrip('.')}.") from error
