"""HAT: each domain takes the heads, neurons and outputs that it needs, and taken units are protected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from everlearn.methods.base import Cost, MethodConfig, Reading, Stage, Variant, register
from everlearn.methods.gates.hard_attention import GatedAttachment
from everlearn.methods.gates.hard_attention_method import HardAttentionMethod
from everlearn.model.anatomy import Site, anatomy


@register
class HAT(HardAttentionMethod):
    """Hard attention to the task (arXiv 1801.01423), on a transformer as in DAS (arXiv 2302.03241, appendix).

    A domain t has an embedding e of one number per unit (head, neuron, output). In every pass the units are multiplied
    by a = σ(s · e), with s rising from 1/smax to smax during the domain; at test time s = smax and a text is read with
    the gates of its domain. Updates of the parameters of a unit are multiplied by 1 − a^{<t}, where a^{<t} is the
    largest gate of the earlier domains; the regulariser λ Σ a (1 − a^{<t}) / Σ (1 − a^{<t}) keeps units free.

    A weight belongs to the unit of its row (in the attention's output projection: to the head of its column). The
    original protects less, 1 − min(a_i, a_j) for a weight between units i and j; a weight from a closed unit is
    multiplied by 0 either way. Embeddings, normalisation layers, the bias of the attention's output projection and the
    vocabulary head belong to no unit: earlier domains drift with them unless `freeze_shared` is set.
    """

    name = "hat"
    title = "HAT"
    summary = "learns which units a domain may use"
    paper = "https://arxiv.org/abs/1801.01423"
    variants = (
        Variant(
            "hat_all",
            "HAT-All",
            "Trained as HAT, but tested with every gate open, so no domain id is needed.",
            {"test_gates": "open"},
        ),
    )

    units: ClassVar[tuple[str, ...]] = ("head", "neuron", "output")

    class Config(HardAttentionMethod.Config):
        test_gates: Literal["domain", "open"] = "domain"
        """Gates at test time and for end tasks: those of the text's domain, or all open."""
        freeze_shared: bool = False
        """Freeze parameters that belong to no unit after the first domain. The paper's code does not."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, domain_id_test=self.config.test_gates == "domain")

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: the embedding; in memory also the mask, and the copy that restores masked updates."""
        layout, parameters = anatomy(model), dict(model.named_parameters())
        factors = layout.parameter_factors({site.name: torch.ones(site.units) for site in layout.sites})
        held = sum(4 * factor.numel() for factor in factors.values())
        masked = parameters if self.config.freeze_shared else factors
        if self.config.apply_to == "update":
            held += sum(parameters[name].numel() * parameters[name].element_size() for name in masked)
        own = super().cost(model)
        return replace(own, memory_bytes=own.memory_bytes + held + 4 * len(masked))

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        return UnitGates(anatomy(model).sites, self.config.smax)

    def factors(self, stage: Stage, attachment: GatedAttachment, free: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return 1 − a^{<t} for the parameters of units; 0 for the others, if they are frozen."""
        own = stage.anatomy.parameter_factors(free)
        if not self.config.freeze_shared:
            return own
        nothing = next(iter(free.values())).new_zeros(1)
        added = {id(parameter) for parameter in attachment.parameters()}
        shared = (name for name, parameter in stage.model.named_parameters() if id(parameter) not in added)
        return dict.fromkeys(shared, nothing) | own

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        return model if self.config.test_gates == "open" else super().test_model(model, reading)

    @property
    def tested_as_saved(self) -> bool:
        """Return whether all gates are open at test time, which is the plain model."""
        return self.config.test_gates == "open"


class UnitGates(GatedAttachment):
    """Hard attention on units of the model itself, at these sites."""

    def __init__(self, sites: Sequence[Site], smax: float) -> None:
        super().__init__({site.name: site.units for site in sites}, smax)
        self.gated = nn.ModuleList([GatedSite(site, self.attention.values) for site in sites])

    def place(self, model: nn.Module) -> None:
        super().place(model)
        for gated in self.gated:
            gated.place(model)  # type: ignore[operator]


class GatedSite(nn.Module):
    """Multiplies the units of one site by their gates."""

    def __init__(self, site: Site, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.site, self.values = site, values

    def place(self, model: nn.Module) -> None:
        module = model.get_submodule(self.site.module)
        if self.site.where == "input":
            module.register_forward_pre_hook(self.on_input)
        else:
            module.register_forward_hook(self.on_output)

    def on_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.gated(inputs[0]), *inputs[1:])

    def on_output(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.gated(output)

    def gated(self, activation: Tensor) -> Tensor:
        """Return features times the gate of their unit, [..., units · width]."""
        gates = self.values[self.site.name].to(activation.dtype)
        return activation * (gates.repeat_interleave(self.site.width) if self.site.width > 1 else gates)
