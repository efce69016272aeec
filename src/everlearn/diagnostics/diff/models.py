"""Find the two models to compare, check that they can be compared, and measure how far their weights moved.

Only one model is in memory at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everlearn import files
from everlearn.data.corpus import HUB_ID
from everlearn.errors import ModelError, RecipeError, did_you_mean
from everlearn.merging import open_checkpoints
from everlearn.model.anatomy import Kind
from everlearn.model.loading import check_is_no_run, load_config, load_model, load_tokenizer
from everlearn.model.options import Model
from everlearn.model.structure import architecture_for, kind_of_config
from everlearn.model.weight_movement import Moved, movement
from everlearn.options import path_or_id

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

KINDS = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "text-to-text"}
"""Kind of a model → its name in messages."""


@dataclass(frozen=True)
class ModelSide:
    """One of the two models.

    Attributes:
        label: name in tables; never a local path.
        path: folder or hub id.
        kind: kind of its architecture.
        tokenizer: its tokenizer; for an adapter without one, that of its base model.
    """

    label: str
    path: str
    kind: Kind
    tokenizer: PreTrainedTokenizerBase

    def load(self) -> nn.Module:
        """Load the weights, in float32."""
        return load_model(Model(path=self.path))


def open_sides(before: str | Path, after: str | Path) -> tuple[ModelSide, ModelSide]:
    """Find both models and read their configurations and tokenizers, without loading weights.

    Args:
        before: folder, hub id, or ``LABEL=PATH``.
        after: the same.

    Raises:
        RecipeError: a model does not exist, or is a run folder.
        ModelError: a model cannot be read, or the two are of different kinds.
    """
    named = [_named(str(argument), role) for argument, role in ((before, "BEFORE"), (after, "AFTER"))]
    labels = _labels(named)
    sides = []
    for label, (_, path) in zip(labels, named, strict=True):
        kind = kind_of_config(load_config(Model(path=path)))
        sides.append(ModelSide(label, path, kind, load_tokenizer(Model(path=path))))
    one, other = sides
    if one.kind != other.kind:
        raise ModelError(
            f"BEFORE ('{one.label}') is a {KINDS[one.kind]} model and AFTER ('{other.label}') a {KINDS[other.kind]} "
            "one, whose losses mean different things. Compare two models of one kind."
        )
    return one, other


def _named(argument: str, role: str) -> tuple[str, str]:
    """Return the label (empty if none is given) and the path of an argument."""
    label, equals, path = argument.partition("=")
    if not equals or Path(argument).exists():
        label, path = "", argument
    path = path_or_id(path, role)
    folder = Path(path)
    if not folder.exists() and not HUB_ID.fullmatch(path):
        near = did_you_mean(folder.name, [p.name for p in folder.parent.glob("*")]) if folder.parent.is_dir() else ""
        raise RecipeError(f"{role} is '{path}', which is neither a folder nor a hub id (owner/name).{near}")
    check_is_no_run(path, role)
    if (folder / files.SEAL).is_file() and (wrong := files.damage(folder)):
        raise ModelError(f"{wrong}. Restore it from a copy, or compare another checkpoint.")
    return label, path


def _labels(named: Sequence[tuple[str, str]]) -> list[str]:
    """Return the labels of both: the last part of each path, or more of it or the role if these are equal."""
    short = [label or Path(path).resolve().name for label, path in named]
    if short[0] == short[1]:
        short = [label or "/".join(Path(path).resolve().parts[-2:]) for label, path in named]
    return short if short[0] != short[1] else [f"{short[0]} (before)", f"{short[1]} (after)"]


def moved(before: ModelSide, after: ModelSide) -> tuple[list[Moved] | None, str]:
    """Return how far each part of each layer moved, read tensor by tensor; or None and the reason."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            pairs = [(side.label, side.path) for side in (before, after)]
            one, other = open_checkpoints(pairs, Path(scratch))
            parts = movement(one.weights, other.weights, architecture_for(load_config(Model(path=after.path))))
        except ModelError:
            parts = None
    if parts is None:
        return None, "The weights cannot be compared: the two models differ in architecture, size or vocabulary."
    return parts, ""
