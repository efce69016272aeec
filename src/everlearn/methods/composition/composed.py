"""Weights of a text over the modules of several domains, and the base class of mixed modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import Method, Reading, Setting
from everlearn.methods.composition.beside_layers import reader_of
from everlearn.methods.engine.attachment import Attachment, arguments, frozen
from everlearn.model.anatomy import kind_of
from everlearn.model.packed_rows import PADDING, documents, so_far

KEY = "key"
Learnt = Mapping[str, Tensor]
"""Trained tensors of one domain: its key under :data:`KEY`, and those of its module by their names."""


class Modules(nn.Module):
    """Modules of t domains in some layers of a model, mixed as Σ_i w_i M_i for each text; only M_t is trained."""

    def place(self, model: nn.Module) -> None:
        """Register the hooks."""
        raise NotImplementedError

    def low_rank(self) -> dict[str, str]:
        """Return the paths in this module of the low-rank matrices, by the path of their layer."""
        return {}

    def mix(self, weights: Tensor | None) -> None:
        """Set the weights of the next pass: w, [B, 1, t] for rows or [B, S, t] for tokens; None for the plain model."""
        raise NotImplementedError


class Composed(Attachment):
    """Computes a query from each text, weights for the domains from its similarity to their keys, and their mixture.

    A row has one query in a model with an encoder. In a decoder each token has its own query, computed from its
    document up to the token: a query of the whole row would leak later tokens.

    Args:
        modules: the modules of t domains that are mixed.
        key: initial value of k_t, [E].
        earlier: k_1 to k_{t−1}, [E] each; never trained.

    Attributes:
        weights: weights of the last pass, [B, 1 or S, t], oldest domain first.
    """

    lengthens_rows = True  # the weights of a token depend on all the text before it

    def __init__(self, modules: Modules, key: Tensor, earlier: Sequence[Tensor]) -> None:
        super().__init__()
        self.mixed = modules
        self.key = nn.Parameter(key.clone())
        self.earlier_keys = frozen(earlier)
        self.weights = torch.empty(0)
        self.token_by_token = self.querying = False

    def query(self, base: nn.Module, inputs: dict[str, Any], document: Tensor) -> Tensor:
        """Return the queries of rows before `base` processes them, [B, 1 or S, E].

        Args:
            base: the part of the model that processes the input tokens.
            inputs: the arguments of its forward pass.
            document: document number of each token, [B, S]; :data:`PADDING` for padding.
        """
        raise NotImplementedError

    def weigh(self, queries: Tensor) -> Tensor:
        """Return w, [..., t], for queries [..., E]."""
        raise NotImplementedError

    @property
    def keys(self) -> Tensor:
        """Return k_1 to k_t, [t, E]."""
        return torch.stack([*self.earlier_keys, self.key])

    def place(self, model: nn.Module) -> None:
        self.token_by_token = kind_of(model) == "decoder"
        reader_of(model).register_forward_pre_hook(self.read, with_kwargs=True)
        self.mixed.place(model)

    def low_rank(self) -> dict[str, str]:
        return {path: f"mixed.{own}" for path, own in self.mixed.low_rank().items()}

    def read(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the weights of a text, used until the next one is read; a forward pre-hook."""
        if self.querying:
            return
        inputs = arguments(base, args, kwargs)
        self.mixed.mix(None)
        self.weights = self.weigh(self.query(base, inputs, documents(inputs)))
        self.mixed.mix(self.weights)

    def pooled(self, values: Tensor, document: Tensor, how: Literal["mean", "max"]) -> Tensor:
        """Pool values of tokens, [B, S, E], over a row, [B, 1, E], or over a document so far, [B, S, E]."""
        if self.token_by_token:
            if how == "max":
                return so_far(values, document, torch.maximum)
            count = so_far(values.new_ones(*values.shape[:2], 1), document, torch.add)
            return so_far(values, document, torch.add) / count
        real = (document != PADDING)[:, :, None]
        if how == "max":
            return values.masked_fill(~real, float("-inf")).amax(1, keepdim=True)
        return (values * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)

    def own(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the modules, and the key of the last domain."""
        return {KEY: self.key, **dict(self.mixed.named_parameters())}


def known_domains(learnt: Mapping[str, Learnt], reading: Reading, *, own: bool) -> list[str]:
    """Return the domains whose modules are used for a text: all, or, with `own`, those up to the text's domain."""
    known = list(learnt)
    if not own:
        return known
    return [] if reading.domain not in learnt else known[: known.index(str(reading.domain)) + 1]


def check_rows(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` if the rows of an encoder hold several documents that must be isolated from each other."""
    if kind_of(setting.model) == "encoder" and setting.objective.isolate:
        raise MethodError(
            f"Method '{method.label}' mixes its modules by the complete row, through which packed documents would "
            "influence each other. Set `data.isolate_documents: false`."
        )
