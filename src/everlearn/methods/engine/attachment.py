"""What a method adds to a plain model for the time of a stage or a test: adapters, gates, prompts.

Between stages a model is a plain transformers model, so additions come and go. While it is attached, an attachment is a
module of the model: the optimizer, checkpoints, DDP and FSDP2 see its parameters. It reaches into the model by hooks
alone, placed by module path, so that it fits the language model and the classifier made of it alike.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.model.architectures import architecture_of
from everlearn.model.head import config_of

if TYPE_CHECKING:
    from everlearn.methods.base import Method, Setting

PREFIX = "everlearn_"


class Attachment(nn.Module):
    """Base of what a method attaches: create the parameters in ``__init__``, place the hooks in :meth:`place`.

    Weights of its own are float32 whatever the model's are, for small steps change nothing in 16 bits. Beside a model
    of 16-bit weights they are computed with in 16 bits (:func:`computing_like`), as all weights are with `train.bf16`.

    Hooks must be bound methods of the attachment or of its submodules. Then a copy of the model (FSDP2 needs one) has
    hooks that belong to the copy, and :meth:`detach` finds them.

    Class attributes:
        lengthens_rows: whether it puts vectors before a text; then nothing may be fed to the model token by token.
        shares_prompts: whether a token is read by nothing but itself and what its mask lets it see, so that several
            texts may stand behind one prompt (:mod:`everlearn.model.one_prompt`).
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
        """Path of a layer of the model → path here of a module with low-rank matrices beside it.

        That module has them in ``lora_A`` and ``lora_B``, as PEFT's layers do, and its output is the whole layer's.
        """
        return {}

    def attach(self, model: nn.Module, name: str, *, freeze: bool = False) -> None:
        """Become a part of the model.

        Args:
            model: a plain model.
            name: of the method; the attachment's parameters are called ``everlearn_<name>.…``.
            freeze: nothing but the attachment is trained until it is detached.

        Raises:
            MethodError: an attachment of that name is there already.
        """
        if hasattr(model, PREFIX + name):
            raise MethodError(f"Method '{name}' is at work on this model already.")
        if freeze:
            trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
            self.frozen = tuple(key for key, _ in trained)
            for _, parameter in trained:
                parameter.requires_grad_(False)
        model.add_module(PREFIX + name, self.to(next(model.parameters()).device).train(model.training))
        self.place(model)


def computing_like(hidden: Tensor) -> contextlib.AbstractContextManager[Any]:
    """For float32 weights that meet hidden states of a 16-bit model: inside, linear layers compute in its precision."""
    if hidden.dtype in (torch.bfloat16, torch.float16):
        return torch.autocast(hidden.device.type, hidden.dtype)
    return contextlib.nullcontext()


def frozen(values: Iterable[Tensor]) -> nn.ParameterList:
    """Copies as parameters that are never trained, each of its own: FSDP2 cannot shard one that is empty."""
    return nn.ParameterList(nn.Parameter(value.detach().clone(), requires_grad=False) for value in values)


def arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a forward pass was called with, by name, for a pre-hook."""
    given = dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    return given | given.pop("kwargs", {})


def without_decay(groups: list[dict[str, Any]], parameter: nn.Parameter) -> list[dict[str, Any]]:
    """The optimizer's groups, with one parameter in a group of its own that has no weight decay."""
    made = []
    for group in groups:
        rest = [other for other in group["params"] if other is not parameter]
        if len(rest) == len(group["params"]) or not group.get("weight_decay"):
            made.append(group)
        else:
            made += [{**group, "params": rest}, {**group, "params": [parameter], "weight_decay": 0.0}]
    return [group for group in made if group["params"]]


def attached(model: nn.Module, name: str) -> Any:
    """The attachment of a method.

    Raises:
        MethodError: there is none, because somebody replaced the model.
    """
    found = getattr(model, PREFIX + name, None)
    if found is None:
        raise MethodError(f"Method '{name}' lost what it had attached: the stage's model was replaced.")
    return found


def low_rank_beside(model: nn.Module) -> dict[str, str]:
    """Path of a layer → path of the low-rank matrices that some method has attached beside it."""
    attachments = [(name, child) for name, child in model.named_children() if isinstance(child, Attachment)]
    return {path: f"{name}.{own}" for name, child in attachments for path, own in child.low_rank().items()}


def detach(model: nn.Module, name: str) -> Any:
    """Take a method's attachment out of the model, which is a plain one again, and return it."""
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


def freeze_base(model: nn.Module) -> None:
    """Of a classifier, leave only the classification head and what is attached trainable."""
    base: Any = model.base_model
    base.requires_grad_(False)


def refuse_other_additions(method: Method, setting: Setting) -> None:
    """Raise ``MethodError`` when another method adds parameters: one that freezes the model would freeze them."""
    for other in setting.methods:
        if other.name != method.name and other.needs.extra_parameters:
            raise MethodError(
                f"Method '{method.label}' trains nothing but what it adds, so method '{other.label}' could not train "
                "what it adds. Remove one of them from `method`."
            )


def refuse_frozen_model(method: Method, setting: Setting, instead: str = "", *, low_rank: bool = False) -> None:
    """Raise ``MethodError`` when another method freezes the model, so that nothing of it moves.

    Args:
        method: what asks.
        setting: where it is to work.
        instead: another way out than doing without one of them.
        low_rank: low-rank matrices beside the frozen model are enough for it.
    """
    for other in setting.methods:
        if other.freezes and not (low_rank and other.adds_low_rank(setting.model)):
            raise MethodError(
                f"Method '{other.label}' freezes the model, so method '{method.label}' has nothing to hold back. "
                f"Remove one of them from `method`{instead}."
            )


def refuse_without_attention(method: Method, setting: Setting, what: str) -> None:
    """Raise ``MethodError`` where the model has no attention.

    Args:
        method: what asks.
        setting: where it is to work.
        what: it does with attention.
    """
    stacks = architecture_of(config_of(setting.model).model_type).stacks
    if not any(stack.attentions for stack in stacks):
        raise MethodError(
            f"Method '{method.label}' {what}, which takes attention; '{type(setting.model).__name__}' has none. Choose "
            "a transformer (`model.path`), or another method."
        )


def _hooks(model: nn.Module) -> Iterator[tuple[dict[int, Callable[..., Any]], int]]:
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in hooks:
                yield hooks, key
        # A key is never used again, so what these say of removed hooks does not matter.
