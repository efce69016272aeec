"""Measure the loss or the Fisher information of checkpoints on a text, from which some methods compute weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everlearn import files
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Corpus
from everlearn.data.documents import read_documents
from everlearn.data.loader import sample_batches
from everlearn.data.packing import blocks_of
from everlearn.errors import RecipeError
from everlearn.importance import gradient_moment
from everlearn.merging.base import MergeMethod
from everlearn.merging.checkpoints import Opened
from everlearn.model.anatomy import kind_of
from everlearn.model.loading import load_model, load_tokenizer
from everlearn.model.objectives import Objective, make_objective
from everlearn.model.options import Model
from everlearn.model.weight_movement import SavedWeights, Weights
from everlearn.options import path_or_id
from everlearn.predictors.block_losses import block_losses

BLOCK_SIZE, BATCH_SIZE = 512, 8
"""Tokens per row, unless the model supports fewer; rows per batch."""


@dataclass(frozen=True)
class Measurements:
    """Measurements of the checkpoints, in their order.

    Attributes:
        losses: mean loss of each, in nats per token.
        fisher: Fisher diagonals of each by the names in its file; tensors that are not trained have none.
    """

    losses: Sequence[float] | None = None
    fisher: Sequence[Weights] | None = None


def measure(
    method: MergeMethod,
    models: Sequence[Opened],
    texts: Sequence[str],
    blocks: int,
    scratch: Path,
    progress: Callable[[int], None] = lambda number: None,
) -> Measurements:
    """Run each checkpoint on the texts that a method needs; one model is in memory at a time.

    Args:
        method: the merging method; nothing is measured if it uses no text.
        models: the checkpoints.
        texts: a path for all, or one for each.
        blocks: number of rows read from each.
        scratch: a temporary folder of the caller, for Fisher diagonals.
        progress: called with the number of completed checkpoints.

    Raises:
        RecipeError: a text is missing, or there is one too many.
        DataError: a text cannot be read.
    """
    if method.reads == "nothing":
        if texts:
            raise RecipeError(f"`--text` is for merging methods that read one; `{method.name}` does not. Leave it out.")
        return Measurements()
    if len(texts) not in (1, len(models)):
        raise RecipeError(
            f"`--method {method.name}` reads a text with each checkpoint: give `--text` once for all, or once for each "
            f"of {len(models)} (got {len(texts)})."
        )
    texts = [path_or_id(text, "--text") for text in texts]
    losses: list[float] = []
    folders: list[SavedWeights] = []
    each = list(texts) * (len(models) if len(texts) == 1 else 1)
    for number, (opened, text) in enumerate(zip(models, each, strict=True)):
        model, source, objective = _reader(opened, text, blocks)
        if method.reads == "losses":
            result = block_losses(model, source, objective, batch_size=BATCH_SIZE)
            losses.append(float(result.nats.sum() / result.items.sum()))
        else:
            place = scratch / f"fisher-{number:02d}"
            place.mkdir()
            files.save_tensors(place / "model.safetensors", _by_their_files(model, source, objective, blocks))
            folders.append(SavedWeights(place))
        progress(number + 1)
    return Measurements(losses or None, folders or None)


def _reader(opened: Opened, text: str, blocks: int) -> tuple[nn.Module, PackedBlocks, Objective]:
    source = Model(path=opened.path)
    model: Any = load_model(source).eval()
    model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    tokenizer = load_tokenizer(source)
    objective = make_objective(None, model, tokenizer)
    size = min(BLOCK_SIZE, objective.longest_input(model) or BLOCK_SIZE)
    rows = blocks_of(list(_texts(text, blocks * size)), tokenizer, kind_of(model), size)
    return model, PackedBlocks.from_blocks(rows[:blocks], 0, opened.label), objective


def _texts(path: str, most: int) -> Iterator[str]:
    """Yield documents until they have at least `most` words, and so at least as many tokens."""
    words = 0
    for document, _ in read_documents(Corpus(path=path)):
        yield document.text
        words += len(document.text.split())
        if words > most:
            return


def _by_their_files(model: nn.Module, source: PackedBlocks, objective: Objective, blocks: int) -> dict[str, Tensor]:
    """Return the Fisher diagonal under all names of each parameter, as files may store tied ones under any of them."""
    device = next(model.parameters()).device
    batches = sample_batches(source, objective, blocks=blocks, batch_size=BATCH_SIZE, seed=0, device=device)
    diagonal = gradient_moment(model, batches, objective.per_sample_loss)
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    return {
        name: diagonal[names[tensor.data_ptr()]]
        for name, tensor in model.state_dict().items()
        if tensor.data_ptr() in names and names[tensor.data_ptr()] in diagonal
    }
