"""InfLoRA: train each domain's adapter in directions that the inputs of earlier domains do not use."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.layer_inputs import second_moments
from everlearn.methods.adapters.low_rank import A
from everlearn.methods.base import FORWARD, Cost, Setting, Stage, register
from everlearn.methods.state import Tensors


@register
class InfLoRA(IncLoRA):
    """Interference-free LoRA (arXiv 2404.00228, section 3): IncLoRA with A fixed in a null space, so only B is trained.

    Ĥ_t = (I − M_t M_tᵀ) H_t,  A_t = U_rᵀ with the r leading left singular vectors U_r of Ĥ_t

    H_t holds the inputs of a layer for the text of domain t, [d_in, tokens]. The orthonormal columns of M_t span the
    inputs of earlier domains, so A_t M_t = 0: what domain t learns does not change what a layer computes for such
    inputs. (A and B are called B and A in the paper.) After the domain, H_t and Ĥ_t are computed again with the trained
    model. M_{t+1} is M_t with the leading left singular vectors u_1, …, u_k of Ĥ_t added, for the smallest k with

    ‖M_tᵀ H_t‖² + ‖u_1ᵀ H_t‖² + … + ‖u_kᵀ H_t‖² ≥ ε ‖H_t‖²

    (gradient projection memory, arXiv 2103.09762, eq. 5 and 9). DualGPM stores a basis of the complement instead
    where that is smaller, which is the same space; here M_t is stored.

    Ours is the application to language models, and which layers get an adapter. The released code differs in three
    points: it takes singular vectors of the second moment (I − M Mᵀ) H Hᵀ, it lets ε rise to 1 over the tasks, and it
    divides A by √3. The formulas were read in that code and in summaries of the paper.
    """

    name = "inf_lora"
    title = "InfLoRA"
    summary = "one adapter per domain, in directions that earlier domains do not use"
    paper = "https://arxiv.org/abs/2404.00228"
    needs = replace(IncLoRA.needs, importance_pass=True)

    class Config(IncLoRA.Config):
        """Options of InfLoRA; those of LoRA are PEFT's."""

        # As published: s = 1 at the default rank, and no dropout.
        lora_alpha: int = Field(8, ge=1)
        """α: adapters are scaled by α / r (α / √r with `use_rslora`)."""
        lora_dropout: float = Field(0.0, ge=0, lt=1)
        """Dropout on the adapter's input."""
        threshold: float = Field(0.95, gt=0, lt=1)
        """ε, the share of the squared inputs of a domain that later domains must not change. The released scripts
        begin with 0.95 or 0.98; a larger share leaves later domains fewer directions to learn in."""
        samples: int = Field(256, ge=1)
        """Rows of the domain that are run before it, and again after it, to collect the inputs of the layers. The paper
        reads all."""

    config: Config
    _space = Tensors("/space/", dims=2)
    """M_t of each layer, [d_in, k]."""
    _rows = Tensors("/rows/", dims=2)
    """A_t of each layer, [r, d_in], while a domain is learnt."""

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.rounded:
            raise MethodError(
                f"Method '{self.label}' was not tried with quantised weights, from which it cannot tell how many "
                "inputs a layer has. Remove `model.quantization_config`, or use `inc_lora`."
            )
        if self.config.use_dora:
            raise MethodError(
                f"Method '{self.label}', option 'use_dora': a learnt magnitude changes the answers to all inputs, also "
                "those of earlier domains. Leave it at false."
            )
        smallest = min(inputs for inputs, _ in self._shapes(setting.model))
        if self.config.r > smallest:
            raise MethodError(
                f"Method '{self.label}', option 'r': a layer with {smallest} inputs has no {self.config.r} directions. "
                f"Set it to {smallest} or less."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: IncLoRA's with A frozen, M_t, and second moments of inputs between domains."""
        widths = [inputs for inputs, _ in self._shapes(model)]
        squares, rows = sum(width**2 for width in widths), self.config.r * sum(widths)
        own = super().cost(model)
        return replace(
            own,
            memory_bytes=own.memory_bytes + 4 * (squares + rows),
            measuring_bytes=8 * squares + 24 * max(widths) ** 2,
            disk_bytes=own.disk_bytes + 4 * (squares + rows),
            parameters=own.parameters - rows,
            passes_per_domain=math.ceil(2 * self.config.samples * FORWARD),
            samples=self.config.samples,
        )

    def begin_domain(self, stage: Stage) -> None:
        """Choose A_t with the model as it is; a resumed stage has it in its memory."""
        super().begin_domain(stage)
        paths, shapes = self._targets(stage.model), self._shapes(stage.model)
        widths = {path: inputs for path, (inputs, _) in zip(paths, shapes, strict=True)}
        if self._space and {path: len(space) for path, space in self._space.items()} != widths:
            raise MethodError(
                f"Method '{self.label}' remembers inputs of other layers than this model has adapters on (`/space/` in "
                "its memory). A memory belongs to one model and to one `target_modules`."
            )
        if self._rows:
            return
        layers = {path: stage.model.get_submodule(path) for path in paths}
        for path, moment in second_moments(stage, layers, self.config.samples, stage.source).items():
            directions, _ = self._unused(path, moment)
            rows = directions[:, : self.config.r].T
            if len(rows) < self.config.r:
                stage.notes.append(
                    f"Method '{self.label}': inputs of earlier domains use all but {len(rows)} of the "
                    f"{len(moment)} directions of '{path}', so in '{stage.domain}' its adapter has that rank. A "
                    "smaller `threshold` leaves more."
                )
            missing = rows.new_zeros(self.config.r - len(rows), len(moment))
            self._rows[path] = torch.cat([rows, missing]).float().cpu().contiguous()

    def attach(self, stage: Stage) -> None:
        """Add an adapter with A_t, which is not trained."""
        super().attach(stage)
        self._fill(stage.model, {f"base_model.model.{path}.{A}": rows for path, rows in self._rows.items()})
        for name, parameter in stage.model.named_parameters():
            if "lora_A" in name:
                parameter.requires_grad_(False)

    def end_domain(self, stage: Stage) -> None:
        """Add the directions that the inputs of the domain use to M_t."""
        super().end_domain(stage)
        model: Any = stage.model
        layers = {path: model.get_base_model().get_submodule(path) for path in self._rows}
        for path, moment in second_moments(stage, layers, self.config.samples, stage.source).items():
            directions, squares = self._unused(path, moment)
            without = moment.trace() - squares.sum() + squares.cumsum(0) - squares  # what is held before each
            few = int((without < self.config.threshold * moment.trace()).sum())
            earlier = [self._space[path]] if path in self._space else []
            self._space[path] = torch.cat([*earlier, directions[:, :few].float().cpu()], dim=1)

    def _unused(self, path: str, moment: Tensor) -> tuple[Tensor, Tensor]:
        """Return the directions of a layer outside of M, [d_in, n], and how much of its inputs lies along each, [n].

        They are the left singular vectors of (I − M Mᵀ) H and the squares of its singular values, largest first.

        Args:
            path: of the layer.
            moment: H Hᵀ, [d_in, d_in].
        """
        known = self._space.get(path, torch.empty(len(moment), 0)).to(moment)
        free = torch.linalg.qr(known, mode="complete").Q[:, known.shape[1] :]
        squares, vectors = torch.linalg.eigh(free.T @ moment @ free)
        return free @ vectors.flip(1), squares.flip(0).clamp(min=0)

    def _keep(self, domain: str, learnt: dict[str, Tensor]) -> None:
        self._rows = {}
        super()._keep(domain, learnt)
