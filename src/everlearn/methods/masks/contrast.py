"""The contrastive loss of DAS: pairs of representations, and the loss over the rows of all processes."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from everlearn.methods.engine.processes import GatherGrad, everywhere, rank

Pair = Literal["correct", "interleaved"]


def contrasted(rows: int, fraction: float) -> int:
    """Return the number of rows of a batch in the contrastive loss: the fraction, but at least two if possible."""
    return min(rows, max(2, round(fraction * rows)))


def paired(full: Tensor, again: Tensor, pair: Pair = "correct") -> tuple[Tensor, Tensor]:
    """Return anchors and their positives from two representations of the same texts in the same order, [n, H] each.

    `interleaved` reproduces the released code: it concatenates the two copies, in which a text and its copy are n rows
    apart, but pairs adjacent rows, so that with two or more texts the positive of an anchor is hardly ever the same
    text. The second row of a pair is the anchor.
    """
    if pair == "correct":
        return full, again
    both = torch.cat([full, again])
    return both[1::2], both[0::2]


def contrast(
    full: Tensor, again: Tensor, previous: Tensor | None, temperature: float, gather_grad: GatherGrad = "full"
) -> Tensor:
    """Return the InfoNCE loss between texts (the contrastive loss of arXiv 2302.03241).

    −(1/N) Σ_n log( e^{s(a_n, p_n)/τ} / Σ_j (e^{s(a_n, p_j)/τ} + e^{s(a_n, v_j)/τ}) ), s the cosine, in float32, with N
    the number of rows of all processes.

    Args:
        full: representations a, [n, H].
        again: representations p of the same texts in the same order, under another dropout, [n, H].
        previous: representations v through the gated network, [n, H]; None leaves their terms out.
        temperature: τ.
        gather_grad: `full`: the gradient reaches the gathered rows of every process, summed, so once gradients are
            averaged over processes, as DDP and FSDP do, the result is that of one process with all rows. `local`, as in
            the released code: every process computes the complete loss, but differentiates its own rows only, so the
            average is 1/W of it on W processes.

    Returns:
        The mean over this process's rows (`local`: over all rows).
    """
    anchors = F.normalize(full.float(), dim=-1)
    others = [again] if previous is None else [again, previous]
    first = rank() * len(anchors)
    if gather_grad == "local":
        anchors, first = everywhere(anchors, gather_grad), 0
    candidates = [everywhere(F.normalize(other.float(), dim=-1), gather_grad) for other in others]
    logits = torch.cat([anchors @ rows.T for rows in candidates], dim=1) / temperature
    return F.cross_entropy(logits, torch.arange(first, first + len(anchors), device=logits.device))
