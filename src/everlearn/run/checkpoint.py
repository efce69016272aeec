"""Read the checkpoints of a stage in training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from everlearn import files
from everlearn.errors import EverlearnError, RunError, first_line

DATA_STATE = "data_state.json"
"""File of a checkpoint: the position in the data, and what else a resumed stage needs besides the Trainer's files."""


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a stage, oldest first."""
    folders = [p for p in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if p.name.rsplit("-", 1)[1].isdigit()]
    return sorted(folders, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the number of optimizer steps done at a checkpoint."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def notes_in(checkpoint: Path) -> list[str]:
    """Return the sentences that the methods had noted when a checkpoint was written."""
    with reading_checkpoint(checkpoint):
        return [str(note) for note in files.read_json(checkpoint / DATA_STATE).get("notes", [])]


@contextlib.contextmanager
def reading_checkpoint(checkpoint: Path | str | None) -> Iterator[None]:
    """Turn any exception of reading a checkpoint into a `RunError`; a valid seal does not make its content valid."""
    try:
        yield
    except EverlearnError:
        raise
    except Exception as error:
        raise RunError(
            f"{checkpoint} is not a checkpoint of this run: {first_line(error).rstrip('.')}. Remove it, and `everlearn "
            "resume` continues from the previous one."
        ) from error
