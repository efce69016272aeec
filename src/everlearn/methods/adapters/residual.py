"""Adapters that are initialised with a part of the weights: the base classes of PiSSA, CorDA and LoRA-Null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.low_rank import ADAPTER, A, B
from everlearn.methods.base import Cost, Setting, Stage
from everlearn.methods.state import Tensors
from everlearn.model.lora_targets import Targets

DECOMPOSING = 24
"""Bytes per pair of inputs of the layer being decomposed: six matrices in float32, or three in float64."""


class Residual(IncLoRA):
    """Base class of methods whose adapter is initialised with a part s B₀ A₀ of W, so that the function is unchanged.

    h = (W − s B₀ A₀) x + s B A x,   initially A = A₀ and B = B₀

    In a stream s B A is added back when a domain ends, as in :class:`IncLoRA`, so a stage is a plain model with weights
    W + s (B A − B₀ A₀), and new A₀ and B₀ are computed from it for the next domain. The change of a domain, [B, −B₀]
    [A; A₀] of rank 2r, is stored in the memory and in the PEFT adapter of the stage, since A and B alone would be
    relative to weights that are not stored.

    There is no weight decay, because that of A and B would reduce a part of W.
    """

    parts: ClassVar[int] = 2

    class Config(IncLoRA.Config):
        # As published, α = r, so s = 1; there is no dropout, which would affect existing knowledge; and every linear
        # layer gets an adapter.
        lora_alpha: int = Field(8, ge=1)
        """α: adapters are scaled by α / r (α / √r with `use_rslora`); s B₀ A₀ does not depend on α."""
        lora_dropout: float = Field(0.0, ge=0, lt=1)
        """Dropout on the adapter's input."""
        target_modules: Targets | list[str] = "all-linear"
        """Layers that get an adapter: all projections of attention and feed-forward networks (as published), queries
        and values, all attention projections, or module names as in PEFT."""

    config: Config
    _start = Tensors("/")
    """A₀ and B₀, while a domain is learnt."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.rounded:
            raise MethodError(
                f"Method '{self.label}' subtracts a part of the weights, which quantised weights cannot represent. "
                "Remove `model.quantization_config`, or use `inc_lora`."
            )
        smallest = min(min(sizes) for sizes in self._shapes(setting.model))
        if self.config.r > smallest:
            raise MethodError(
                f"Method '{self.label}', option 'r': an adapter of rank {self.config.r} cannot be initialised from a "
                f"layer of rank {smallest}. Set it to {smallest} or less."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: the adapter, its initial values, and finished domains as adapters of rank 2r."""
        count, shapes = super()._numbers(model), self._shapes(model)
        decomposing = DECOMPOSING * max(inputs for inputs, _ in shapes) ** 2
        return Cost(
            memory_bytes=16 * count,
            measuring_bytes=decomposing,
            disk_bytes=4 * count,
            disk_bytes_per_domain=8 * count,
            adapter_bytes_per_domain=8 * count,
            parameters=self._trains(model),
        )

    def _trains(self, model: nn.Module) -> int:
        """Return the number of trained parameters of one adapter."""
        return self._numbers(model)

    # -- a domain ----------------------------------------------------------------------------------------------

    def begin_domain(self, stage: Stage) -> None:
        """Compute A₀ and B₀ on the plain model; a resumed stage has them in its memory."""
        if not self._start:
            self._start = {
                f"base_model.model.{path}.{name}": value.float().cpu().contiguous()
                for path, factors in self._parts_of(stage).items()
                for name, value in zip((A, B), factors, strict=True)
            }

    def _parts_of(self, stage: Stage) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return A₀ [r, d_in] and B₀ [d_out, r] of each layer."""
        raise NotImplementedError

    def attach(self, stage: Stage) -> None:
        """Replace W by W − s B₀ A₀, and add the adapter that compensates it."""
        super().attach(stage)
        self._fill(stage.model, self._start, complete=True)
        with torch.no_grad():
            for path in self._targets(stage.model):
                layer: Any = stage.model.get_submodule(path)
                layer.get_base_layer().weight.sub_(layer.get_delta_weight(ADAPTER))

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Train only the adapter, without weight decay."""
        return [group | {"weight_decay": 0.0} for group in groups]

    def _keep(self, domain: str, learnt: dict[str, Tensor]) -> None:
        """Store [A; A₀] and [B, −B₀], the change of W by the domain."""
        changed = dict(learnt)
        for name, start in self._start.items():
            side = [learnt[name], start] if name.endswith(A) else [learnt[name], -start]
            changed[name] = torch.cat(side, dim=0 if name.endswith(A) else 1)
        self._start = {}
        super()._keep(domain, changed)


class ReadResidual(Residual):
    """Base class of methods that choose A₀ and B₀ by the inputs of the layers for some text."""

    needs = replace(Residual.needs, importance_pass=True)

    class Config(Residual.Config):
        samples: int = Field(256, ge=1)
        """Rows of text that are run before each domain to collect the inputs of the layers. PEFT recommends 128 times
        as many tokens as the width of a layer; with fewer tokens than the width, some directions seem unused only
        because they do not occur in the sample."""

    config: Config

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self._reads_general and not setting.has_general:
            raise MethodError(
                f"Method '{self.label}' reads the recipe's general corpus, to find the components of the weights that "
                "matter least for it, and there is none. Name one (the recipe's own `general`)."
            )

    @property
    def _reads_general(self) -> bool:
        return True

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost with a pass over the samples; before training, statistics of all layers' inputs are held."""
        own = super().cost(model)
        read = sum(self._read_bytes(*shape) for shape in self._shapes(model))
        return replace(own, measuring_bytes=own.measuring_bytes + read, passes_per_domain=self.config.samples)

    def _read_bytes(self, inputs: int, outputs: int) -> int:
        """Return the bytes held for each layer while all layers are measured and decomposed."""
        raise NotImplementedError
