"""DAS: soft-masking of what important units may change, and a contrast that integrates old and new knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.anatomy import anatomy, kind_of
from everlearn.errors import MethodError
from everlearn.importance import accumulate, general_importance, normalise, unit_importance
from everlearn.importance.scores import Normalisation
from everlearn.importance.units import has_dropout
from everlearn.methods.base import (
    ApplyTo,
    Batch,
    Cost,
    Mask,
    Memory,
    Method,
    MethodConfig,
    Needs,
    Setting,
    Stage,
    View,
    register,
)
from everlearn.modes import evaluating

if TYPE_CHECKING:
    from everlearn.objectives import Outputs

Map = dict[str, Tensor]


@register
class DAS(Method):
    """Continual domain-adaptive pre-training with soft-masking (arXiv 2302.03241).

    Importance of a unit (attention head, neuron, output): I = (1/N) Σ_n |∂L(x_n)/∂g| at g = 1 (eq. 3); before the
    first domain with L = KL of two dropout passes, which stands in for general knowledge (eq. 5), after each domain
    with its own loss. Each map is squashed to [0, 1) layer by layer, and the largest over general knowledge and all
    earlier domains counts. While a domain is learnt the parameters of a unit change by (1 − I) of what they would
    (eq. 4), and a contrast pulls a text's representation towards itself under another dropout and away from all other
    texts and from what the gated network (g = I) makes of any text.
    """

    name = "das"
    title = "DAS"
    paper = "https://arxiv.org/abs/2302.03241"
    needs = Needs(importance_pass=True, peft=False, anatomy=True)
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0, "contrast": 0}

    class Config(MethodConfig):
        """Options of DAS."""

        strength: float = Field(1.0, ge=0, le=1)
        """Parameters of a unit change by 1 − strength · I of what they would; 0 switches the mask off."""
        apply_to: ApplyTo = "update"
        """What the mask acts on. The paper writes gradients, which Adam's normalisation mostly undoes."""
        samples: int = Field(10_000, ge=1)
        """Blocks that importance is measured on, at most one pass over the domain."""
        general: Literal["proxy", "none"] = "proxy"
        """Importance for general knowledge before the first domain: the paper's proxy, or none."""
        normalise: Normalisation = "tanh_abs"
        """Importance to [0, 1): the paper's |tanh(z)| also protects the least important units; `relu_tanh` only those
        above the average."""
        contrast: float = Field(1.0, ge=0, allow_inf_nan=False)
        """Weight of the contrast; 0 switches it off, and with it its extra rows in each pass."""
        contrast_fraction: float = Field(1.0, gt=0, le=1)
        """Share of each batch that is contrasted (2 rows at least); the paper takes the whole batch."""
        temperature: float = Field(0.05, gt=0)
        """τ of the contrast."""
        stop_gradient_prev: bool = False
        """Do not differentiate through the gated representations; the paper does."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._general: Map = {}
        self._importance: Map = {}
        self._learnt: list[str] = []
        self._mask: Mask | None = None

    @property
    def _active(self) -> bool:
        return self.config.strength > 0 or self.config.contrast > 0

    def check(self, setting: Setting) -> None:
        """The contrast needs representations of texts; the proxy needs dropout."""
        super().check(setting)
        if self._active and self.config.general == "proxy" and not has_dropout(setting.model):
            raise MethodError(
                "Method 'das', option 'general': the proxy for general knowledge compares two passes with different "
                "dropout, but every dropout rate of this model is 0. Set `general: none`, or give the model dropout."
            )
        if self.config.contrast > 0 and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                "Method 'das', option 'contrast': it compares representations of whole texts, but an encoder-decoder's "
                "last layer represents only the answer. Set `contrast: 0`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Maps and mask, one number a unit each; the copy of the masked parameters; three extra rows a row.

        A model that reads plain text anyway (not masked) needs two. The general importance, once in a stream, adds
        twice ``samples`` to the first domain.
        """
        if not self._active:
            return Cost()
        layout = anatomy(model)
        parameters = dict(model.named_parameters())
        units = sum(site.units for site in layout.sites)
        factors = layout.parameter_factors({site.name: torch.zeros(site.units) for site in layout.sites})
        held = 8 * units
        if self.config.strength:
            # Each factor is held by this method and, beside its parameter, by the training step.
            held += sum(8 * factor.numel() for factor in factors.values())
            if self.config.apply_to == "update":
                held += sum(parameters[name].numel() * parameters[name].element_size() for name in factors)
        extra = (3 if layout.kind == "encoder" else 2) * self.config.contrast_fraction
        return Cost(
            memory_bytes=held,
            disk_bytes=8 * units,
            passes_per_step=extra if self.config.contrast else 0.0,
            passes_per_domain=self.config.samples,
        )

    def begin_domain(self, stage: Stage) -> None:
        """General importance, unless something is remembered already; then this domain's mask."""
        self._mask = None
        if not self._active:
            return
        if not self._importance and self.config.general == "proxy":
            raw = general_importance(stage.model, stage.batches(self.config.samples), stage.objective)
            self._general = normalise(raw, self.config.normalise)
            self._importance = dict(self._general)
        device = next(stage.model.parameters()).device
        self._importance = {name: values.to(device) for name, values in self._importance.items()}
        if self._importance and self.config.strength:
            free = {name: 1 - self.config.strength * values for name, values in self._importance.items()}
            self._mask = Mask(stage.anatomy.parameter_factors(free), self.config.apply_to)

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Unmasked rows to contrast: the text, again under another dropout, and gated by the importance.

        The text itself is in the batch already unless the objective masked it.
        """
        if not self.config.contrast:
            return []
        inputs = stage.objective.inputs(batch)
        if "plain_ids" in batch:
            inputs["input_ids"] = batch["plain_ids"]
        rows = contrasted(len(batch["labels"]), self.config.contrast_fraction)
        inputs = {name: value[:rows] for name, value in inputs.items()}
        views = [View(inputs), View(inputs)] if "plain_ids" in batch else [View(inputs)]
        if self._importance:
            views.append(View(inputs, self._importance))
        return views

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """λ times the contrast of mean hidden states."""
        if not self.config.contrast:
            return {}
        hidden = list(outputs.views)
        if "plain_ids" not in batch:
            hidden.insert(0, outputs.hidden[: len(hidden[0])])
        full, again, *gated = [state.float().mean(1) for state in hidden]
        previous = gated[0] if gated else None
        if previous is not None and self.config.stop_gradient_prev:
            previous = previous.detach()
        return {"contrast": self.config.contrast * contrast(full, again, previous, self.config.temperature)}

    def mask(self, stage: Stage) -> Mask | None:
        """1 − strength · I for every parameter of a unit; the same all through a domain."""
        return self._mask

    def end_domain(self, stage: Stage) -> None:
        """The domain's own importance: its training loss, on masked input where the objective masks (eq. 3)."""
        self._mask = None
        if not self._active:
            return
        # The paper does not say whether dropout is on; without it the measure has no noise of its own.
        with evaluating(stage.model):
            raw = unit_importance(
                stage.model, stage.batches(self.config.samples), stage.objective.per_sample_loss, stage.anatomy.sites
            )
        new = normalise(raw, self.config.normalise)
        self._importance = accumulate([self._importance, new] if self._importance else [new])
        self._learnt = [*self._learnt, stage.domain]

    def memory(self) -> Memory:
        """Importance for general knowledge, the accumulated importance, and the domains that are in it."""
        if not self._importance:
            return Memory()
        tensors = {f"general/{name}": value for name, value in self._general.items()}
        tensors |= {f"accumulated/{name}": value for name, value in self._importance.items()}
        return Memory(tensors, {"domains": list(self._learnt)})

    def load_memory(self, memory: Memory) -> None:
        """Take the maps back."""
        maps: dict[str, Map] = {"general": {}, "accumulated": {}}
        for key, value in memory.tensors.items():
            kind, name = key.split("/", 1)
            maps[kind][name] = value
        self._general, self._importance = maps["general"], maps["accumulated"]
        self._learnt = list(memory.facts.get("domains", []))


def contrasted(rows: int, fraction: float) -> int:
    """Rows of a batch that are contrasted: the fraction, but two at least where there are two."""
    return min(rows, max(2, round(fraction * rows)))


def contrast(full: Tensor, again: Tensor, previous: Tensor | None, temperature: float) -> Tensor:
    """InfoNCE between texts (the contrastive loss of arXiv 2302.03241).

    −(1/N) Σ_n log( e^{s(a_n, p_n)/τ} / Σ_j (e^{s(a_n, p_j)/τ} + e^{s(a_n, v_j)/τ}) ), s the cosine, in float32, with
    N the rows of all processes together.

    Args:
        full: representations a, [n, H].
        again: representations p of the same texts in the same order, under another dropout, [n, H].
        previous: representations v through the gated network, [n, H]; None leaves their terms out.
        temperature: τ.

    Returns:
        The mean over this process's rows. Its gradient reaches the gathered rows of every process summed, so once
        the processes' gradients are averaged, as DDP and FSDP do, the result is that of one process with all rows.
    """
    anchors = F.normalize(full.float(), dim=-1)
    others = [again] if previous is None else [again, previous]
    candidates = [_everywhere(F.normalize(other.float(), dim=-1)) for other in others]
    logits = torch.cat([anchors @ rows.T for rows in candidates], dim=1) / temperature
    first = _rank() * len(anchors)
    return F.cross_entropy(logits, torch.arange(first, first + len(anchors), device=logits.device))


def _rank() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0


def _everywhere(rows: Tensor) -> Tensor:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return _Gather.apply(rows) if distributed and torch.distributed.get_world_size() > 1 else rows


class _Gather(torch.autograd.Function):
    """Rows of all processes, in their order; backward sums every process's gradient for the rows of this one.

    ``torch.distributed.all_gather`` alone cuts the graph, so only a process's own negatives would learn (the released
    code's effective λ is 1/W).
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        gathered = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        whole = gradients[0].clone()
        torch.distributed.all_reduce(whole)
        return whole.chunk(torch.distributed.get_world_size())[torch.distributed.get_rank()]
