"""Train one stage with ``transformers.Trainer``, under a list of methods.

Added to the Trainer are: the loss of :class:`~everlearn.methods.engine.protection.Protection`, changes to the gradients
between backward pass and clipping, checkpoints that are written atomically, and a saved position in the data, so that a
resumed stage need not read and skip the earlier batches. Everything else is the Trainer's.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from everlearn import files
from everlearn.data.loader import BlockLoader
from everlearn.data.mixing import shares
from everlearn.errors import RunError, TrainingDiverged
from everlearn.methods.engine.processes import loss_scale
from everlearn.methods.engine.protection import Protection
from everlearn.model.objectives import IGNORE
from everlearn.model.sharding import local
from everlearn.run import optimizer_state
from everlearn.run.checkpoint import DATA_STATE, checkpoints, reading_checkpoint, step_of
from everlearn.run.dry_run import check_distribution, check_processes, options_set, refused
from everlearn.run.stage_files import MEMORY, save_memories
from everlearn.wording import count

ADDED = "loss_added"
"""Key of a logged line: the sum of the methods' losses. Each is also logged, as `<method>/<name>`."""
Progress = Callable[[int], None]


class Guard(Protocol):
    """The part of :class:`~everlearn.run.forgetting_guard.ForgettingGuard` that the trainer uses."""

    taken_back: bool
    """Whether the last steps are taken back, so that no checkpoint of them is written."""

    def kept(self) -> int | None:
        """Return the step whose checkpoint is kept, even beyond `save_total_limit`."""


class StageTrainer(Trainer):
    """Train one stage under a list of methods.

    Args:
        protection: the methods, which have begun the stage.
        loader: batches for exactly the stage's steps.
        args: made by :func:`~everlearn.config.arguments.training_arguments`, with ``max_steps`` set.
        progress: called after each step with the number of steps done.
        log: called with each line for ``metrics.jsonl``.
        carried: the optimizer state of the previous domain, to begin with (:mod:`everlearn.run.optimizer_state`).
        guard: decides where the stage ends.
    """

    def __init__(
        self,
        *,
        protection: Protection,
        loader: BlockLoader,
        args: TrainingArguments,
        progress: Progress | None = None,
        log: Callable[[dict[str, Any]], None] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        carried: optimizer_state.Carried | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.protection, self.loader = protection, loader
        self.stage, self.methods = protection.stage, protection.methods
        stage = self.stage
        self._fingerprint = loader.source.fingerprint
        check_processes(args)
        with refused({}):  # a run that is resumed on another machine may lack a package
            super().__init__(
                model=stage.model,
                args=args,
                train_dataset=loader,
                processing_class=stage.tokenizer,
                callbacks=[_Updates(self), *callbacks],
            )
        check_distribution(self, self.methods)
        self.remove_callback(PrinterCallback)  # the reporter shows progress, metrics.jsonl keeps the numbers
        self.loss_is_scaled_for_ga = True
        self._progress, self._write, self._carried, self._guard = progress, log, carried, guard
        self._parts: dict[str, Tensor] = {}
        self._objective: Tensor | None = None
        self._bad: Tensor | None = None
        self._mark, self._tokens_logged = (time.monotonic(), 0), 0
        self.seconds_before, self._started = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds spent training this stage, over all its sessions."""
        return self.seconds_before + time.monotonic() - self._started

    @property
    def last_loss(self) -> float | None:
        """Return the objective's loss that was logged last."""
        return next((line["loss"] for line in reversed(self.state.log_history) if "loss" in line), None)

    @property
    def tokens(self) -> int:
        """Return the tokens of the rows that this stage has trained on, over all processes."""
        return self.loader.tokens

    # -- data -------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        """Return a loader of complete batches of this process, which accelerate must not shard or prefetch."""
        # It has its own generator: an iterator draws from it when opened, which would shift dropout after a resume.
        return DataLoader(self.loader, batch_size=None, generator=torch.Generator())

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Move a batch to the device, and leave the original on the host for methods that look up rows."""
        self.stage.host = inputs
        prepared: dict[str, Any] = super()._prepare_inputs(inputs)
        return prepared

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, Tensor]], device: torch.device) -> Tensor:
        """Return the number of labels in the accumulated batch, over all processes."""
        items = torch.stack([(batch["labels"] != IGNORE).sum() for batch in batch_samples]).sum()
        return self.accelerator.reduce(items.to(device)) if self.args.world_size > 1 else items

    # -- the step ---------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the objective's mean over the accumulated batch plus each method's loss, counted once per step."""
        outputs, extra = self.protection.forward(model, inputs)
        # DDP averages the sums of all processes, hence the factor of world_size.
        total = outputs.losses.sum() * (self.args.world_size / num_items_in_batch)
        self._objective = total.detach()
        for name, value in extra.items():
            part = value / self.current_gradient_accumulation_steps
            self._add(name, part)
            total = total + part
        return (total, outputs) if return_outputs else total

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward pass; in the last micro-batch the methods change the gradients, before clipping.

        Returns:
            The objective's loss alone, which the Trainer logs: it can be compared with plain training.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._bad is None:
            self._bad = torch.zeros_like(loss)
        now_bad = (self._bad == 0) & ~torch.isfinite(loss)
        self._bad = torch.where(now_bad, float(self.state.global_step + 1), self._bad)
        if self.accelerator.sync_gradients:
            self.protection.after_backward(self.accelerator.backward, loss_scale(self.accelerator))
        return loss if self._objective is None else self._objective

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the optimizer of `train`, as the methods wrap it."""
        optimizer: torch.optim.Optimizer | None = self.optimizer
        if optimizer is None:
            with refused(options_set(self.args, "optim", "optim_args", "optim_target_modules")):
                plain = super().create_optimizer(model)
            self.optimizer = optimizer = self.protection.optimizer(plain)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Return the schedule of `train`, as the methods wrap it."""
        schedule: torch.optim.lr_scheduler.LRScheduler | None = self.lr_scheduler
        if schedule is None:
            schedule = self.protection.schedule(super().create_scheduler(num_training_steps, optimizer))
            self.lr_scheduler = schedule  # type: ignore[assignment]  # the Trainer's type is that of its own schedules
        return schedule

    def on_train_begin(self) -> None:
        """Load the optimizer state of the previous domain, unless a checkpoint is resumed."""
        if self._carried is not None and self.state.global_step == 0:
            optimizer_state.restore(self._carried, self.stage.model, self._own_optimizer)
        self._carried = None

    @property
    def _own_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer inside accelerate's wrapper."""
        wrapped: Any = self.optimizer
        own: torch.optim.Optimizer = getattr(wrapped, "optimizer", wrapped)
        return own

    def optimizer_state(self) -> optimizer_state.Carried:
        """Return the optimizer state for the next domain.

        Every process must call it, before the model's wrappers are removed.
        """
        return optimizer_state.state_of(self.stage.model, self._own_optimizer)

    def free_optimizer(self) -> None:
        """Free the optimizer's state: what the methods measure when a domain ends needs the memory."""
        self._own_optimizer.state.clear()

    def _mean(self, value: Tensor) -> float:
        return float(self.accelerator.reduce(value, "mean") if self.args.world_size > 1 else value)

    def _add(self, name: str, value: Tensor) -> None:
        value = value.detach()
        self._parts[name] = value if name not in self._parts else self._parts[name] + value

    # -- the log ----------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write one line to ``metrics.jsonl``; raise if the loss is not finite."""
        if "loss" in logs:
            now, step = time.monotonic(), self.state.global_step
            steps = step - self._mark[1]
            parts = {name: self._mean(value) / steps for name, value in self._parts.items()}
            if parts:
                logs |= {ADDED: sum(parts.values()), **parts}
            seconds = now - self._mark[0]
            if seconds > 0:
                logs["tokens_per_second"] = round((self.loader.tokens - self._tokens_logged) / seconds, 1)
            self._tokens_logged = self.loader.tokens
            self._parts, self._mark = {}, (now, step)
            self.check_finite()
        super().log(logs, start_time)
        if "loss" in logs and self._write is not None and self.is_world_process_zero():
            mixed = {part["source"]: round(part["realised"], 6) for part in shares(self.loader.source)}
            line = {"stage": self.stage.index, "domain": self.stage.domain, "step": self.state.global_step} | logs
            self._write(line | ({"shares": mixed} if mixed else {}))

    def check_finite(self) -> None:
        """Raise if a loss was not finite.

        It is called at logs and checkpoints only, since reading the loss synchronises the device.

        Raises:
            TrainingDiverged: a loss was not finite; the message names the first such step.
        """
        bad = self._bad
        if bad is not None and self.args.world_size > 1:
            bad = self.accelerator.gather(bad.reshape(1)).max()
        if bad is not None and bad > 0:
            self._diverged("loss", int(bad))

    def check_weights(self) -> None:
        """Raise if a weight is infinite or NaN; after the last update no loss has shown it yet.

        Raises:
            TrainingDiverged: a weight is not finite.
        """
        with torch.no_grad():
            trained = [parameter for parameter in self.stage.model.parameters() if parameter.requires_grad]
            bad = torch.stack([(~torch.isfinite(local(p)).all()).float() for p in trained]).max()
        if self.args.world_size > 1:
            bad = self.accelerator.gather(bad.reshape(1)).max()
        if bad > 0:
            self._diverged("updated model", self.state.global_step)

    def _diverged(self, what: str, step: int) -> NoReturn:
        raise TrainingDiverged(
            f"The {what} of domain '{self.stage.domain}' is not finite from step {step} on. The last good state is "
            "kept. Start a new run with a lower `train.learning_rate` (or a smaller strength of the method)."
        )

    def on_step_end(self) -> None:
        """Set the epoch to the number of passes over the text, and advance the progress bar."""
        # The Trainer counts this session's batches only, which start again after a resume.
        self.state.epoch = self.loader.source.passes  # type: ignore[assignment]  # None is meant, and handled
        if self._progress is not None:
            self._progress(self.state.global_step)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def fit(self, checkpoint: Path | None = None) -> Any:
        """Train to the end of the stage, from a checkpoint with checksums if one is given."""
        if not len(self.loader):  # a domain that ends as it began (`stop`); the Trainer knows no training without steps
            self.create_optimizer()
            self.on_train_begin()
            return None
        if checkpoint is not None:
            with reading_checkpoint(checkpoint):
                saved = files.read_json(checkpoint / DATA_STATE)
                if TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).global_step != step_of(checkpoint):
                    raise ValueError(f"{TRAINER_STATE_NAME} is of another step")
                state, self.seconds_before = saved["loader"], float(saved["seconds"])
                processes, fingerprint = saved["processes"], saved["fingerprint"]
            if processes != self.args.world_size:
                raise RunError(
                    f"{checkpoint} was written by {count(processes, 'process')} and this run has "
                    f"{self.args.world_size}. Resume with the same number, or delete the folder above it to start "
                    "the domain again."
                )
            if fingerprint != self._fingerprint:
                raise RunError(
                    f"The text of domain '{self.stage.domain}' is not what it was when {checkpoint} was written. "
                    "Restore it, or delete the folder above the checkpoint to start the domain again."
                )
            with reading_checkpoint(checkpoint):
                self.loader.load_state_dict(state)
        self._started = time.monotonic()
        self._mark = (self._started, self.loader.index // self.args.gradient_accumulation_steps)
        self._tokens_logged = self.loader.tokens
        self.stage.step = self._mark[1]
        self.protection.rows = self.loader.index * self.loader.batch_size * self.loader.world_size
        return self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint in a partial folder and move it to its place when it is complete."""
        if self._guard is not None and self._guard.taken_back:
            return  # whatever asks for it: an interruption, the end of an epoch
        self.check_finite()
        self.check_weights()
        folder = Path(str(self.args.output_dir))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        writing = folder / f"{files.PARTIAL}{name}"
        if self.is_world_process_zero():
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        with files.writing(folder / name), _output_dir(self.args, writing):
            super()._save_checkpoint(model, trial)
            inside = writing / name
            save_memories(inside / MEMORY, self.methods, self.is_world_process_zero())
            if self.is_world_process_zero():
                (inside / "training_args.bin").unlink(missing_ok=True)  # a pickle of what recipe.yaml holds already
                state = {"loader": self.loader.state_dict(), "processes": self.args.world_size}
                state |= {"fingerprint": self._fingerprint, "seconds": self.seconds, "notes": self.stage.notes}
                files.write_json(inside / DATA_STATE, state)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            with files.writing(folder / name):
                files.seal(writing / name)
                shutil.rmtree(folder / name, ignore_errors=True)
                os.replace(writing / name, folder / name)
            shutil.rmtree(writing, ignore_errors=True)
            limit = self.args.save_total_limit
            for old in checkpoints(folder)[: -limit if limit else 0]:
                if self._guard is None or step_of(old) != self._guard.kept():
                    shutil.rmtree(old, ignore_errors=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with reading_checkpoint(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with reading_checkpoint(checkpoint):
            super()._load_rng_state(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise for a checkpoint without all weights, where the Trainer only warns."""
        parameters = dict(self.stage.model.named_parameters(remove_duplicate=False))
        filled = {id(p) for name, p in parameters.items() if name not in load_result.missing_keys}
        empty = [name for name in load_result.missing_keys if name in parameters and id(parameters[name]) not in filled]
        if empty:
            raise RunError(f"The checkpoint has no weights for {', '.join(empty[:3])}: it is of another model.")


class _output_dir:  # noqa: N801
    """Set the Trainer's output folder for the duration of a block."""

    def __init__(self, args: TrainingArguments, folder: Path) -> None:
        self.args, self.folder, self.before = args, folder, args.output_dir

    def __enter__(self) -> None:
        self.args.output_dir = str(self.folder)

    def __exit__(self, *exception: object) -> None:
        self.args.output_dir = self.before


class _Updates(TrainerCallback):
    """Call the stage's trainer from the Trainer's loop."""

    def __init__(self, trainer: StageTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: object, **kwargs: object) -> None:
        self.trainer.on_train_begin()

    def on_pre_optimizer_step(self, *args: object, **kwargs: object) -> None:
        self.trainer.protection.before_update()

    def on_optimizer_step(self, *args: object, **kwargs: object) -> None:
        self.trainer.protection.after_update()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        self.trainer.on_step_end()
        # Log the last step of each stage, even of one that is shorter than `logging_steps`.
        control.should_log |= state.global_step >= state.max_steps
        return control
