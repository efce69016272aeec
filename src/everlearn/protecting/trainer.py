"""Methods in a ``transformers.Trainer``, with the same training step as everlearn's own trainer."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import datasets
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, get_last_checkpoint

from everlearn.errors import MethodError, RunError
from everlearn.methods.base import Method
from everlearn.methods.engine.processes import loss_scale
from everlearn.methods.engine.protection import overrides
from everlearn.model.sharding import Blueprint, refill
from everlearn.model.vocabulary_head import unwrap
from everlearn.protecting.domain import ProtectedDomain, scaled_sum
from everlearn.protecting.held_out import HeldOutTexts, OneText, held_out_texts
from everlearn.protecting.report import ProtectionReport
from everlearn.protecting.stopping import EVERY, Bounds, StopWhenForgetting, check_stoppable, stop_options
from everlearn.run.dry_run import why_not_sharded
from everlearn.run.outweighing_losses import outweighing_losses
from everlearn.run.trainer import ADDED

_BYPASSED = (
    "The methods had no part in this step: the trainer did not come by `{}`, which is set on the trainer itself, or is "
    "not called. Override it in a subclass, before `protect`; a `training_step` of your own calls `self.compute_loss`."
)
FOLDER = "everlearn"
"""Folder of the methods' memory inside a checkpoint."""

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


class Protected(_Base):
    """A mixin that :func:`protect_trainer` adds to the class of a Trainer."""

    protected: ProtectedDomain
    _computing = _beside = _acted = False
    _parts: dict[str, Tensor]
    _passes = 0
    _added: Tensor | None = None
    stopping: StopWhenForgetting | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Begin the domain, train as before, end the domain, and write the memory.

        Raises:
            RunError: the domain of the trainer has begun already.
        """
        if self.protected.begun:
            raise RunError(
                "This trainer has begun its domain already. For the next domain, or to go on after an interruption "
                "(`resume_from_checkpoint`), create the model and the trainer again and `protect` it."
            )
        if resume_from_checkpoint is True:
            folder = str(self.args.output_dir)
            resume_from_checkpoint = get_last_checkpoint(folder) if Path(folder).is_dir() else None
            if resume_from_checkpoint is None:
                raise RunError(f"{folder} has no checkpoint to resume from. Leave `resume_from_checkpoint` out.")
        if self.is_fsdp_enabled:  # the Trainer moves the model when it shards it, and methods measure before
            self.protected.stage.model.to(self.args.device)
            self.protected.stage.sharded = True
        own: Any = self.train_dataset
        checkpoint: Any = resume_from_checkpoint or None
        result: Any = TrainOutput(0, math.nan, {})  # of a training that had come to its end when it was interrupted
        if self.stopping is not None:
            checkpoint = self.stopping.begin(checkpoint)
        try:
            while True:
                if checkpoint:
                    self.protected.load_state(Path(checkpoint) / FOLDER)
                self.train_dataset = self.protected.begin()
                blueprint = Blueprint(self.protected.stage.model) if self.is_fsdp_enabled else None
                if self.stopping is not None and self.stopping.guard.end is not None:  # it is decided where it ends
                    self.stopping.load(checkpoint)
                    break
                result = super().train(checkpoint, *args, **kwargs)
                if self.stopping is None:
                    break
                self.stopping.training_ended()
                if not self.stopping.guard.taken_back:
                    break
                checkpoint = self.stopping.go_back()
            best = Path(self.state.best_model_checkpoint or "")
            if self.args.load_best_model_at_end and (best / FOLDER).is_dir():  # the Trainer has loaded its weights
                self.protected.load_state(best / FOLDER)
        except BaseException:
            self.protected.abandon()
            raise
        finally:
            self.train_dataset = own
        events = [] if self.stopping is None else list(self.stopping.guard.state.notes)
        events += outweighing_losses(self.state.log_history, self.protected.protection.methods)
        self.protected.finish(self.is_world_process_zero(), events, blueprint)
        if blueprint is not None:  # methods may end with other weights, and the Trainer saves its own model
            refill(unwrap(cast(nn.Module, self.model)), self.protected.stage.model)
        self.accelerator.wait_for_everyone()
        if self.stopping is not None:
            self.stopping.clean_up()
        if numbers := self.protected.report.numbers():
            self.log(numbers)
        if self.is_world_process_zero():
            print(self.protected.report)  # as the Trainer's own callbacks print its logs
        return result

    def protection_report(self) -> ProtectionReport:
        """Return the report of the protected training: print it, or use its ``to_dict()``.

        Raises:
            RunError: the training has not ended.
        """
        return self.protected.report

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward; at the accumulation boundary the methods change the gradients, before clipping.

        Returns:
            The loss of the trainer without the losses of the methods, which the Trainer sums for its log.
        """
        self._computing, self._beside, self._added = True, False, None
        try:
            loss = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._computing = False
        if not self._beside:
            raise RunError(_BYPASSED.format("compute_loss"))
        if self.accelerator.sync_gradients:
            self.protected.protection.after_backward(self.accelerator.backward, loss_scale(self.accelerator))
            self._acted = True
        # By now the loss of a step has been divided among its passes, either by the Trainer or by the model.
        passes = self.current_gradient_accumulation_steps
        return loss if self._added is None else loss - (self._added / passes).to(loss.dtype)

    def before_update(self) -> None:
        """Run the hooks of the methods right before the step of the optimizer."""
        if not self._acted:
            raise RunError(_BYPASSED.format("training_step"))
        self._acted = False
        self.protected.protection.before_update()

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of the trainer; during training, plus the losses of the methods, each counted once a step."""
        options = {"return_outputs": return_outputs, "num_items_in_batch": num_items_in_batch}
        if not self._computing:
            return super().compute_loss(model, inputs, **options)
        self._beside = True
        batch = self.protected.read(inputs)
        compute: Callable[..., Any] = super().compute_loss
        result, extra = self.protected.beside(model, batch, lambda: compute(model, inputs, **options))
        loss, rest = (result[0], result[1:]) if return_outputs else (result, ())
        divided = self.loss_is_scaled_for_ga
        if divided is None:
            divided = (
                self.model_accepts_loss_kwargs and num_items_in_batch is not None
            ) or self.compute_loss_func is not None
        # Divide here what the Trainer does not divide later: the loss of a step is the mean over its passes.
        added = scaled_sum(extra, loss)
        loss = loss + added / (self.current_gradient_accumulation_steps if divided else 1)
        if extra:
            self._added = added.detach() + (0 if self._added is None else self._added)
        self._passes += 1
        for name, value in extra.items():
            self._parts[name] = self._parts.get(name, torch.zeros((), device=value.device)) + value.detach()
        return (loss, *rest) if return_outputs else loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Return the optimizer of the trainer, as changed by the methods."""
        optimizer: Any = self.optimizer
        if optimizer is None or optimizer is not self.protected.stage.optimizer:
            optimizer = self.protected.protection.optimizer(super().create_optimizer(*args, **kwargs))
            self.optimizer = optimizer
        return optimizer

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Return the learning-rate schedule of the trainer, as changed by the methods."""
        self.protected.stage.steps = num_training_steps  # also known now if the length was given in epochs
        scheduler: Any = self.lr_scheduler
        if scheduler is None:
            scheduler = self.protected.protection.schedule(
                super().create_scheduler(num_training_steps, *args, **kwargs)
            )
            self.lr_scheduler = scheduler
        return scheduler

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the losses of the methods too, averaged over passes since the last line; `loss` does not include them."""
        if "loss" in logs and self._passes:
            parts = {name: float(value) / self._passes for name, value in self._parts.items()}
            logs |= {ADDED: sum(parts.values()), **parts} if parts else {}
            self._parts, self._passes = {}, 0
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save the state of the methods too, inside the checkpoint."""
        if self.stopping is not None and not self.stopping.before_saving(self.state):
            return
        super()._save_checkpoint(model, trial)
        place = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self.protected.save_state(place / FOLDER, self.is_world_process_zero())
        if self.is_world_process_zero() and self.stopping is not None:
            self.stopping.saved(place)


class _StepHooks(TrainerCallback):
    """A callback that applies update masks in the step of the Trainer."""

    def __init__(self, trainer: Protected) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.before_update()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.protected.protection.after_update()


def protect_trainer(
    trainer: Trainer,
    methods: Sequence[str | Mapping[str, Any] | Method],
    memory: str | Path,
    domain: str | None = None,
    held_out: HeldOutTexts | None = None,
    general: OneText | None = None,
    stop: Bounds | None = None,
    stop_every: int = EVERY,
    stop_then: str = "end",
    stop_notify: str | Sequence[str] | None = None,
) -> Trainer:
    """Protect a Trainer in place; see :func:`everlearn.protect`."""
    if isinstance(trainer, Protected):
        raise MethodError("This trainer is protected already. List all methods in one call of `protect`.")
    _check_trainer(trainer)
    args = trainer.args
    dataset, collator = _examples(trainer)
    model = cast(nn.Module, trainer.model)
    texts = held_out_texts(held_out, model, getattr(trainer, "processing_class", None))

    def new_domain(methods: Sequence[str | Mapping[str, Any] | Method]) -> ProtectedDomain:
        protected = ProtectedDomain(
            unwrap(model),
            methods,
            memory,
            dataset=dataset,
            collator=collator,
            tokenizer=getattr(trainer, "processing_class", None),
            domain=domain,
            batch_size=args.per_device_train_batch_size,
            rows_per_step=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            steps=max(args.max_steps, 0),
            seed=args.seed,
            held_out=texts,
            general=general,
            flattening=f"Set `{'packing' if getattr(args, 'packing', False) else 'padding_free'}=False`",
            bf16=args.bf16,
        )
        if trainer.optimizer is not None or trainer.lr_scheduler is not None:
            _refuse_given_optimizer(trainer, protected)
        return protected

    unbegun = methods if stop is None else copy.deepcopy(methods)
    protected = new_domain(methods)
    if trainer.is_fsdp_enabled:
        check_sharded(trainer, protected.protection.methods, None if stop is None else stop_then)
    stopping = None
    options = stop_options(texts, protected.stage.domain, stop, stop_every, stop_then, stop_notify)
    if options is not None:
        check_stoppable(trainer, options, protected.written is not None)
        stopping = StopWhenForgetting(trainer, options, lambda: new_domain(copy.deepcopy(unbegun)))
    own: Any = type(trainer)
    trainer.__class__ = type(f"Protected{own.__name__}", (Protected, own), {})
    mixed: Any = trainer
    mixed.protected, mixed._parts = protected, {}
    if stopping is not None:
        mixed.stopping = stopping
        trainer.add_callback(stopping)
    # Before existing callbacks, so that they see masked updates in `on_optimizer_step`.
    trainer.callback_handler.callbacks.insert(0, _StepHooks(mixed))
    return trainer


def _check_trainer(trainer: Trainer) -> None:
    """Raise ``MethodError`` if no method can act in this trainer."""
    args = trainer.args
    if args.n_gpu > 1:
        raise MethodError(
            "`protect` does not work with several GPUs in one process (DataParallel), whose replicas no hook reaches. "
            "Start one process a GPU (`torchrun`), or show the process one GPU (CUDA_VISIBLE_DEVICES)."
        )
    if trainer.is_deepspeed_enabled:
        raise MethodError(
            "`protect` does not work under DeepSpeed, whose `backward` also steps, on copies and parts of the weights "
            "(ZeRO 1, 2 and 3), so that no method can act in between. Train with DDP, or use `everlearn run`, which "
            "works with FSDP2 (`train.fsdp`)."
        )
    if args.auto_find_batch_size:
        raise MethodError("`auto_find_batch_size` starts the training over, which would count steps twice. Unset it.")
    if trainer.train_dataset is None:
        raise MethodError("The trainer has no `train_dataset`, on which methods measure what matters. Give it one.")
    if trainer.model is None or trainer.model_init is not None:
        raise MethodError("This trainer makes a new model when it trains (`model_init`). Give it the model (`model`).")


def check_sharded(trainer: Trainer, methods: Sequence[Method], stop_then: str | None) -> None:
    """Check that `protect` supports the model, the methods and the options under FSDP2, which leaves a process shards.

    Args:
        trainer: the trainer, before its model is sharded.
        methods: the methods.
        stop_then: what happens beyond a bound of `stop`; None without `stop`.

    Raises:
        MethodError: something is not supported; the message says what, and what to do.
    """
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    model: Any = unwrap(trainer.model)  # type: ignore[arg-type]  # it has one
    if plugin.fsdp_version != 2:
        raise MethodError(
            "FSDP 1 hides the weights that methods act on. Set `fsdp_version: 2` for accelerate (`version: 2` in "
            "`fsdp_config`), or train with DDP."
        )
    if why := why_not_sharded(model, methods):
        raise MethodError(f"FSDP cannot shard this training: {why}. Train with DDP.")
    if stop_then not in (None, "warn"):
        raise MethodError(
            f"`stop_then='{stop_then}'` goes back to an earlier step, for which the Trainer would divide a model that "
            "FSDP has divided already. Use 'warn', or train with DDP."
        )


def _examples(trainer: Trainer) -> tuple[Any, Any]:
    """Return the training dataset, and the collator of its examples, without the columns that the trainer removes."""
    dataset: Any = trainer.train_dataset
    collator: Any = trainer.data_collator
    if isinstance(dataset, datasets.Dataset):
        with contextlib.suppress(ValueError):  # none would be left: the trainer reads columns of its own
            dataset = trainer._remove_unused_columns(dataset, description="training")
    else:
        collator = trainer._get_collator_with_removed_columns(collator, description="training")
    return dataset, collator


def _refuse_given_optimizer(trainer: Trainer, protected: ProtectedDomain) -> None:
    """Raise ``MethodError`` if a method must create the optimizer, but the trainer was given one."""
    for method in protected.protection.methods:
        for hook in ("parameter_groups", "optimizer", "schedule"):
            if overrides(method, hook):
                raise MethodError(
                    f"Method '{method.label}' chooses the optimizer's settings, but this trainer was given an "
                    "optimizer or a schedule (`optimizers`). Let the trainer make them."
                )
    protected.stage.optimizer = trainer.optimizer
