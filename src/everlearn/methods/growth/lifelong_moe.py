"""Lifelong-MoE: new experts for each domain, frozen old experts and gates, and distillation from the previous model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.adapters.bottleneck import feed_forward_outputs
from everlearn.methods.base import Cost, MethodConfig, Needs, Setting, View, register
from everlearn.methods.composition.composed import Learnt
from everlearn.methods.distillation.comparisons import forward_kl
from everlearn.methods.distillation.teacher import WithTeacher, answers_beside, cost_of_teacher, teacher_of
from everlearn.methods.engine.attachment import detach, fill, learnt_by
from everlearn.methods.growth.experts import GrowingExperts, feed_forward_networks
from everlearn.methods.stage import Batch, Reading, Stage
from everlearn.methods.state import ByDomain
from everlearn.model.anatomy import anatomy
from everlearn.model.objectives import Outputs, row_means


@register
class LifelongMoE(WithTeacher):
    """A mixture of experts that grows with the stream (Lifelong-MoE, arXiv 2305.12281, section 3).

    y = Σ_{e ∈ top-k} g_e E_e(x) in place of each feed-forward network, with g the renormalised softmax of W_r x. Each
    domain adds experts, and as many rows to W_r. Old experts and their rows are frozen; what all domains share
    (attention, embeddings, norms) is trained, and kept close to the model before the domain by its outputs:

    L + λ · KL(p_{t−1} ‖ p_t), summed over the vocabulary, averaged over the labels of a row, then over rows.

    The paper trains a mixture from scratch. Here a dense model is converted: its feed-forward networks are the first
    expert, frozen from the first domain on, and new experts start as copies of them (sparse upcycling, arXiv
    2212.05055), so that the first domain starts from the function of the base model. Every feed-forward network has
    experts; in the paper every second. Encoders and encoder-decoders can have them too; the paper has a decoder. There
    is no load-balancing loss: with frozen rows it could only send the tokens of the new domain to old experts.

    The model of a stage, a plain model, consists of the shared parts and the first expert; the other experts are the
    memory of the method, with which texts of all domains are read, without a domain id.
    """

    name = "lifelong_moe"
    title = "Lifelong-MoE"
    summary = "new experts for each domain, old ones frozen"
    paper = "https://arxiv.org/abs/2305.12281"
    kinds = ("isolation", "data-focused")
    needs = Needs(extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    reads_shards = False

    class Config(MethodConfig):
        experts: int = Field(1, ge=1)
        """Number of experts that each domain adds to each feed-forward network."""
        top_k: int = Field(2, ge=2)
        """Number of experts per token; with one its gate would always be 1, and the gating would get no gradient."""
        weight: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ, the weight of the divergence from the previous model's predictions; 0 needs no teacher."""
        freeze_shared: bool = False
        """Train only new experts and their gating."""

    config: Config
    _learnt = ByDomain(alike=False)  # experts and rows of each domain; their names contain a number

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.freezes = self.config.freeze_shared

    def check(self, setting: Setting) -> None:
        super().check(setting)
        feed_forward_networks(setting.model, self.label)
        for other in setting.methods:
            if other is not self and (other.needs.extra_parameters or other.grows):
                raise MethodError(
                    f"Method '{self.label}' adds experts to a plain model, but method '{other.label}' adds other "
                    "parameters. Remove one of them from `method`."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of the experts of a domain.

        Memory is for one earlier domain, whose experts are in the model and in the teacher; each further domain adds as
        much.
        """
        linears = [path for path, one in anatomy(model).linears.items() if one.component.startswith("feed_forward")]
        one = sum(parameter.numel() for path in linears for parameter in model.get_submodule(path).parameters())
        added = self.config.experts * (one + sum(site.units for site in feed_forward_outputs(model)))
        teacher = cost_of_teacher(model) if self.config.weight else Cost()
        total = sum(parameter.numel() for parameter in model.parameters())
        return Cost(
            memory_bytes=teacher.memory_bytes + 4 * added * (1 + bool(self.config.weight)),
            whole_bytes=teacher.undivided_bytes + 4 * added,
            host_bytes=teacher.host_bytes,
            disk_bytes_per_domain=4 * added,
            parameters=added,
            passes_per_step=round(teacher.passes_per_step + (self.config.top_k - 1) * one / total, 3),
        )

    # -- a domain ----------------------------------------------------------------------------------------------

    def begin_domain(self, stage: Stage) -> None:
        """Create the teacher, the previous model with its experts."""
        if self.config.weight:
            self._teacher = teacher_of(stage)

    def attach(self, stage: Stage) -> None:
        self._with_experts(stage.model, list(self._learnt.values()), new=True)

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the rows of the batch with a loss against the predictions of the previous model."""
        if not self.config.weight:
            return []
        return [answers_beside(stage, self.teacher, batch, 1.0, forward_kl)]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λ KL."""
        losses = outputs.view_losses[0] if outputs.view_losses else None
        return {} if losses is None else {"outputs": self.config.weight * row_means(losses, batch["labels"])}

    def detach(self, stage: Stage) -> None:
        self._learnt[stage.domain] = learnt_by(dict(detach(stage.model, self.name).named_parameters()))

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach all experts, for text of any domain; fine-tuning on an end task trains them with the model."""
        if self._learnt:
            self._with_experts(model, list(self._learnt.values()))
            model.requires_grad_(True)
        return model

    def _with_experts(self, model: nn.Module, known: Sequence[Learnt], *, new: bool = False) -> None:
        """Attach the experts of learnt domains, and those of a new one if `new`."""
        options = self.config
        networks = feed_forward_networks(model, self.label)
        experts = GrowingExperts(model, networks, len(known) + new, options.experts, options.top_k)
        for learnt in known:
            fill(dict(experts.named_parameters()), learnt, self)
        experts.attach(model, self.name, freeze=options.freeze_shared)
