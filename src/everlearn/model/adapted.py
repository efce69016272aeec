"""The effective weights of a model with PEFT adapters, and the plain model with these weights.

A model computes with its *effective* weights, W + s B A for LoRA. Different A and B can give the same function, and
they no longer exist after the adapter is merged, so importance measured for A and B would be lost. Methods that protect
weights therefore use :func:`weights_of`, whose names are the same with and without adapters, and measure on the
:func:`plain_view`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.fourierft import FourierFTLayer
from peft.tuners.ia3 import IA3Layer
from peft.tuners.loha import LoHaLayer
from peft.tuners.lokr import LoKrLayer
from peft.tuners.lora import LoraLayer
from peft.tuners.randlora import RandLoraLayer
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.tuners.vblora import VBLoRALayer
from peft.tuners.vera import VeraLayer
from peft.utils.integrations import dequantize_bnb_weight
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from everlearn.errors import ModelError
from everlearn.model.sharding import local_part

_ADDED = (LoraLayer, FourierFTLayer, LoHaLayer, LoKrLayer, RandLoraLayer, VBLoRALayer, VeraLayer)
"""PEFT layers whose effective weight is W + ``get_delta_weight``; AdaLoRA's are subclasses of LoRA's."""
_LAYERS = (nn.Linear, Conv1D, nn.Embedding)
_EXACT = "_exact_weight"
Formula = Callable[[], Tensor]


@dataclass(frozen=True)
class Weight:
    """A weight of the plain model, as it is trained.

    Attributes:
        parameter: the parameter that holds it, without what adapters change.
        formula: computes it from the parameter and the adapters, in float32, with gradients; None without adapters.
        layer: the layer that has the adapters.
        sources: the parameters of the adapters.
    """

    parameter: nn.Parameter
    formula: Formula | None = None
    layer: nn.Module | None = None
    sources: tuple[nn.Parameter, ...] = ()

    @property
    def adapted(self) -> bool:
        """Return whether adapters change it."""
        return self.formula is not None

    @property
    def shape(self) -> torch.Size:
        """Return its shape in the plain model; the parameter of a quantised weight is packed into another one."""
        return self.parameter.shape if self.layer is None else _shape(self.layer, self.parameter)

    @property
    def trained(self) -> bool:
        """Return whether training moves it."""
        return any(each.requires_grad for each in self.moved_by)

    @property
    def moved_by(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters that the optimizer updates to change it."""
        return self.sources if self.adapted else (self.parameter,)

    def value(self) -> Tensor:
        """Return the weight, with gradients: the part of this process, or W with its adapters, in float32."""
        if self.formula is None:
            return local_part(self.parameter)
        with torch.autocast(self.parameter.device.type, enabled=False):
            return self.formula()


def is_adapted(model: nn.Module) -> bool:
    """Return whether a model has PEFT adapters."""
    return isinstance(model, PeftModel) or any(_wraps(module) for module in model.modules())


def weights_of(model: nn.Module) -> dict[str, Weight]:
    """Return the weights of a model by their names without adapters; a tied weight is listed once.

    Raises:
        ModelError: an adapter is of a kind whose effect on the weights is not known.
    """
    if not is_adapted(model):
        return {name: Weight(parameter) for name, parameter in model.named_parameters()}
    weights: dict[str, Weight] = {}
    seen: set[int] = set()
    for path, _, module, formulas in _parts(_inside(model)):
        own = module.named_parameters() if formulas is not None else module.named_parameters(recurse=False)
        for name, parameter in own:
            key = f"{path}.{name}" if path else name
            if formulas is not None and name in formulas.values:
                weights[key] = Weight(parameter, formulas.values[name], formulas.layer, formulas.sources)
                seen.add(id(parameter)) if formulas.shares else None
            elif id(parameter) not in seen:
                weights[key] = Weight(parameter)
                seen.add(id(parameter))
    return weights


def use_exact(model: nn.Module, exact: Callable[[], nn.Module]) -> None:
    """Let the effective weights of quantised layers with adapters begin from exact weights, not from rounded ones.

    For adapters that are trained beside rounded weights and then added to exact ones; it holds a copy of these.

    Args:
        model: the model with adapters; its outputs do not change.
        exact: gives the plain model that was quantised; not called if `model` has the copy already.
    """
    layers = {
        path: module
        for path, wrapper, module, _ in _parts(_inside(model))
        if wrapper is not None and _is_quantised(module) and not hasattr(module, _EXACT)
    }
    plain = exact() if layers else model
    for path, module in layers.items():
        layer: Any = plain.get_submodule(path)
        weight = layer.weight.detach().to(module.weight.device, torch.float32, copy=True)
        setattr(module, _EXACT, weight.T.contiguous() if isinstance(layer, Conv1D) else weight)


@contextlib.contextmanager
def plain_view(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a plain model with the effective weights; afterwards the model is as it was, bit for bit.

    The adapters are removed, and the effective weights are parameters; those that training changes require gradients.
    A quantised layer with adapters is replaced by one with float32 weights. A model without adapters is yielded itself.

    Raises:
        ModelError: as in :func:`weights_of`.
    """
    if not is_adapted(model):
        yield model
        return
    inside = _inside(model)
    weights = weights_of(model)
    parts = list(_parts(inside))
    effective = {
        id(weight.parameter): nn.Parameter(_rounded_like(weight.parameter, weight.value().detach()), weight.trained)
        for weight in weights.values()
        if weight.adapted
    }
    swapped: list[tuple[dict[str, Any], str, Any]] = []

    def swap(where: dict[str, Any], name: str, value: Any) -> None:
        swapped.append((where, name, where[name]))
        where[name] = value

    try:
        for path, wrapper, module, formulas in parts:
            if wrapper is None or formulas is None:
                continue
            parent, _, leaf = path.rpartition(".")
            if _is_quantised(module):
                module = _Dense.of(module)
            swap(inside.get_submodule(parent)._modules, leaf, module)
            for name in formulas.values if not formulas.follows else module._parameters:
                if (new := effective.get(id(module._parameters[name]))) is not None:
                    swap(module._parameters, name, new)
        yield inside
    finally:
        for where, name, value in reversed(swapped):
            where[name] = value


@dataclass(frozen=True)
class _Formulas:
    """How the adapters of a layer change its weights.

    Attributes:
        layer: the layer.
        values: name of a parameter of the plain layer → formula.
        sources: parameters of the adapters.
        shares: whether the adapter changes the weight in every module that it is tied to (rows of embeddings).
        follows: whether the weight is tied to one whose formulas another layer has.
    """

    layer: Any
    values: dict[str, Formula]
    sources: tuple[nn.Parameter, ...] = ()
    shares: bool = False
    follows: bool = False


def _wraps(module: nn.Module) -> bool:
    return isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)


def _inside(model: nn.Module) -> nn.Module:
    """Return the module whose paths are those of the plain model."""
    if not isinstance(model, PeftModel):
        return model
    if model.active_peft_config.is_prompt_learning:
        kind = getattr(model.active_peft_config.peft_type, "value", "prompts")
        raise ModelError(
            f"The model's adapter ({kind}) puts vectors before a text, and changes no weight that a method could hold. "
            "Use 'replay', which reads no weights, or an adapter that changes them, such as LoRA."
        )
    inside: nn.Module = model.get_base_model()
    return inside


def _parts(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module | None, nn.Module, _Formulas | None]]:
    """Yield (path, wrapper, plain module, formulas) of every module; wrapper and formulas are None without adapters."""
    if not _wraps(module):
        yield path, None, module, None
        for name, child in module.named_children():
            yield from _parts(child, f"{path}.{name}" if path else name)
        return
    if isinstance(module, ModulesToSaveWrapper):
        active = [name for name in module.active_adapters if name in module.modules_to_save]
        saved = module.modules_to_save[active[0]] if active else module.original_module
        yield path, module, saved, _Formulas(module, {})
        return
    layer: Any = getattr(module, "token_adapter", module)
    yield path, module, layer.get_base_layer(), _formulas(layer, path)


def _formulas(layer: Any, path: str) -> _Formulas:
    base = layer.get_base_layer()
    weight = getattr(base, "weight", None)
    if not _is_quantised(base) and (not isinstance(weight, Tensor) or not weight.is_floating_point()):
        raise ModelError(
            f"The adapter of '{path}' changes a layer of type '{type(base).__name__}', whose weights are quantised in "
            "a way that is not known here, so that its effective weight cannot be computed. Load the model in 4 or 8 "
            "bits of bitsandbytes, or unquantised."
        )
    if not isinstance(base, _LAYERS):
        raise ModelError(
            f"The adapter of '{path}' changes a layer of type '{type(base).__name__}', whose effective weight is not "
            "known here. Use 'replay', which reads no weights, or an adapter of linear layers and embeddings, such as "
            "LoRA."
        )
    if layer.merged or layer.disable_adapters:
        return _Formulas(layer, {})
    active = [name for name in layer.active_adapters if name in _adapters(layer)]
    sources = tuple(p for name, p in layer.named_parameters() if not name.startswith("base_layer."))
    if isinstance(layer, TrainableTokensLayer):
        if layer.tied_adapter is not None:
            return _Formulas(layer, {}, follows=True)
        return _Formulas(layer, {"weight": lambda: layer.get_merged_weights(active).float()}, sources, shares=True)
    if isinstance(layer, IA3Layer):
        values = {"weight": lambda: _scaled(layer, active)}
        if getattr(base, "bias", None) is not None and not layer.is_feedforward:
            values["bias"] = lambda: _scaled(layer, active, "bias")
        return _Formulas(layer, values, sources)
    variants = getattr(layer, "lora_variant", {})
    dora = [name for name in active if hasattr(layer, "lora_magnitude_vector") and name in layer.lora_magnitude_vector]
    biased = any(getattr(layer, "lora_bias", {}).get(name) for name in active)
    if not isinstance(layer, _ADDED) or biased or set(variants) & set(active) - set(dora) or (dora and len(active) > 1):
        raise ModelError(
            f"The adapter of '{path}' ({type(layer).__module__.removeprefix('peft.tuners.')}) changes a weight in a "
            "way that is not known here. Known are LoRA with its initialisations, rsLoRA, DoRA and AdaLoRA, IA³, LoHa, "
            "LoKr, VeRA, VB-LoRA, RandLoRA and FourierFT, without `lora_bias`. Use one of these, or 'replay', which "
            "reads no weights."
        )
    if dora:
        return _Formulas(layer, {"weight": lambda: _dora(layer, dora[0])}, sources)
    return _Formulas(layer, {"weight": lambda: _added(layer, active)}, sources)


class _Dense(nn.Linear):
    """A quantised linear layer with its weights as float32 numbers; it computes in the number format of its inputs."""

    @classmethod
    def of(cls, layer: Any) -> _Dense:
        """Return the layer with the weight and the bias of a quantised one, for which others can be put in place."""
        dense = cls(layer.in_features, layer.out_features, bias=False, device="meta")
        dense.weight, dense.bias = layer.weight, layer.bias
        return dense.train(layer.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        bias = None if self.bias is None else self.bias.to(inputs.dtype)
        return functional.linear(inputs, self.weight.to(inputs.dtype), bias)


def _is_quantised(module: Any) -> bool:
    """Return whether the weights of a layer are in 4 or 8 bits of bitsandbytes."""
    return type(getattr(module, "weight", None)).__name__ in ("Params4bit", "Int8Params")


def _numbers(base: Any) -> Tensor:
    """Return the weight of a layer without adapters in float32, or the exact one (:func:`use_exact`)."""
    exact: Tensor | None = getattr(base, _EXACT, None)
    if exact is not None:
        return exact
    weight: nn.Parameter = base.weight
    if not _is_quantised(base):
        return weight.float()
    if getattr(getattr(weight, "quant_state", None), "packing_format_for_cpu", False):
        base.state_dict()  # bitsandbytes reorders 4-bit weights for evaluation on a CPU, and restores them in here
    numbers: Tensor = dequantize_bnb_weight(weight, getattr(base, "state", None))
    return numbers.float()


def _shape(layer: Any, parameter: nn.Parameter) -> torch.Size:
    base = layer.get_base_layer()
    packed = _is_quantised(base) and base.weight is parameter
    return torch.Size((base.out_features, base.in_features)) if packed else parameter.shape


def _rounded_like(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """Return a weight in the number format of the parameter it replaces; in float32 if that is quantised."""
    return value.to(parameter.dtype) if parameter.is_floating_point() else value


def _adapters(layer: Any) -> set[str]:
    return {name for key in layer.adapter_layer_names for name in getattr(layer, key)}


def _added(layer: Any, active: list[str]) -> Tensor:
    """W + Σ ΔW."""
    value = _numbers(layer.get_base_layer())
    for name in active:
        value = value + layer.get_delta_weight(name).float()
    return value


def _dora(layer: Any, name: str) -> Tensor:
    """m / ‖W + ΔW‖ (W + ΔW), with the norm of each row (arXiv 2402.09353, eq. 5)."""
    value, turned = _added(layer, [name]), getattr(layer, "fan_in_fan_out", False)
    rows = value.T if turned else value
    rows = layer.lora_magnitude_vector[name].weight.float().reshape(-1, 1) / rows.norm(dim=1, keepdim=True) * rows
    return rows.T if turned else rows


def _scaled(layer: Any, active: list[str], what: str = "weight") -> Tensor:
    """W or b, scaled by the factors that IA³ has learnt for its inputs or outputs (arXiv 2205.05638)."""
    base = layer.get_base_layer()
    value: Tensor = base.bias.float() if what == "bias" else _numbers(base)
    for name in active:
        factors = layer.ia3_l[name].float()
        value = value * (factors.flatten() if what == "bias" else factors.T if layer.fan_in_fan_out else factors)
    return value
