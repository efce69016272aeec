"""A text's weights over the modules of several domains, and the modules that are mixed by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.engine.attachment import Attachment, arguments, frozen
from everlearn.model.anatomy import kind_of
from everlearn.model.packed import PADDING, documents, so_far

KEY = "key"
Learnt = Mapping[str, Tensor]
"""What one domain leaves: its key under :data:`KEY`, its module's tensors by their names in :class:`Modules`."""


class Modules(nn.Module):
    """Modules of t domains at some places of a model, of which a text reads Σ_i w_i M_i; only M_t is trained."""

    def place(self, model: nn.Module) -> None:
        """Hook the places."""
        raise NotImplementedError

    def low_rank(self) -> dict[str, str]:
        """Path of a layer → path here of the low-rank matrices beside it."""
        return {}

    def mix(self, weights: Tensor | None) -> None:
        """Before a pass: w, [B, 1, t] for rows or [B, S, t] for tokens; None for a pass of the plain model."""
        raise NotImplementedError


class Composed(Attachment):
    """Reads a query from each text, weighs the domains by its likeness to their keys, and mixes their modules.

    A row has one query in a model with an encoder. In a decoder each token has its own, made of what its document says
    up to it: a query of the whole row would tell a token what comes after it.

    Args:
        modules: what is mixed, of t domains.
        key: where k_t begins, [E].
        earlier: k_1 to k_{t−1}, [E] each; never trained.

    Attributes:
        weights: of the last pass, [B, 1 or S, t], oldest domain first.
    """

    lengthens_rows = True  # a token's weights are of all the text before it, which must be there

    def __init__(self, modules: Modules, key: Tensor, earlier: Sequence[Tensor]) -> None:
        super().__init__()
        self.mixed = modules
        self.key = nn.Parameter(key.clone())
        self.earlier_keys = frozen(earlier)
        self.weights = torch.empty(0)
        self.token_by_token = self.asking = False

    def query(self, base: nn.Module, given: dict[str, Any], document: Tensor) -> Tensor:
        """Queries of rows that `base` is about to read, [B, 1 or S, E].

        Args:
            base: what reads the text.
            given: the arguments of its forward pass.
            document: number of the document that each token belongs to, [B, S]; :data:`PADDING` for padding.
        """
        raise NotImplementedError

    def weigh(self, queries: Tensor) -> Tensor:
        """w, [..., t], of queries [..., E]."""
        raise NotImplementedError

    @property
    def keys(self) -> Tensor:
        """k_1 to k_t, [t, E]."""
        return torch.stack([*self.earlier_keys, self.key])

    def place(self, model: nn.Module) -> None:
        """Hook what reads the text, and the modules' places."""
        base: Any = model.base_model
        reader: nn.Module = base.encoder if kind_of(model) == "encoder-decoder" else base
        self.token_by_token = kind_of(model) == "decoder"
        reader.register_forward_pre_hook(self.read, with_kwargs=True)
        self.mixed.place(model)

    def low_rank(self) -> dict[str, str]:
        """As :meth:`Attachment.low_rank`."""
        return {path: f"mixed.{own}" for path, own in self.mixed.low_rank().items()}

    def read(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: the weights of this text, which hold until the next one is read."""
        if self.asking:
            return
        given = arguments(base, args, kwargs)
        self.mixed.mix(None)
        self.weights = self.weigh(self.query(base, given, documents(given)))
        self.mixed.mix(self.weights)

    def pooled(self, values: Tensor, document: Tensor, how: Literal["mean", "max"]) -> Tensor:
        """Mean or maximum of the tokens' values, [B, S, E]: of a row, [B, 1, E], or of a document so far, [B, S, E]."""
        if self.token_by_token:
            if how == "max":
                return so_far(values, document, torch.maximum)
            count = so_far(values.new_ones(*values.shape[:2], 1), document, torch.add)
            return so_far(values, document, torch.add) / count
        real = (document != PADDING)[:, :, None]
        if how == "max":
            return values.masked_fill(~real, float("-inf")).amax(1, keepdim=True)
        return (values * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)

    def learnt(self) -> dict[str, Tensor]:
        """A copy of what the last domain has learnt."""
        own = {name: value for name, value in self.mixed.named_parameters() if value.requires_grad} | {KEY: self.key}
        return {name: value.detach().cpu().clone() for name, value in own.items()}

    def fill(self, learnt: Learnt) -> None:
        """Give the last domain's module and key what was learnt.

        Raises:
            MethodError: it is of another model, or of other options.
        """
        own = {KEY: self.key, **dict(self.mixed.named_parameters())}
        with torch.no_grad():
            for name, value in learnt.items():
                if name not in own or own[name].shape != value.shape:
                    raise MethodError(
                        f"The module of a domain has '{name}' with shape {tuple(value.shape)}, which does not fit this "
                        "model. The memory belongs to another model or other options of the method."
                    )
                own[name].copy_(value)
