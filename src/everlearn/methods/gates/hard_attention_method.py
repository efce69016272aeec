"""The base class of methods with hard attention (HAT, arXiv 1801.01423)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import ApplyTo, Cost, Mask, Method, MethodConfig, Needs, Setting
from everlearn.methods.engine.attachment import (
    PREFIX,
    attached,
    detach,
    fill,
    refuse_other_additions,
    refuse_other_shapes,
    refuse_without_units,
    without_decay,
)
from everlearn.methods.gates.hard_attention import GatedAttachment, annealed, regulariser, settled
from everlearn.methods.stage import Batch, Reading, Stage
from everlearn.methods.state import Tensors
from everlearn.model.objectives import Outputs


class HardAttentionMethod(Method):
    """Base class of methods with hard attention: subclasses define what is gated and which parameters units own."""

    needs = Needs(domain_id_test=True, extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    binary: ClassVar[bool] = False
    """Whether the gates of a learnt domain are exactly 0 or 1."""

    units: ClassVar[tuple[str, ...]] = ("output",)
    """The kinds of units that it gates, or after which it adds modules."""

    class Config(MethodConfig):
        smax: float = Field(400.0, gt=1, allow_inf_nan=False)
        """Largest s of a = σ(s · e); determines how close to 0 and 1 the gates get."""
        sparsity: float = Field(0.75, ge=0, allow_inf_nan=False)
        """λ, the weight of the regulariser: the share of free units that a domain takes."""
        apply_to: ApplyTo = "update"
        """Whether masks apply to updates or gradients. The papers mask gradients, which Adam's normalisation mostly
        undoes."""

    config: Config
    _embeddings = Tensors("embedding/", listed="domains")
    _parts = Tensors("part/")
    """The embedding of each domain, and the other parameters of the attachment."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._taken: Tensor | None = None
        self._mask: Mask | None = None

    # -- what differs from method to method -------------------------------------------------------------------

    def build(self, model: nn.Module, domains: int) -> GatedAttachment:
        """Create the attachment of a model for this number of domains, on the default device."""
        raise NotImplementedError

    def factors(self, stage: Stage, attachment: GatedAttachment, free: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return factors by parameter name from factors per unit, 1 − a^{<t}; by default those of the attachment."""
        return {f"{PREFIX}{self.name}.{name}": values for name, values in attachment.factors(free).items()}

    def at_end_task(self, model: nn.Module, attachment: GatedAttachment) -> None:
        """Set which parameters are fine-tuned on an end task; by default all but the gates."""

    # -- hooks ------------------------------------------------------------------------------------------------

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_without_units(self, setting, self.units)
        if self.freezes:
            refuse_other_additions(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: embedding and other parameters; in memory their copy, the mask, and the masked parameters.

        An embedding is stored for each domain, and so are the other parameters that belong to one domain.
        """
        with torch.device("meta"):
            one, two = self.build(model, 1), self.build(model, 2)
        units = one.attention.embedding.numel()
        added, more = (sum(parameter.numel() for parameter in each.parameters()) for each in (one, two))
        own = more - added
        return Cost(
            memory_bytes=12 * (added - units) + 16 * units,
            disk_bytes=4 * (added - units - own),
            disk_bytes_per_domain=4 * (units + own),
            parameters=added,
        )

    def attach(self, stage: Stage) -> None:
        """Attach the saved parameters with a new embedding, and protect the units that earlier domains use."""
        self._mask = self._taken = None
        attachment = self.build(stage.model, stage.index)
        self._fill(attachment, stage.model)
        attachment.attach(stage.model, self.name, freeze=self.freezes)
        if self._embeddings:
            device = attachment.attention.embedding.device
            gates = [settled(values, self.config.smax, self.binary) for values in self._embeddings.values()]
            self._taken = torch.stack(gates).amax(0).to(device)
            free = attachment.attention.split(1 - self._taken)
            self._mask = Mask(self.factors(stage, attachment, free), self.config.apply_to)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Exclude the embedding from weight decay, which would pull it to 0, where a gate is neither open nor closed.

        The papers have none (HAT: plain SGD; the DAS authors: AdamW with 0.0 for all parameters).
        """
        return without_decay(groups, attached(stage.model, self.name).attention.embedding)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Set s for the next pass."""
        attention = attached(stage.model, self.name).attention
        attention.close()
        attention.scale = annealed(stage.step, stage.steps, self.config.smax)
        return {}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ · R."""
        gates = attached(stage.model, self.name).attention.gates
        return {"sparsity": self.config.sparsity * regulariser(gates, self._taken)}

    def mask(self, stage: Stage) -> Mask | None:
        """Return the mask of units that earlier domains use; it is constant within a domain."""
        return self._mask

    def after_step(self, stage: Stage) -> None:
        """Clamp the embedding to its limit, and drop the gates that were computed from it before the update."""
        attention = attached(stage.model, self.name).attention
        attention.clamp()
        attention.close()

    def detach(self, stage: Stage) -> None:
        attachment = detach(stage.model, self.name)
        attachment.attention.close()
        kept = {name: value.detach().cpu().clone() for name, value in attachment.named_parameters()}
        self._embeddings[stage.domain] = kept.pop("attention.embedding")
        self._parts = kept
        self._mask = self._taken = None

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the parameters with the gates of the text's domain; nothing for text of no learnt domain."""
        if reading.domain not in self._embeddings:
            return model
        number = list(self._embeddings).index(reading.domain) + 1
        attachment = self.build(model, number)
        self._fill(attachment, model)
        attachment.attach(model, self.name)
        attention = attachment.attention
        attention.embedding.requires_grad_(False).copy_(self._embeddings[reading.domain])
        attention.fixed = settled(attention.embedding, self.config.smax, self.binary)
        self.at_end_task(model, attachment)
        return model

    def _fill(self, attachment: GatedAttachment, model: nn.Module) -> None:
        """Load the saved parameters into the attachment; new ones keep their initial values.

        Raises:
            MethodError: the memory belongs to another model.
        """
        own = dict(attachment.named_parameters())
        if self._embeddings:
            with torch.device("meta"):
                known = dict(self.build(model, len(self._embeddings)).named_parameters())
            if missing := sorted(known.keys() - self._parts.keys() - {"attention.embedding"}):
                raise MethodError(
                    f"Method '{self.label}' does not remember '{missing[0]}', which the model has. Its memory belongs "
                    "to another model."
                )
        for embedding in self._embeddings.values():
            refuse_other_shapes(own, {"attention.embedding": embedding}, self)
        fill(own, {name: value for name, value in self._parts.items() if name in own}, self)
