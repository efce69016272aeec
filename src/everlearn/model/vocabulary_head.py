"""The vocabulary head: compute losses instead of logits, and project labelled positions only.

Inside :func:`at_head` the last hidden state is captured as it enters the head and reduced to the labelled positions,
and the last module of the head returns the loss of each label (or another function of the logits) instead of the
logits, computed in chunks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everlearn.errors import ModelError
from everlearn.model.anatomy import head_path
from everlearn.model.cross_entropy import cross_entropy
from everlearn.model.finding import output_embeddings
from everlearn.model.logit_scale import check_head, hidden_scale, logit_scale, whole_head
from everlearn.model.parameter_substitution import substituted, substituting
from everlearn.model.summed_losses import can_sum, summed_losses

LogitObserver = Callable[[Tensor, Tensor], None]
LogitLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""Function from logits [n, V] (float32, capped), their labels [n], and their place among all labels, to losses [n]."""
IGNORE = -100
LOGITS_PER_CHUNK = 2**26
"""Largest number of logits held at once; larger projections are split into chunks, whose gradients are computed in the
forward pass (:func:`summed_losses`), or which the backward pass recomputes."""
CAPS: Mapping[str, float | None] = {"final_logit_softcapping": None, "logits_soft_cap": 2.0**60}
"""Options of a configuration that cap the logits, and the value that leaves them as they are: RecurrentGemma divides by
its cap in any case, and a power of two divides without an error."""
_OBSERVERS: WeakKeyDictionary[nn.Module, list[LogitObserver]] = WeakKeyDictionary()


def config_of(model: nn.Module) -> Any:
    """Return the configuration of a model (torch types every attribute of a module as a tensor or module)."""
    return model.config


def output_head(model: nn.Module) -> nn.Module | None:
    """Return the module whose output is the logits, or None.

    It is the projection to the vocabulary, or the module around it (:func:`whole_head`).
    """
    last = output_embeddings(model)
    return last if last is None else whole_head(last)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside DDP, torch.compile or DeepSpeed; FSDP2 changes a model in place without a wrapper."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (model.module if hasattr(model, "module") else None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def without_mixed_precision(model: nn.Module) -> nn.Module:
    """Remove the mixed precision that Accelerate leaves on an unwrapped model; methods measure in float32."""
    for name in ("forward", "_original_forward"):
        vars(model).pop(name, None)
    return model


@dataclass(frozen=True)
class OriginalHead:
    """The head of a model, while another function stands in place of its forward.

    Attributes:
        head: its module.
        forward: the original forward of the head.
        finish: what the model does to its outputs: it adds a bias, or scales them.
    """

    head: nn.Module
    forward: Callable[[Tensor], Tensor]
    finish: Callable[[Tensor], Tensor]

    def __call__(self, features: Tensor) -> Tensor:
        """Return the logits before a cap, [n, V]."""
        return self.finish(self.forward(features))

    @property
    def width(self) -> int:
        """Return the size of the vocabulary."""
        rows = getattr(self.head, "out_features", None)
        return int(rows or max(weight.shape[0] for weight in self.head.parameters()))


AtHead = Callable[[OriginalHead, Tensor, Tensor, float | None], Tensor]
"""Function from the projection, its inputs [N, H], their labels [N] and the cap of the logits to the result."""


class Labelled(NamedTuple):
    """Labels of a group of consecutive rows.

    Attributes:
        labels: [b, K]; None if the rows have no labels.
        positions: [b, K], the position at which each label is predicted; None if every position has a label.
        rows: index of the group of rows of the forward pass that the labels belong to.
        loss: function of the logits at the labels; None for cross-entropy.
        summed: whether the losses will be summed before they are differentiated; a hint for the fastest way.
    """

    labels: Tensor | None
    positions: Tensor | None
    rows: int = 0
    loss: LogitLoss | None = None
    summed: bool = False


@contextlib.contextmanager
def at_head(
    model: nn.Module, parts: Sequence[Labelled], rows: Sequence[int], of: AtHead | None = None
) -> Iterator[list[Tensor]]:
    """Make the model return the loss of each label of all parts, in nats, or the result of `of`, instead of logits.

    Yields:
        A list that holds the last hidden state after the forward pass (:func:`last_hidden_state`).
    """
    compute = of or partial(_chunked_loss, parts=[part for part in parts if part.labels is not None])
    caught: list[Tensor] = []
    path = head_path(model)
    first, last = model.get_submodule(path), output_embeddings(model)
    if last is None:
        raise ModelError(f"'{type(model).__name__}' has no vocabulary head.")
    config, (capped, cap) = text_config(model), _cap(model)
    owner, bias = _added_bias(model, path)
    check_head(model, first, last, bias, cap)
    last = whole_head(last)
    scale = logit_scale(last)
    labels = torch.cat([part.labels.flatten() for part in parts if part.labels is not None])

    def keep_labelled(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        caught.append(last_hidden_state(model, last, args[0]))
        kept, groups = [], args[0].split(list(rows))
        for part in parts:
            if part.labels is not None:
                hidden = groups[part.rows]
                if part.positions is not None:
                    hidden = hidden.gather(1, part.positions[:, :, None].expand(-1, -1, hidden.shape[-1]))
                kept.append(hidden.flatten(0, 1))
        return (torch.cat(kept) if len(kept) > 1 else kept[0], *args[1:])

    finish: Callable[[Tensor], Tensor] = _unchanged
    if owner is not None:
        # The bias that the model adds after the head must be added to the logits, not to their losses.
        finish = partial(torch.add, bias)
        owner.final_logits_bias = bias.new_zeros(())
    if scale != 1:
        # The model scales the output of its head: divide the losses by the factor in advance.
        finish = partial(torch.mul, other=scale)
    project = OriginalHead(last, last.forward, finish)
    handle = first.register_forward_pre_hook(keep_labelled)
    if scale == 1:
        last.forward = lambda features: compute(project, features, labels, cap)
    else:
        last.forward = lambda features: compute(project, features, labels, cap) / scale
    if cap is not None:
        vars(config)[capped] = CAPS[capped]  # assigned, it would be checked: some types require a number
    try:
        yield caught
    finally:
        handle.remove()
        del last.forward  # restores the forward of the class
        if owner is not None:
            owner.final_logits_bias = bias
        if cap is not None:
            vars(config)[capped] = cap


def _added_bias(model: nn.Module, path: str) -> tuple[Any, Any]:
    """Return the module around the head that adds a bias to the logits, as BART does, and the bias, [1, V].

    Both are None if there is no such module. Only the modules on the path to the head are asked: a forward pass through
    a tiny model would spend a fiftieth of its time on a search in all modules.
    """
    for name in path.split("."):
        if (bias := model._buffers.get("final_logits_bias")) is not None:
            return model, bias
        model = model.get_submodule(name)
    return None, None


def last_hidden_state(model: nn.Module, head: nn.Module, entered: Tensor) -> Tensor:
    """Return the last hidden state, from what enters the vocabulary head: some models scale it in between.

    Args:
        model: without a distributed wrapper.
        head: the last module of its vocabulary head (:func:`output_head`).
        entered: the input of the first module of its vocabulary head.
    """
    scale = hidden_scale(model, head)
    return entered if scale == 1 else entered / scale


def apart(losses: Tensor, parts: Sequence[Labelled]) -> Iterator[Tensor | None]:
    """Yield the losses of each part in the shape of its labels; None for a part without labels."""
    rest = losses.flatten()
    for part in parts:
        if part.labels is None:
            yield None
        else:
            own, rest = rest.split([part.labels.numel(), rest.numel() - part.labels.numel()])
            yield own.view(part.labels.shape)


def the_features(project: OriginalHead, features: Tensor, labels: Tensor, cap: float | None) -> Tensor:
    """Return the features unchanged, [N, H]."""
    return features


def logits_of(model: nn.Module, features: Tensor) -> Tensor:
    """Return the logits of :meth:`Objective.label_features`, [n, V] float32, capped if the model caps them."""
    core = unwrap(model)
    head: Any = output_head(core)
    return _capped(_with_bias(head(features).float() * logit_scale(head), logit_bias(core)), logit_cap(core))


def logit_cap(model: nn.Module) -> float | None:
    """Return the value at which a model caps its logits (Gemma 2), or None.

    Inside :func:`at_head`, which caps them itself, it is None.
    """
    return _cap(model)[1]


def _cap(model: nn.Module) -> tuple[str, float | None]:
    """Return the option that caps the logits, and its value, None if it has no effect."""
    config = text_config(model)
    for name, without in CAPS.items():
        if (cap := getattr(config, name, without)) != without:
            return name, cap
    return "", None


def logit_bias(model: nn.Module) -> Tensor | None:
    """Return the bias that a model adds to the logits of its head (BART), [1, V], or None.

    Inside :func:`at_head`, which adds the bias itself, it is 0.
    """
    bias: Tensor | None = _added_bias(model, head_path(model))[1]
    return bias


def projection(head: nn.Module, cap: float | None, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Return the original projection of the head, even inside :func:`at_head`, which replaces its forward.

    Args:
        head: the last module of the vocabulary head (:func:`output_head`).
        cap: the cap of the model's logits (:func:`logit_cap`).
        bias: the bias that the model adds to them (:func:`logit_bias`).

    Returns:
        A function from features [n, H] to logits [n, V], float32. Tensors that are substituted for the weights of the
        head now are used in all later calls.
    """
    weights = substituted(head)

    def project(features: Tensor) -> Tensor:
        with substituting(head, weights):
            logits = type(head).forward(head, features).float() * logit_scale(head)
            return _capped(_with_bias(logits, bias), cap)

    return project


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the part of a model that generates text, in most models its own configuration."""
    config = config_of(model)
    if config.is_encoder_decoder and not config.sub_configs:
        return config  # transformers makes a copy of it for each call, and a step calls a few times
    return config.get_text_config(decoder=True)


def _with_bias(logits: Tensor, bias: Tensor | None) -> Tensor:
    return logits if bias is None else logits + bias.to(logits.device)


def _unchanged(outputs: Tensor) -> Tensor:
    return outputs


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * torch.tanh(logits / cap)


def log_probabilities(project: OriginalHead, features: Tensor, labels: Tensor, cap: float | None) -> Tensor:
    """Return the log-probabilities of all tokens, [N, V]; in float64, so that no two logits become one probability."""
    return torch.log_softmax(_capped(project(features).double(), cap), -1)


def certainties(project: OriginalHead, features: Tensor, labels: Tensor, cap: float | None) -> Tensor:
    """Return the nats of each label, the nats of the most likely token and the entropy, [N, 3]; computed in chunks."""
    rows = max(1, LOGITS_PER_CHUNK // 4 // project.width)
    chunks = []
    for part, targets in zip(features.split(rows), labels.split(rows), strict=True):
        likely = log_probabilities(project, part, targets, cap)
        nats = -likely.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        of_all = torch.stack([nats, -likely.amax(1), torch.special.entr(likely.exp()).sum(1)], 1)
        chunks.append(of_all.masked_fill(targets[:, None] == IGNORE, 0))
    return torch.cat(chunks)


def likeliest(project: OriginalHead, features: Tensor, labels: Tensor, cap: float | None) -> Tensor:
    """Return the nats of each label, the most likely token and its nats, [N, 3] float64, computed in float32 chunks."""
    rows = max(1, LOGITS_PER_CHUNK // 4 // project.width)
    chunks = []
    for part, targets in zip(features.split(rows), labels.split(rows), strict=True):
        logits = _capped(project(part).float(), cap)
        best = logits.max(1)
        all_of_it = logits.logsumexp(1).double()
        nats = all_of_it - logits.gather(1, targets.clamp(min=0)[:, None])[:, 0].double()
        three = torch.stack([nats, best.indices.double(), all_of_it - best.values.double()], 1)
        chunks.append(three.masked_fill(targets[:, None] == IGNORE, 0))
    return torch.cat(chunks)


def drawn(
    project: OriginalHead,
    features: Tensor,
    labels: Tensor,
    cap: float | None,
    *,
    chances: Tensor,
    without: Sequence[int] = (),
) -> Tensor:
    """Sample a token for every row by inverse transform sampling, [N] float64, never one of `without`."""
    words = []
    for part, chance in zip(features.split(256), chances.to(features.device).flatten().split(256), strict=True):
        likely = log_probabilities(project, part, labels, cap).exp()
        likely[:, list(without)] = 0
        summed = running_sums(likely)
        # Scale by the last sum, which is 1 except for rounding, so that no value lies beyond it.
        words.append(torch.searchsorted(summed, (chance * summed[:, -1])[:, None], right=True).squeeze(1))
    return torch.cat(words).double()


def running_sums(values: Tensor) -> Tensor:
    """Return the sums along the last dimension up to each value; on the CPU if they must be deterministic."""
    if not torch.are_deterministic_algorithms_enabled():
        return values.cumsum(-1)
    return values.cpu().cumsum(-1).to(values.device)  # a GPU's kernel is refused then


class LogitsHandle(NamedTuple):
    """A handle that removes an observer of the logits of a head."""

    head: nn.Module
    observer: LogitObserver

    def remove(self) -> None:
        """Remove the observer."""
        _OBSERVERS[self.head].remove(self.observer)


def observe_logits(head: nn.Module, observer: LogitObserver) -> LogitsHandle:
    """Call `observer` with the logits of a batch, [n, V], and their labels, [n], before they are reduced to losses.

    Args:
        head: the last module of the vocabulary head (:func:`output_head`).
        observer: may read both tensors, during the call only.
    """
    _OBSERVERS.setdefault(head, []).append(observer)
    return LogitsHandle(head, observer)


def _chunked_loss(
    project: OriginalHead,
    features: Tensor,
    labels: Tensor,
    cap: float | None,
    parts: Sequence[Labelled],
) -> Tensor:
    """Return the loss of each label, [N] float32, from features [N, H], computed in chunks of logits.

    The labels of the first part are those of the batch itself, which observers see.
    """

    # Checkpointing recomputes this in the backward pass, which must see the weights that are substituted now.
    weights = substituted(project.head)

    def losses(part: Tensor, targets: Tensor, own: int, loss: LogitLoss | None, at: slice) -> Tensor:
        with substituting(project.head, weights):
            return of_logits(project(part).float(), targets, own, loss, at)

    def of_logits(logits: Tensor, targets: Tensor, own: int, loss: LogitLoss | None, at: slice) -> Tensor:
        for observer in _OBSERVERS.get(project.head, ()) if own > 0 else ():
            observer(logits.detach()[:own], targets[:own])
        logits = _capped(logits, cap)
        return cross_entropy(logits, targets, IGNORE) if loss is None else loss(logits, targets, at)

    def of_the_batch(outputs: Tensor, at: slice, first: bool) -> Tensor:
        return of_logits(project.finish(outputs).float(), labels[at], len(outputs) if first else 0, None, at)

    rows = max(1, LOGITS_PER_CHUNK // project.width)
    own = 0 if parts[0].labels is None else parts[0].labels.numel()
    many = len(features) > rows
    results, start = [], 0
    if many and parts[0].summed and torch.is_grad_enabled() and can_sum(project.head, features):
        # Half as many logits at once: beside them are the sums of gradients, and it is as fast.
        at_once = max(1, rows // 2)
        results.append(summed_losses(of_the_batch, project.head, features[:own], labels[:own] != IGNORE, at_once))
        parts, start = parts[1:], own
    pieces = [
        (features[place], labels[place], own - place.start, loss, at) for place, loss, at in _chunks(parts, rows, start)
    ]
    results += [checkpoint(losses, *piece, use_reentrant=False) if many else losses(*piece) for piece in pieces]
    return results[0] if len(results) == 1 else torch.cat(results)


def _chunks(parts: Sequence[Labelled], rows: int, start: int) -> Iterator[tuple[slice, LogitLoss | None, slice]]:
    """Yield the place of each chunk of labels among all labels, its loss, and its place in the labels of that loss.

    Labels with cross-entropy share chunks, whatever rows they belong to.

    Args:
        parts: the parts, of which the first begins at the label `start`.
        rows: largest number of labels in a chunk.
        start: number of a label.
    """
    for _, several in itertools.groupby(parts, key=lambda part: part.loss and id(part)):
        group = list(several)
        count = sum(part.labels.numel() for part in group if part.labels is not None)
        for at in range(0, max(1, count), rows):
            here = slice(at, min(at + rows, count))
            yield slice(start + here.start, start + here.stop), group[0].loss, here
        start += count
