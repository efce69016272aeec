"""The adapters of one layer among which a domain chooses: mixed while it decides, then one for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.methods.adapters.bottleneck import Bottleneck
from everlearn.methods.base import Stage
from everlearn.model.sharding import full_tensor, local


class LayerChoice(nn.Module):
    """The adapters of one layer: those of earlier domains, which are frozen, and the one that is trained.

    A reused adapter is copied into the trained one, so that what is trained has one size in all domains.

    Args:
        make: makes an adapter.
        owners: domains that added the earlier adapters, oldest first.
        tries: number of earlier adapters that can be reused, the latest.
        start: initial c.

    Attributes:
        entropy: H(w) of the last pass in which the adapters were mixed.
    """

    def __init__(self, make: Callable[[], Bottleneck], owners: Sequence[str], tries: int, start: float) -> None:
        super().__init__()
        self.owners = list(owners)
        self.earlier = nn.ModuleList(make() for _ in owners)
        self.own = make()
        self.c = nn.Parameter(torch.tensor([start] * tries + [-start]))
        self.first = max(0, len(self.owners) - tries)
        """The first adapter that can be reused."""
        self.entropy = torch.zeros(())
        self._rows: dict[int | None, Tensor] | None = {}
        """Which rows of a pass are read with which adapter, [rows] 0 or 1 each (None: the trained one); {} if that
        reads all, None if they are mixed."""

    def w(self) -> Tensor:
        """Return the weights of the adapters that can be reused and of the new one."""
        return torch.cat([self.c[: len(self.owners) - self.first], self.c[-1:]]).softmax(0)

    def choose(self, owner: str | None, rows: Sequence[str]) -> None:
        """Set how the next passes are computed.

        Args:
            owner: domain that added the adapter of the domain that is learnt; None mixes all.
            rows: the same for each row of the next training passes; none if all are of that domain.
        """
        if owner is None:
            self._rows = None
            return
        of_rows = [None if row == owner else self.owners.index(row) for row in rows]
        used = dict.fromkeys(of_rows) if {*of_rows} - {None} else {}
        self._rows = {of: torch.tensor([float(row == of) for row in of_rows], device=self.c.device) for of in used}

    @torch.no_grad()
    def decided(self, stage: Stage) -> str | None:
        """Return the owner of the adapter with the largest c, which becomes the trained one; None for the new one."""
        c = full_tensor(self.c)
        candidates = self.owners[self.first :]
        best = int(torch.cat([c[: len(candidates)], c[-1:]]).argmax())
        if best == len(candidates):
            return None
        for parameter, earlier in zip(self.own.parameters(), self.earlier[self.first + best].parameters(), strict=True):
            local(parameter).copy_(local(earlier))
            for state in stage.optimizer.state.get(parameter, {}).values() if stage.optimizer else ():
                state.zero_()
        return candidates[best]

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], hidden: Tensor) -> Tensor:
        """Replace the output of a feed-forward network, [rows, S, H] or [rows · S, H]; a forward hook."""
        adapters: list[tuple[nn.Module, Tensor]]
        if self._rows is None:
            w = self.w()
            self.entropy = -(w * w.log()).sum()
            adapters = [*zip([*self.earlier[self.first :], self.own], w, strict=True)]
        elif self.training and self._rows:
            adapters = [(self.own if of is None else self.earlier[of], rows) for of, rows in self._rows.items()]
        else:
            adapters = [(self.own, hidden.new_ones(()))]
        mixed = sum(adapter(hidden) * _spread(share, hidden) for adapter, share in adapters)
        return mixed + 0 * self.c.sum().to(hidden.dtype)  # without c DDP would regard it as unused


def _spread(share: Tensor, hidden: Tensor) -> Tensor:
    """Return the factors of rows, or of all, such that hidden states can be multiplied by them."""
    if share.dim() and hidden.dim() == 2:  # a layer that flattens rows and positions (OPT)
        share = share.repeat_interleave(len(hidden) // len(share))
    return share.to(hidden.dtype).view(-1, *[1] * (hidden.dim() - 1)) if share.dim() else share.to(hidden.dtype)
