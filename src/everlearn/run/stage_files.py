"""Save and load what a finished stage consists of: its model, and the memory of its methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from everlearn import files
from everlearn.errors import RunError
from everlearn.methods.base import Memory, Method
from everlearn.model.options import Model
from everlearn.model.peft_adapter import PeftAdapter
from everlearn.model.sharding import gathered_on_one
from everlearn.model.vocabulary_head import unwrap

MEMORY = "memory"
"""Folder of the methods' memories, in the folder of a stage or of a checkpoint."""


def save_memories(folder: Path, methods: Sequence[Method], writes: bool = True) -> None:
    """Save each method's memory as ``<method>.safetensors`` and ``<method>.json``; write no files for an empty one.

    Args:
        folder: where to save.
        methods: the methods.
        writes: whether this process writes. In the middle of a domain all must call this: tensors may be divided over
            them by FSDP2.
    """
    for method in methods:
        memory = method.memory()
        tensors = gathered_on_one(memory.tensors, writes)
        if tensors:
            files.save_tensors(folder / f"{method.name}.safetensors", tensors, {"method": method.name})
        if memory and writes:
            files.write_json(folder / f"{method.name}.json", memory.facts)


def load_memories(folder: Path, methods: Sequence[Method]) -> None:
    """Load each method's memory; a method without saved memory is left as it is.

    Raises:
        RunError: a saved memory is damaged or missing.
        MethodError: the content of a file does not match the method's declaration.
    """
    for name in files.listed(folder.parent):
        if name.startswith(f"{folder.name}/") and not (folder.parent / name).is_file():
            raise RunError(f"{folder.parent / name} is missing. Restore it from a copy.")
    for method in methods:
        facts, tensors = folder / f"{method.name}.json", folder / f"{method.name}.safetensors"
        if facts.is_file():
            loaded, noted = files.load_tensors(tensors) if tensors.is_file() else {}, files.read_json(facts)
            if not isinstance(noted, dict):
                raise RunError(f"{facts} must hold a mapping (got {noted!r:.40}). Restore it from a copy.")
            method.load_memory(Memory(loaded, noted, str(folder / method.name)))


def save_model(
    model: nn.Module, tokenizer: Any, folder: Path, adapter: PeftAdapter | None = None, base: Model | None = None
) -> None:
    """Save the model and tokenizer with ``save_pretrained``, and the adapter that turns the base model into it, if any.

    Args:
        model: the plain model.
        tokenizer: the model's tokenizer.
        folder: the stage folder.
        adapter: the stage's adapter, if it has one.
        base: the base model as the recipe names it, for the adapter's configuration.
    """
    core: Any = unwrap(model)
    if adapter is not None:
        adapter.save(folder, *((base.path, base.revision) if base is not None else (None, None)))
    if adapter is None or not adapter.alone:
        core.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
