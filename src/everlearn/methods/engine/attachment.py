"""Modules that a method adds to a plain model during a stage or a test: adapters, gates, prompts.

Between stages a model is a plain transformers model, so additions are attached and detached. While it is attached, an
attachment is a submodule of the model: the optimizer, checkpoints, DDP and FSDP2 see its parameters. It changes the
computation by hooks only, placed by module path, so that it fits the language model and a classifier made of it alike.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import Method, Setting
from everlearn.model.structure import architecture_of
from everlearn.model.units import why_without_units

PREFIX = "everlearn_"


class Attachment(nn.Module):
    """Base class of attached modules: create the parameters in ``__init__``, place the hooks in :meth:`place`.

    Its own weights are float32 whatever the type of the model, because small steps are lost in 16 bits. With a model in
    16 bits they compute in 16 bits (:func:`computing_like`), as all weights do with `train.bf16`.

    Hooks must be bound methods of the attachment or of its submodules. Then a copy of the model (FSDP2 needs one) has
    hooks that belong to the copy, and :meth:`detach` finds them.

    Class attributes:
        lengthens_rows: whether it prepends vectors to a text; then the model cannot be run token by token.
        shares_prompts: whether each token depends only on itself and the tokens that its mask allows, so that several
            texts may share one prompt (:mod:`everlearn.model.shared_prompt`).
    """

    lengthens_rows: ClassVar[bool] = False
    shares_prompts: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.frozen: tuple[str, ...] = ()

    def place(self, model: nn.Module) -> None:
        """Register forward hooks and pre-hooks on modules of the model."""
        raise NotImplementedError

    def low_rank(self) -> dict[str, str]:
        """Return the paths of the submodules that add low-rank matrices, by the path of their layer in the model.

        The submodule has ``lora_A`` and ``lora_B``, like PEFT's layers, and its output is that of the complete layer.
        """
        return {}

    def attach(self, model: nn.Module, name: str, *, freeze: bool = False) -> None:
        """Add this module to the model.

        Args:
            name: name of the method; the parameters of the attachment are called ``everlearn_<name>.…``.
            freeze: whether only the attachment is trained until it is detached.

        Raises:
            MethodError: there is already an attachment of that name.
        """
        if hasattr(model, PREFIX + name):
            raise MethodError(f"Method '{name}' is attached to this model already.")
        if freeze:
            trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
            self.frozen = tuple(key for key, _ in trained)
            for _, parameter in trained:
                parameter.requires_grad_(False)
        model.add_module(PREFIX + name, self.to(next(model.parameters()).device).train(model.training))
        self.place(model)


def computing_like(hidden: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which float32 linear layers compute in the precision of 16-bit hidden states."""
    if hidden.dtype in (torch.bfloat16, torch.float16):
        return torch.autocast(hidden.device.type, hidden.dtype)
    return contextlib.nullcontext()


def frozen(values: Iterable[Tensor]) -> nn.ParameterList:
    """Return copies as parameters that are never trained, one each because FSDP2 cannot shard an empty parameter."""
    return nn.ParameterList(nn.Parameter(value.detach().clone(), requires_grad=False) for value in values)


def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a forward pass by name, for a pre-hook."""
    bound = dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    return bound | bound.pop("kwargs", {})


def without_decay(groups: list[dict[str, Any]], parameter: nn.Parameter) -> list[dict[str, Any]]:
    """Return the parameter groups with one parameter in a separate group without weight decay."""
    result = []
    for group in groups:
        rest = [other for other in group["params"] if other is not parameter]
        if len(rest) == len(group["params"]) or not group.get("weight_decay"):
            result.append(group)
        else:
            result += [{**group, "params": rest}, {**group, "params": [parameter], "weight_decay": 0.0}]
    return [group for group in result if group["params"]]


def attached(model: nn.Module, name: str) -> Any:
    """Return the attachment of a method.

    Raises:
        MethodError: there is none, because the model was replaced.
    """
    attachment = getattr(model, PREFIX + name, None)
    if attachment is None:
        raise MethodError(f"Method '{name}' lost its attached modules: the stage's model was replaced.")
    return attachment


def low_rank_beside(model: nn.Module) -> dict[str, str]:
    """Return the path of the low-rank matrices that a method has added, by the path of their layer."""
    attachments = [(name, child) for name, child in model.named_children() if isinstance(child, Attachment)]
    return {path: f"{name}.{own}" for name, child in attachments for path, own in child.low_rank().items()}


def detach(model: nn.Module, name: str) -> Any:
    """Remove the attachment of a method from the model and return it; without others the model is plain again."""
    attachment = attached(model, name)
    own = {id(module) for module in attachment.modules()}
    for hooks, key in list(_hooks(model)):
        if id(getattr(hooks[key], "__self__", None)) in own:
            del hooks[key]
    delattr(model, PREFIX + name)
    for path, parameter in model.named_parameters():
        if path in attachment.frozen:
            parameter.requires_grad_(True)
    return attachment


def learnt_by(own: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return a copy of all trained parameters."""
    return {name: value.detach().cpu().clone() for name, value in own.items() if value.requires_grad}


def fill(own: Mapping[str, nn.Parameter], learnt: Mapping[str, Tensor], method: Method) -> None:
    """Load into parameters what :func:`learnt_by` copied, after :func:`refuse_other_shapes`."""
    refuse_other_shapes(own, learnt, method)
    with torch.no_grad():
        for name, value in learnt.items():
            own[name].copy_(value)


def refuse_other_shapes(own: Mapping[str, nn.Parameter], learnt: Mapping[str, Tensor], method: Method) -> None:
    """Raise ``MethodError`` if tensors in the memory of a method belong to another model or to other options."""
    for name, value in learnt.items():
        if name not in own or own[name].shape != value.shape:
            raise MethodError(
                f"Method '{method.label}' remembers '{name}' with shape {tuple(value.shape)}, which does not fit this "
                "model. Its memory belongs to another model or other options of the method."
            )


def attach_at_test(attachment: Attachment, model: nn.Module, name: str, *, freeze: bool) -> nn.Module:
    """Attach a module to a model at test time and return the model; with `freeze` fine-tuning changes neither."""
    if freeze:
        freeze_base(model)
        attachment.requires_grad_(False)
    attachment.attach(model, name)
    return model


def freeze_base(model: nn.Module) -> None:
    """Make only the classification head and attached modules of a classifier trainable."""
    base: Any = model.base_model
    base.requires_grad_(False)


def refuse_other_additions(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` if another method adds parameters, which this one would freeze."""
    for other in setting.methods:
        if other.name != method.name and other.needs.extra_parameters:
            raise MethodError(
                f"Method '{method.label}' freezes all parameters except its own, also those that method "
                f"'{other.label}' adds. Remove one of them from `method`."
            )


def refuse_frozen_model(method: Method, setting: Setting, instead: str = "", *, low_rank: bool = False) -> None:
    """Raise ``MethodError`` if another method freezes the model, so that its weights do not change.

    Args:
        instead: an alternative for the message, besides removing one of the methods.
        low_rank: whether low-rank matrices beside the frozen model are sufficient.
    """
    for other in setting.methods:
        if other.freezes and not (low_rank and other.adds_low_rank(setting.model)):
            raise MethodError(
                f"Method '{other.label}' freezes the model, so method '{method.label}' has nothing to protect. "
                f"Remove one of them from `method`{instead}."
            )


def refuse_without_attention(method: Method, setting: Setting, what: str) -> None:
    """Raise ``MethodError`` if the model has no attention; `what` says how the method uses it."""
    stacks = architecture_of(setting.model).stacks
    if not any(stack.attentions for stack in stacks):
        raise MethodError(
            f"Method '{method.label}' {what}, but '{type(setting.model).__name__}' has no attention. Choose a "
            "transformer (`model.path`), or another method."
        )


def refuse_without_units(
    method: Method, setting: Setting, kinds: Collection[str] = ("head", "neuron", "output"), instead: str = ""
) -> None:
    """Raise ``MethodError`` if units that a method uses are unknown or violate its assumptions.

    Args:
        kinds: the kinds of units that it uses.
        instead: an alternative to suggest in the message.
    """
    if why := why_without_units(setting.model, kinds):
        raise MethodError(
            f"Method '{method.label}' uses the attention heads or neurons of a model, and in "
            f"'{type(setting.model).__name__}' {why}. Set `method` to one that does not, such as mas, ewc, migu or "
            f"replay{instead}."
        )


def _hooks(model: nn.Module) -> Iterator[tuple[dict[int, Callable[..., Any]], int]]:
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in hooks:
                yield hooks, key
        # Keys are never reused, so torch's other dictionaries may keep entries of removed hooks.
