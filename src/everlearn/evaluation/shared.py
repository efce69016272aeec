"""Cells that runs share: what starts from the same model and is measured on the same text scores the same.

A folder of cells named by what they depend on: the model's weights and configuration, the task with its examples, and
how it is measured. Two processes may write the same cell at once: each writes a file of its own and moves it there.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from everlearn.data.blocks import hash_of
from everlearn.errors import RunError
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import Conditions, Task

FORMAT = 1
"""Part of every name: raise it when something is measured differently."""


class SharedCells:
    """Cells of one untouched model, by what they depend on.

    Args:
        folder: where they are kept.
        model: the model that is measured.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, fingerprint_of(model)

    def path(self, task: Task, how: Conditions) -> Path:
        """Where the cell is, or would be."""
        objective = {name: value for name, value in vars(how.objective).items() if name != "tokenizer"}
        tokenizer = how.tokenizer.backend_tokenizer.to_str() if how.tokenizer.is_fast else how.tokenizer.get_vocab()
        seeds = how.seeds if task.fine_tunes else ()
        place = torch.device(how.device).type
        parts = [task.kind, task.fingerprint(), how.objective.name, sorted(objective.items()), tokenizer]
        name = hash_of(FORMAT, torch.__version__, self.model, *parts, how.batch_size, seeds, place, how.bf16)
        return self.folder / f"{name}.safetensors"

    def find(self, task: Task, how: Conditions) -> Cell | None:
        """The cell under this task's and row's names, if some run has left it; a damaged one is measured again."""
        path = self.path(task, how)
        if not path.is_file():
            return None
        try:
            return replace(Cell.load(path), task=task.name, row=how.row)
        except RunError:
            return None

    def keep(self, task: Task, how: Conditions, cell: Cell) -> None:
        """Leave a cell for other runs."""
        cell.save(self.path(task, how))


def fingerprint_of(model: nn.Module) -> str:
    """Of a model's weights and configuration, whatever file it came from."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_THE_MODEL}  # type: ignore[operator,union-attr]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((type(model).__name__, sorted(config.items(), key=lambda item: item[0]))).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


_NOT_THE_MODEL = frozenset({"_name_or_path", "transformers_version", "architectures", "_commit_hash"})
