"""Ctrl-C and SIGTERM: finish the step, save, say how to resume. A second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl

from everlearn.errors import EverlearnError


class Interrupted(EverlearnError):
    """The run was asked to stop; what it had done is saved."""


class Interruption:
    """Listens for signals while a run is under way. Outside a training step the signal acts at once: every file is
    whole or absent, so nothing is lost there."""

    def __init__(self) -> None:
        self.asked = False
        self._training = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self._training:
            raise KeyboardInterrupt
        self.asked = True

    def callback(self) -> TrainerCallback:
        """Makes the Trainer save and stop after the step in which the signal came."""
        return _Callback(self)

    def stop_here(self, folder: Path) -> None:
        """Raise ``Interrupted`` when a signal came during training."""
        if self.asked:
            raise Interrupted(f"Stopped and saved. Continue with `everlearn resume {folder}`.")


class _Callback(TrainerCallback):
    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.interruption._training = True

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.interruption._training = False

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if self.interruption.asked and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
        return control
