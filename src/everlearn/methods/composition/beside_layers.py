"""Modules beside the layers of a frozen model: they take the layers' inputs and change the output of the last layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from everlearn.methods.engine.attachment import Attachment, arguments
from everlearn.model.anatomy import kind_of
from everlearn.model.depth import layers_of
from everlearn.model.packed_rows import documents


class BesideLayers(Attachment):
    """Observes each pass through the layers of a model; in an encoder-decoder, those of the encoder.

    The output of the last layer is changed before any normalisation after the layers, so that everything that reads the
    hidden states (the vocabulary head, a classifier, a decoder) reads the change.
    """

    lengthens_rows = True  # modules beside the layers have no cache, so each pass needs the complete text

    def place(self, model: nn.Module) -> None:
        reader_of(model).register_forward_pre_hook(self.before, with_kwargs=True)
        layers_read(model)[-1].register_forward_hook(self.behind)

    def before(self, reader: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare for a forward pass; a forward pre-hook of :func:`reader_of`."""
        inputs = arguments(reader, args, kwargs)
        self.read(reader, inputs, documents(inputs))

    def behind(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Change the output of the last layer; a forward hook."""
        changed = self.leave(plain(output))
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def read(self, reader: nn.Module, inputs: dict[str, Any], document: Tensor) -> None:
        """Prepare for a forward pass, before the layers run.

        Args:
            reader: the module that processes the input tokens (:func:`reader_of`).
            inputs: the arguments of its forward pass.
            document: document number of each token (:func:`~everlearn.model.packed_rows.documents`).
        """
        raise NotImplementedError

    def leave(self, hidden: Tensor) -> Tensor:
        """Return the replacement of the output of the last layer, [B, S, H]."""
        raise NotImplementedError


def reader_of(model: nn.Module) -> nn.Module:
    """Return the module that processes the input tokens: the encoder of an encoder-decoder, otherwise the base model.

    Args:
        model: the model, with or without a vocabulary head.
    """
    base: Any = model.base_model
    reader: nn.Module = base.encoder if kind_of(model) == "encoder-decoder" else base
    return reader


def layers_path(model: nn.Module) -> str:
    """Return the path of the layers in :func:`reader_of`."""
    reader = reader_of(model)
    own = next(path for path, module in model.named_modules() if module is reader)
    return layers_of(model)[0].path.removeprefix(f"{own}.")


def layers_read(model: nn.Module) -> nn.ModuleList:
    """Return the layers of :func:`reader_of`, in order."""
    return layers_of(model)[0].modules


def plain(output: Any) -> Tensor:
    """Return the hidden states, [B, S, H], from the output of a layer."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
