"""Normalise raw importance to a protection in [0, 1), and combine several (arXiv 2302.03241, §4.1 and §4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from everlearn.errors import MethodError

Normalisation = Literal["tanh_abs", "relu_tanh", "rank"]
_BELOW_ONE = 1 - torch.finfo(torch.float32).eps / 2


def normalise(scores: Mapping[str, Tensor], how: Normalisation = "tanh_abs") -> dict[str, Tensor]:
    """Normalise scores to [0, 1) for each site: z = (I − mean) / std over its units (unbiased std), then squashed.

    Args:
        scores: site name → raw importance, [units]. Equal scores, or a single unit, carry no information and become 0.
        how: `tanh_abs` is the paper's |tanh(z)|. It also protects the *least* important units, whose z is far below 0,
            and leaves average ones free. `relu_tanh` is tanh(max(z, 0)): only units above the average are protected.
            `rank` is the share of units that are less important (half of the equal ones), whatever the distribution of
            the scores: the mean protection is ½.

    Raises:
        MethodError: a score is not finite.
    """
    return {name: _normalise(name, score, how) for name, score in scores.items()}


def _normalise(name: str, score: Tensor, how: Normalisation) -> Tensor:
    if not torch.isfinite(score).all():
        raise MethodError(f"The importance of '{name}' is not finite, so it cannot be normalised.")
    # On the CPU, as not every device has float64, which is needed for differences of tiny or huge scores.
    values = score.detach().to("cpu", torch.float64)
    spread = values.max() - values.min() if values.numel() > 1 else torch.tensor(0.0)
    if spread == 0:
        return torch.zeros(score.shape, device=score.device)
    if how == "rank":
        ordered = values.sort().values
        below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
        return ((below + up_to - 1) / (2 * len(values))).to(score.device, torch.float32)
    values = (values - values.min()) / spread
    z = (values - values.mean()) / values.std()
    squashed = torch.tanh(z.abs() if how == "tanh_abs" else z.clamp(min=0))
    # tanh rounds to 1 for z above 9; 1 is reserved for "never changes", which no finite importance implies.
    return squashed.clamp(max=_BELOW_ONE).to(score.device, torch.float32)


def accumulate(maps: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the element-wise maximum of normalised maps: what any of them protects stays protected (§4.2).

    Raises:
        MethodError: the maps belong to models with different units.
    """
    result: dict[str, Tensor] = {}
    for number, scores in enumerate(maps):
        if number == 0:
            result = dict(scores)
            continue
        for name in result.keys() ^ scores.keys():
            raise MethodError(f"Importance maps differ: one has '{name}', another has not.")
        for name, score in scores.items():
            if score.shape != result[name].shape:
                raise MethodError(
                    f"Importance maps differ: '{name}' has {tuple(result[name].shape)} and {tuple(score.shape)} units."
                )
            result[name] = torch.maximum(result[name], score.to(result[name]))
    return result
