"""Handle Ctrl-C, SIGTERM and SIGHUP: finish the step, save, and say how to resume; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl

from everlearn import wording
from everlearn.errors import Interrupted

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interruption:
    """Handle signals while a run is working.

    Outside of training a signal stops the run at once: files are replaced atomically, so nothing is lost.
    """

    def __init__(self) -> None:
        self.folder = Path()
        self.stop_requested = False
        self.training = False
        self._before: dict[int, Any] = {}

    def of(self, folder: Path) -> Interruption:
        """Set the run folder that messages name, and return this object."""
        self.folder = folder
        return self

    def __enter__(self) -> Interruption:
        self.stop_requested = self.training = False
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored signals stay ignored, as under `nohup`
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(
                f"Stopped. What was saved is complete; continue with `{wording.command('resume', self.folder)}`."
            )

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested or not self.training:
            raise KeyboardInterrupt
        self.stop_requested = True

    def callback(self) -> TrainerCallback:
        """Return a callback that makes the Trainer save and stop after the step in which a signal arrived."""
        return _Callback(self)

    def stop_here(self) -> None:
        """Raise ``Interrupted`` if a signal arrived during training."""
        if self.stop_requested:
            raise Interrupted(f"Stopped and saved. Continue with `{wording.command('resume', self.folder)}`.")


class _Callback(TrainerCallback):
    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.interruption.training = True

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.interruption.training = False

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        stop = self.interruption.stop_requested
        if args.world_size > 1:
            # A signal reaches the processes at different steps, but all must stop after the same one. Reading the vote
            # synchronises an accelerator, so it is done there only with the log, which synchronises anyway.
            stop = False
            if args.device.type == "cpu" or control.should_log:
                votes = torch.tensor(float(self.interruption.stop_requested), device=args.device)
                torch.distributed.all_reduce(votes)
                stop = self.interruption.stop_requested = bool(votes)
        if stop:
            control.should_save = control.should_training_stop = True
        return control
