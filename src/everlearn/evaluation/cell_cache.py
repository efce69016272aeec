"""Share the base model's scores between runs: the same model on the same text gives the same scores.

A cell holds the outcomes of one model on the examples of one task. Each cell has a folder with checksums, named by a
hash of everything on which the outcomes depend: the model's weights and configuration, the task with its examples, and
the conditions. Two processes may write the same cell at the same time, since each writes its own folder and then moves
it to the final name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from everlearn import files
from everlearn.data.blocks import hash_of
from everlearn.errors import RunError
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import Conditions, Task
from everlearn.predictors.predictor import Predictor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CELL = "cell.safetensors"
FORMAT = 2
"""Part of every name; raise it when a measurement changes."""


class SharedCells:
    """Cache the outcomes of one model on tasks, so that a later run need not measure them again.

    The model is identified by its weights and configuration when the object is created. They must not change while it
    is used.

    Args:
        folder: folder of the cache, which runs share.
        model: the evaluated model.
    """

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder, self.model = folder, fingerprint_of(model)
        self._tokenizers: dict[PreTrainedTokenizerBase, str] = {}  # cached, since hashing a large vocabulary is slow

    def path(self, task: Task, how: Conditions) -> Path:
        """Return the folder for the outcomes of a task under these conditions; it need not exist."""
        objective = {name: value for name, value in vars(how.objective).items() if name != "tokenizer"}
        if how.tokenizer not in self._tokenizers:
            self._tokenizers[how.tokenizer] = _of_tokenizer(how.tokenizer)
        tokenizer = self._tokenizers[how.tokenizer]
        seeds = how.seeds if task.fine_tunes else ()
        place = torch.device(how.device).type
        parts = [task.kind, task.fingerprint(), how.objective.name, sorted(objective.items()), tokenizer]
        name = hash_of(FORMAT, torch.__version__, self.model, *parts, how.batch_size, seeds, place, how.bf16)
        return self.folder / name

    def find(self, task: Task, how: Conditions) -> Cell | None:
        """Return the cached outcomes, labelled with the names of this task and row; None if missing or damaged."""
        if not task.shared:
            return None
        folder = self.path(task, how)
        if files.damage(folder) is not None:
            return None
        try:
            return replace(Cell.load(folder / CELL), task=task.name, row=how.row)
        except RunError:
            return None

    def measured(self, task: Task, how: Conditions, predictor: Predictor) -> Cell:
        """Return the outcomes of a task, which is measured if they are not cached."""
        cell = self.find(task, how)
        if cell is None:
            cell = task.measure(predictor, how)
            self.keep(task, how, cell)
        return cell

    def keep(self, task: Task, how: Conditions, cell: Cell) -> None:
        """Save the outcomes of a task for other runs."""
        if not task.shared:
            return
        with files.new_folder(self.path(task, how)) as folder:
            cell.save(folder / CELL)


def _of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of how a tokenizer maps text to tokens, without its current truncation and padding."""
    state = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else tokenizer.get_vocab()
    core = sorted((key, value) for key, value in state.items() if key not in ("truncation", "padding"))
    return hash_of(core, sorted(tokenizer.special_tokens_map.items()), tokenizer.model_max_length)


def fingerprint_of(model: nn.Module) -> str:
    """Return a hash of a model's weights, configuration and attention implementation."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_THE_MODEL}  # type: ignore[operator,union-attr]
    digest = hashlib.blake2b(digest_size=16)
    attention = getattr(model.config, "_attn_implementation", None)  # implementations of attention round differently
    digest.update(repr((type(model).__name__, attention, sorted(config.items(), key=lambda item: item[0]))).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


_NOT_THE_MODEL = frozenset({"_name_or_path", "transformers_version", "architectures", "_commit_hash"})
