"""Stop a command on SIGTERM and SIGHUP as on Ctrl-C: files complete, one sentence, exit code 130."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What a cluster's scheduler, `kill` and a terminal that is closed send; Windows has no SIGHUP."""


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` inside the block for each of :data:`SIGNALS`, before large imports too.

    Signals that are ignored (`nohup`) or that the embedding program handles are left alone. While a run trains,
    :class:`everlearn.run.interruption.Interruption` takes over, which finishes the step and saves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # in a forked worker, whose parent handles the signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
