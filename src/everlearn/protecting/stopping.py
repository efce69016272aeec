"""End a protected training where held-out text is forgotten beyond a bound, or train on from there (`stop`).

What is decided, and how, is the same as in a run (:mod:`everlearn.run.forgetting_guard`): going back is resuming, from
the Trainer's own checkpoint of the best step.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from everlearn import files
from everlearn.errors import MethodError, RunError, did_you_mean
from everlearn.model.vocabulary_head import unwrap
from everlearn.protecting.domain import ProtectedDomain
from everlearn.protecting.held_out import ScoredText
from everlearn.run import notification
from everlearn.run.checkpoint import checkpoints, step_of
from everlearn.run.forgetting_guard import STATE, ForgettingBound, ForgettingGuard, Notify, Then

Bounds = float | Mapping[str, float]
"""Bits per byte that each text may get worse; or one number for all."""
EVERY = 50
FOR_STOP = "for-stop"
"""Empty file in a checkpoint that only `stop` asked for, so that it is removed when it is not needed any more."""


@dataclass(frozen=True)
class StopOptions:
    """The options of `stop`, checked.

    Attributes:
        texts: the held-out texts that are scored during the training.
        bounds: bits per byte, by the name of the text.
        every: steps between two measurements; the step at which the training ends is measured too.
        then: what happens when a bound is passed.
        notify: a webhook or a command that is told of it.
    """

    texts: Sequence[ScoredText]
    bounds: Mapping[str, float]
    every: int
    then: Then
    notify: Notify | None


def stop_options(
    texts: Sequence[ScoredText], domain: str, stop: Bounds | None, every: int, then: str, notify: Any
) -> StopOptions | None:
    """Check the options of `stop`; return None if it is not set.

    Args:
        texts: the held-out texts; the one with the name of the domain is the domain's own.
        domain: name of the domain.
        stop: bounds.
        every: `stop_every`.
        then: `stop_then`.
        notify: `stop_notify`.

    Raises:
        MethodError: an option has a wrong value, or there is nothing to decide by.
        RecipeError: there is nobody to notify.
    """
    if stop is None:
        for key, changed in (("every", every != EVERY), ("then", then != "end"), ("notify", notify is not None)):
            if changed:
                raise MethodError(f"`stop_{key}` has no effect without `stop`. Remove it, or give `stop`.")
        return None
    names = [text.name for text in texts]
    bounds = _by_name(stop, names, domain)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise MethodError(f"`stop_every` is a number of steps, 1 or more (got {every!r}).")
    if then not in get_args(Then):
        raise MethodError(
            f"`stop_then` is one of {', '.join(get_args(Then))} (got {then!r}).{did_you_mean(then, get_args(Then))}"
        )
    if not bounds and domain not in names:
        raise MethodError(
            f"`stop` without a bound ends at the step that predicts the domain's own text best: give `held_out` one "
            f"with the name of the domain, '{domain}' (`domain`), or give a bound."
        )
    if not bounds and then != "end":
        raise MethodError(f"`stop_then='{then}'` needs a bound: give `stop` one.")
    if notify is not None:
        notify = notify if isinstance(notify, str) else tuple(notify)
        notification.check(notify, "stop_notify")
    used = [text for text in texts if text.name in bounds or (text.name == domain and then != "warn")]
    return StopOptions(used, bounds, every, cast(Then, then), notify)


class StopWhenForgetting(TrainerCallback):
    """Score held-out texts during a training, let a :class:`ForgettingGuard` decide, and go back to the best step.

    Args:
        renewed: makes the domain as it was before the training, with methods that have not begun it.
    """

    guard: ForgettingGuard

    def __init__(self, trainer: Any, options: StopOptions, renewed: Callable[[], ProtectedDomain]) -> None:
        self._trainer, self._options, self._renewed = trainer, options, renewed
        self._folder = Path(str(trainer.args.output_dir))
        self._optimizer_before = trainer.optimizer, trainer.lr_scheduler
        self._optimizer_states = [
            copy.deepcopy(each.state_dict()) for each in self._optimizer_before if each is not None
        ]
        self._start: dict[str, Tensor] = {}
        self._for_stop = False
        self._measured: int | None = None

    # -- where a training begins ------------------------------------------------------------------------------

    def begin(self, checkpoint: str | None) -> str | None:
        """Keep what going back needs, and return the checkpoint to begin with.

        Args:
            checkpoint: the one that the user resumes from, if any.

        Raises:
            RunError: the output folder has checkpoints of another training.
        """
        model, args = self._model, self._trainer.args
        for text in self._options.texts:
            text.measure(model, args.per_device_train_batch_size, args.bf16)
        self._start = {name: tensor.detach().to("cpu", copy=True) for name, tensor in _changing(model)}
        if checkpoint is None:
            foreign = [each for each in checkpoints(self._folder) if not (each / FOR_STOP).is_file()]
            if foreign and self._options.then != "warn":
                raise RunError(
                    f"{self._folder} has {foreign[0].name} of another training, and `stop` keeps its best step there. "
                    "Give another `output_dir`, or go on with that training (`resume_from_checkpoint`)."
                )
            self.clean_up()
        return self._session(checkpoint)

    def go_back(self) -> str | None:
        """Set model, optimizer and methods as before the training; return the checkpoint of the best step, if any."""
        trainer = self._trainer
        trainer.accelerator.wait_for_everyone()  # the decision must have been written before the others read it
        best, before = self.guard.kept(), trainer.protected
        before.abandon()
        with torch.no_grad():
            for name, tensor in _changing(self._model):
                tensor.copy_(self._start[name])
        if trainer.model_wrapped is trainer.model:  # it will be prepared again
            trainer.accelerator.unwrap_model(self._model, keep_fp32_wrapper=False)
        trainer.optimizer, trainer.lr_scheduler = self._optimizer_before
        for each, state in zip(
            (each for each in self._optimizer_before if each is not None), self._optimizer_states, strict=True
        ):
            each.load_state_dict(copy.deepcopy(state))
        trainer.protected = self._renewed()
        trainer.protected.goes_on_from(before)
        return self._session(None if best is None else str(self._checkpoint(best)))

    def load(self, checkpoint: str | None) -> None:
        """Load the weights of the step at which the domain ends; without a checkpoint it ends as it began."""
        if checkpoint is not None:
            self._trainer._load_from_checkpoint(checkpoint)

    def _session(self, checkpoint: str | None) -> str | None:
        """Read what was decided, and return the checkpoint to begin with."""
        options, trainer = self._options, self._trainer
        self._measured = None
        self.guard = ForgettingGuard(
            trainer.protected.stage.domain,
            self._folder,
            {
                text.name: ForgettingBound(text.before, options.bounds[text.name], "stop", "before this training")
                for text in options.texts
                if text.name in options.bounds
            },
            own=trainer.protected.stage.domain,
            then=options.then,
            notify=options.notify,
            run=trainer.args.run_name or self._folder.name,
            writes=trainer.is_world_process_zero(),
        )
        first = self.guard.begins(None if checkpoint is None else Path(checkpoint))
        return None if first is None else str(first)

    # -- during the training ----------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lower the learning rate as often as was decided."""
        self.guard.callback().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure at some steps, and decide."""
        if state.global_step % self._options.every and state.global_step < state.max_steps:
            return
        saving = control.should_save
        self._decide(state, control)
        self._for_stop = control.should_save and not saving

    def training_ended(self) -> None:
        """Measure the last weights, and decide, where something else ended the training between two measurements."""
        state = self._trainer.state
        if state.global_step not in (0, self._measured, self.guard.kept()):
            self._decide(state, self._trainer.control, ended=True)

    def _decide(self, state: TrainerState, control: TrainerControl, ended: bool = False) -> None:
        args, self._measured = self._trainer.args, state.global_step
        cells = {
            text.name: text.score(self._model, args.per_device_train_batch_size, args.bf16)
            for text in self._options.texts
        }
        self.guard.decide(state, control, cells, self._say, ended)

    def before_saving(self, state: TrainerState) -> bool:
        """Return whether to save a checkpoint, and let the Trainer keep that of the best step."""
        if best := self.guard.kept():
            state.best_model_checkpoint = str(self._checkpoint(best))
        return not self.guard.taken_back  # whatever asks for one, such as the end of an epoch

    def saved(self, checkpoint: Path) -> None:
        """Remove the checkpoints of earlier best steps that only `stop` asked for; on one process only."""
        if self._for_stop:
            (checkpoint / FOR_STOP).touch()
        else:
            (checkpoint / FOR_STOP).unlink(missing_ok=True)
        self._for_stop = False
        files.seal(checkpoint)
        self._remove(self.guard.kept())

    def clean_up(self) -> None:
        """Remove what only `stop` has written, before and after the training."""
        if self._trainer.is_world_process_zero():
            (self._folder / STATE).unlink(missing_ok=True)
            self._remove()
        self._trainer.accelerator.wait_for_everyone()

    def _remove(self, best: int | None = None) -> None:
        for each in checkpoints(self._folder):
            if step_of(each) != best and (each / FOR_STOP).is_file():
                shutil.rmtree(each, ignore_errors=True)

    def _checkpoint(self, step: int) -> Path:
        return self._folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"

    def _say(self, note: str) -> None:
        if self._trainer.is_world_process_zero():
            print(note)  # as the Trainer's own callbacks print its logs

    @property
    def _model(self) -> nn.Module:
        return unwrap(self._trainer.model)


def check_stoppable(trainer: Any, options: StopOptions, generates: bool) -> None:
    """Check that a Trainer, which may write the rows that it learns (`generates`), can go back to its best step.

    Raises:
        MethodError: it cannot; the message says why, and what to do.
    """
    args = trainer.args
    if options.then == "warn":
        return
    if args.metric_for_best_model is not None:
        raise MethodError(
            "`stop` decides which weights the training ends with, and so does `metric_for_best_model` (which "
            "`load_best_model_at_end`, `save_strategy='best'` and `reduce_lr_on_plateau` set). Unset one."
        )
    if options.then != "lower":
        return
    if args.save_only_model:
        raise MethodError(
            "`stop_then='lower'` resumes from a checkpoint, which `save_only_model` leaves incomplete. Unset it."
        )
    if generates:
        raise MethodError(
            "`stop_then='lower'` resumes from a checkpoint, and this trainer counts what it has generated in itself, "
            "which no checkpoint holds. Use 'end' or 'warn'."
        )


def _changing(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return what a training changes: trained parameters and buffers."""
    trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    return list(chain(trained, model.named_buffers()))


def _by_name(bounds: Bounds, names: Sequence[str], domain: str) -> dict[str, float]:
    """Return the bound of each text that has one; one number is for all texts but the domain's own."""
    others = [name for name in names if name != domain]
    if not (names if isinstance(bounds, Mapping) else others):
        raise MethodError("`stop` needs text to measure on, besides the domain's own: give `held_out`.")
    by_name = dict(bounds) if isinstance(bounds, Mapping) else dict.fromkeys(others, bounds)
    for name, bound in by_name.items():
        if name not in names:
            raise MethodError(f"`stop` has '{name}', which is no text of `held_out`.{did_you_mean(name, list(names))}")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound < float("inf"):
            raise MethodError(f"`stop` of '{name}' is a number of bits per byte, 0 or more (got {bound!r}).")
    return by_name
