"""Prefixes of several domains (keys and values before those of a text, in every attention), mixed for each text.

A prefix overwrites the keys and values of empty positions that are inserted before the text, so that masks, positions
and caches of every architecture stay correct. PEFT's prefix tuning is not used: it has one prefix for all rows, and
none in the encoder of an encoder-decoder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.composition.composed import Learnt, Modules
from everlearn.methods.engine.attachment import frozen
from everlearn.methods.prompts.soft_prompt import BeforeText
from everlearn.model.anatomy import anatomy, kind_of
from everlearn.model.finding import cache_in

KEY_AND_VALUE = ("key", "value")


class Prefixes(Modules):
    """K ← [Σ_i w_i P_i^K; K], V ← [Σ_i w_i P_i^V; V] in every attention of a model with an encoder.

    Layer l of an encoder and of its decoder, including cross-attention, read the same prefix, as in the authors' code
    of MoCL.

    Args:
        model: the model; it may be on the meta device.
        n: number of keys of a prefix.
        earlier: the learnt prefixes of domains 1 to t−1.

    Raises:
        MethodError: the model has no separate keys and values, or is a decoder.
    """

    def __init__(self, model: nn.Module, n: int, earlier: Sequence[Learnt]) -> None:
        super().__init__()
        self.paths = [(path, each) for path, each in anatomy(model).linears.items() if each.component in KEY_AND_VALUE]
        if not self.paths or kind_of(model) == "decoder":
            raise MethodError(
                "A prefix that is mixed for each text needs an encoder with a projection for keys and one for values, "
                f"which '{type(model).__name__}' is not. Set `module: lora` of method 'mocl'."
            )
        features = model.get_submodule(self.paths[0][0]).get_parameter("weight").shape[0]
        self.layers = nn.ModuleList(
            LayerPrefixes(n, features, [one[f"layers.{number}.prefix"] for one in earlier])
            for number in range(1 + max(_layer(path) for path, _ in self.paths))
        )
        self.text, self.answer = EmptyPositions(n), EmptyPositions(n)

    def place(self, model: nn.Module) -> None:
        self.text.place(model)
        for path, each in self.paths:
            layer: Any = self.layers[_layer(path)]
            hook = f"set_{each.component}_of_answer" if each.tokens == "answer" else f"set_{each.component}"
            model.get_submodule(path).register_forward_hook(getattr(layer, hook))
        if kind_of(model) == "encoder-decoder":
            decoder: Any = model.base_model.decoder  # type: ignore[union-attr]
            decoder.register_forward_pre_hook(self.before_answer, with_kwargs=True)
            decoder.register_forward_hook(self.answer.cut_off)

    def mix(self, weights: Tensor | None) -> None:
        self.text.active = weights is not None
        for layer in self.layers:
            layer.weights = None if weights is None else weights[:, 0]  # type: ignore[assignment]

    def before_answer(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Insert positions before the answer, unless the cache has them; a forward pre-hook of the decoder."""
        cache = cache_in(kwargs)
        self.answer.active = self.text.active and (cache is None or cache.get_seq_length() == 0)
        for layer in self.layers:
            layer.begins = self.answer.active  # type: ignore[assignment]
        return self.answer.put_before(decoder, args, kwargs)


class EmptyPositions(BeforeText):
    """Inserts n empty positions before a text while it is active."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.active = n, False

    def vectors_for(self, text: Tensor) -> Tensor:
        return text.new_zeros(len(text), self.n, text.shape[2])

    @property
    def taken_positions(self) -> int:
        return self.n


class LayerPrefixes(nn.Module):
    """The prefixes of one layer: P_t [2, n, features] is trained, those of earlier domains are frozen."""

    def __init__(self, n: int, features: int, earlier: Sequence[Tensor]) -> None:
        super().__init__()
        self.prefix = nn.Parameter(torch.empty(2, n, features))
        nn.init.uniform_(self.prefix, -1, 1)
        self.before = frozen(earlier)
        self.weights: Tensor | None = None
        self.begins = False

    # Forward hooks of key and value projections. An answer is decoded in parts, of which only the first has a prefix.

    def set_key(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return self._with_prefix(0, output)

    def set_value(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return self._with_prefix(1, output)

    def set_key_of_answer(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return self._with_prefix(0, output) if self.begins else None

    def set_value_of_answer(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return self._with_prefix(1, output) if self.begins else None

    def _with_prefix(self, number: int, output: Tensor) -> Tensor | None:
        """Return the output with Σ_i w_i P_i in the first n positions."""
        if self.weights is None:
            return None
        prefixes = torch.stack([each[number] for each in (*self.before, self.prefix)])
        mixed = torch.einsum("bt,tnd->bnd", self.weights.to(prefixes.dtype), prefixes)
        return torch.cat([mixed.to(output.dtype), output[:, mixed.shape[1] :]], 1)


def _layer(path: str) -> int:
    """Return the layer number in a module path."""
    number = re.search(r"\.(\d+)\.", path)
    return int(number[1]) if number else 0
