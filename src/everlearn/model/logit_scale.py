"""Check by one forward pass how logits follow from the last hidden state through the output head."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from everlearn.errors import ModelError, first_line
from everlearn.model.anatomy import kind_of
from everlearn.model.architectures import registered
from everlearn.model.finding import transformers_model
from everlearn.model.training_mode import evaluating

_SCALES: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()
_HIDDEN_SCALES: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()
_WHOLE: WeakKeyDictionary[nn.Module, ref[nn.Module]] = WeakKeyDictionary()
_TOKENS = [[10, 11]]


def whole_head(last: nn.Module) -> nn.Module:
    """Return the module whose outputs are the logits: `last`, or a module around it that adds something (ESM).

    Args:
        last: the projection of a vocabulary head that :func:`check_head` has seen.
    """
    around = _WHOLE[last]() if last in _WHOLE else None
    return last if around is None else around


def logit_scale(head: nn.Module) -> float:
    """Return the factor by which a model multiplies the outputs of its head (Cohere, Granite); 1 for most models.

    Args:
        head: the last module of a vocabulary head that :func:`check_head` has seen.
    """
    return _SCALES.get(head, 1.0)


def hidden_scale(model: nn.Module, head: nn.Module) -> float:
    """Return the factor by which a model multiplies its last hidden state before the head; 1 for most models.

    It is d^(−½) in T5 with tied embeddings.

    Args:
        model: without a distributed wrapper.
        head: the last module of its vocabulary head, which :func:`check_head` has seen.
    """
    config = transformers_model(model)[1].config
    if getattr(config, "scale_decoder_outputs", False):
        return float(config.d_model) ** -0.5
    return _HIDDEN_SCALES.get(head, 1.0)


def check_head(model: nn.Module, first: nn.Module, last: nn.Module, bias: Tensor | None, cap: float | None) -> None:
    """Check once that logits are the outputs of the head, apart from bias, cap and scale; measure the scales.

    The head is its last module, or else the first one, if it contains the last.

    Heads of registered architectures are known, and a model on the meta device has no numbers: both pass. Fake tensors
    have no numbers either, but their shapes show what is added to the outputs.

    Args:
        model: without a distributed wrapper.
        first: the module that takes the last hidden state.
        last: the module that projects to the vocabulary.
        bias: what the model adds to its outputs.
        cap: the value at which it caps them.

    Raises:
        ModelError: the model makes something else of its last hidden state, or cannot make a pass.
    """
    inner = transformers_model(model)[1]
    if last in _SCALES or registered(str(inner.config.model_type)) is not None:
        return
    weight = next(last.parameters())
    if weight.device.type == "meta":
        return
    around = first is not last and any(module is last for module in first.modules())
    for head in (last, first) if around else (last,):
        hidden, before, outputs, logits = _one_pass(model, first, head, weight.device)
        if hidden.shape[:2] != (1, 2) or hidden.dim() != 3 or outputs.shape != logits.shape:
            continue
        # A bias is added to each output, so the logits of one output alone would be as many as it has.
        if bias is None and _one_pass(model, first, head, weight.device, outputs=1)[3].shape[-1] != 1:
            continue
        if head is first and around:
            _WHOLE[last] = ref(first)
        if hasattr(weight, "fake_mode"):
            _SCALES[last] = _SCALES[head] = 1.0
            return
        near = 1e-4 if outputs.dtype == torch.float32 else 2e-2
        scale = _scale(outputs.double(), logits.double(), bias, cap, near)
        if scale is not None:
            _SCALES[last] = _SCALES[head] = scale
            if before is not None:
                _HIDDEN_SCALES[head] = _scale(before.double(), hidden.double(), None, None, near) or 1.0
            return
    raise ModelError(
        f"'{type(inner).__name__}' makes its logits in another way than from its output embeddings with a bias, a "
        "cap or a factor, so their loss cannot be computed in parts. Choose another `model.path`, or register the "
        "path of its head (docs/add-an-architecture.md)."
    )


def _one_pass(
    model: nn.Module, first: nn.Module, last: nn.Module, device: torch.device, outputs: int | None = None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return what enters the head, the last hidden state, what leaves the head, and the logits, of a row of two tokens.

    The second is None if no part of the model returns a hidden state in the shape of the first. With `outputs` only so
    many outputs leave the head.
    """
    entered: list[Tensor] = []
    left: list[Tensor] = []
    hidden: list[Tensor] = []

    def enters(_: nn.Module, args: tuple[Any, ...]) -> None:
        entered.append(args[0] if args else torch.empty(0))

    def leaves(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
        left.append(output)
        return None if outputs is None else output[..., :outputs]

    def returns(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if isinstance(state := getattr(output, "last_hidden_state", None), Tensor):
            hidden.append(state)

    ids = torch.tensor(_TOKENS, device=device)
    more = {"decoder_input_ids": ids} if kind_of(model) == "encoder-decoder" else {}
    handles = [first.register_forward_pre_hook(enters), last.register_forward_hook(leaves)]
    handles += [module.register_forward_hook(returns) for module in model.modules()]
    name = type(transformers_model(model)[1]).__name__
    versions = [parameter._version for parameter in model.parameters()]
    try:
        with torch.no_grad(), evaluating(model):
            logits = model(input_ids=ids, **more).logits
    except Exception as error:  # a model may raise anything for what its configuration lacks
        if hasattr(next(model.parameters()), "fake_mode"):
            raise  # whoever traces a model knows what a fake tensor cannot do
        raise ModelError(
            f"'{name}' cannot read two tokens: {first_line(error).rstrip('.')}. "
            "Values of its configuration are set in `model.config`."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if versions != [parameter._version for parameter in model.parameters()]:
        raise ModelError(
            f"'{name}' changes its own weights in a forward pass, which methods and checkpoints would not see. If it "
            "is an RWKV, set `model.config: {rescale_every: 0}`."
        )
    if not len(entered) == len(left) == 1 or not isinstance(left[0], Tensor):
        return torch.empty(0), None, logits, logits
    before = next((state for state in reversed(hidden) if state.shape == entered[0].shape), None)
    return entered[0], before, left[0], logits


def _scale(outputs: Tensor, logits: Tensor, bias: Tensor | None, cap: float | None, near: float) -> float | None:
    """Return the factor between outputs and logits; None if they differ in more than that."""
    biased = outputs if bias is None else outputs + bias.double()
    capped = biased if cap is None else cap * torch.tanh(biased / cap)
    if _close(capped, logits, near):
        return 1.0
    scale = float((outputs * logits).sum() / outputs.square().sum().clamp(min=1e-30))
    scale = float(f"{scale:.6g}")  # float32 logits know no more digits
    return scale if bias is None and cap is None and _close(scale * outputs, logits, near) else None


def _close(one: Tensor, other: Tensor, near: float) -> bool:
    return float((one - other).abs().max()) <= near * max(float(other.abs().max()), 1e-6)
