"""Common parts of methods that run stored rows in the forward pass of the batch."""

from __future__ import annotations

from torch import Tensor

from everlearn.errors import MethodError
from everlearn.methods.base import Batch, Method, Setting, Stage
from everlearn.model.anatomy import kind_of


def refuse_encoder_decoder(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` for encoder-decoder models, whose rows differ in width."""
    if kind_of(setting.model) == "encoder-decoder":
        raise MethodError(
            f"Method '{method.label}' does not work with encoder-decoder models: their rows differ in width, and "
            "replayed rows share the batch's forward pass. Use 'replay'."
        )


def refuse_other_width(method: Method, stage: Stage, stored: int, batch: Batch) -> None:
    """Raise ``MethodError`` if the rows of the batch do not have as many tokens as the stored ones."""
    width = batch["input_ids"].shape[1]
    if width != stored:
        raise MethodError(
            f"Method '{method.label}' remembers rows of {stored} tokens, but those of domain '{stage.domain}' have "
            f"{width}. Set `data.block_size` to {stored}."
        )


def own_rows(method: Method, batch: Batch) -> dict[str, Tensor]:
    """Return the tensors that ``before_forward`` of the method has added to the batch, by their own names."""
    prefix = f"{method.name}/"
    return {name.removeprefix(prefix): value for name, value in batch.items() if name.startswith(prefix)}
