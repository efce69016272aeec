"""MoCL: a module for each domain, mixed for each text by its similarity to the keys of the domains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import FORWARD, Cost, Method, MethodConfig, Needs, Setting, Variant, register
from everlearn.methods.composition.composed import KEY, Composed, Learnt, Modules, check_rows, known_domains
from everlearn.methods.composition.low_rank_blocks import LowRankBlocks
from everlearn.methods.composition.prefixes import Prefixes
from everlearn.methods.config import configured
from everlearn.methods.distillation.comparisons import over_texts
from everlearn.methods.engine.attachment import attach_at_test, attached, detach, fill, learnt_by
from everlearn.methods.prompts.soft_prompt import at_rate, check_prompt, check_stage_length
from everlearn.methods.stage import Batch, Reading, Stage
from everlearn.methods.state import ByDomain
from everlearn.model.anatomy import kind_of
from everlearn.model.content import counted
from everlearn.model.lora_targets import Targets
from everlearn.model.objectives import Outputs
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import config_of


@register
class MoCL(Method):
    """MoCL (arXiv 2404.00790): modular and compositional continual learning without old text.

    Each domain i leaves a module P_i (a prefix or a low-rank block in every layer) and a key k_i. A text x is read with

        Σ_{i ≤ t} w_i P_i,   w = softmax(8 · cos(q(x), k_i)),   q(x) the mean of the frozen model's last hidden states

    L_t + match · mean(1 − cos(q(x), k_t)), where only P_t and k_t are trained. Earlier modules and keys are not in the
    optimizer (the authors' code restores them after each step instead). The model remains the base model, bit for bit.

    In a decoder q of a token is the mean over its document up to it: a query of the whole row would leak the tokens
    that are yet to be predicted.
    """

    name = "mocl"
    title = "MoCL"
    summary = "a module for each domain, mixed for each text"
    paper = "https://arxiv.org/abs/2404.00790"
    needs = Needs(extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    freezes = True
    variants = (
        Variant(
            "mocl_by_domain",
            "MoCL (domain id)",
            "At test time a text is read with the modules of the domains learnt up to its own, as after its domain.",
            {"read": "own"},
        ),
    )

    class Config(MethodConfig):
        module: Literal["prefix", "lora"] | None = None
        """The module of a domain; by default as published: a prefix, or in a decoder a low-rank block."""
        n_tokens: int = Field(50, ge=1)
        """Number of keys of a prefix in every layer."""
        r: int = Field(4, ge=1)
        """Rank of a block."""
        lora_alpha: float = Field(16, gt=0, allow_inf_nan=False)
        """α: blocks are scaled by α / r, besides their weights. The authors' code has no scale, which corresponds to
        `lora_alpha` equal to `r`."""
        lora_dropout: float = Field(0.1, ge=0, lt=1)
        """Dropout on a block's input."""
        target_modules: Targets = "query-value"
        """Layers that get blocks: queries and values (as published), all attention projections, or those and the
        feed-forward ones."""
        scale: float = Field(8.0, ge=0, allow_inf_nan=False)
        """Scale of the cosines in the softmax."""
        match: float = Field(1.0, ge=0, allow_inf_nan=False)
        """Weight of the loss that pulls k_t to the queries of its domain."""
        learning_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
        """Learning rate of module and key, with the schedule of the run; by default `train.learning_rate`. The authors
        use 2e-2 or 5e-2 for prefixes of T5-large and 1e-3 for blocks."""
        read: Literal["all", "own"] = "all"
        """Modules at test time: `all` for every text; or, with `own` (the released code, which needs a domain id),
        those of the domains up to that of the text, and none for text of no learnt domain."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the classification head: modules, keys and model are frozen."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.module == "prefix":
                yield ("r", "lora_alpha", "lora_dropout", "target_modules"), "with `module: prefix`"
            elif self.module == "lora":
                yield ("n_tokens",), "with `module: lora`"

    config: Config
    _learnt = ByDomain()
    """Module and key of each domain."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, domain_id_test=self.config.read == "own")

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.config.module is None:
            self._check_options(setting.model)
        check_rows(self, setting)
        check_prompt(self, setting, self._prefix(setting.model))
        with torch.device("meta"):
            self._build(setting.model, [])

    def _check_options(self, model: nn.Module) -> None:
        """Refuse options of the module that a kind of model does not get, if `module` is not set."""
        try:
            configured(self.label, type(self.config), self.config.model_dump() | {"module": self._module(model)})
        except MethodError as error:
            why = f"`module` is not set, and a model of kind {kind_of(model)} gets this one."
            raise MethodError(f"{error} {why}") from None

    def adds_low_rank(self, model: nn.Module) -> bool:
        return self._module(model) == "lora"

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of module and key, which are stored for every domain; the query is one more forward pass."""
        with torch.device("meta"):
            added = sum(p.numel() for p in self._build(model, []).parameters() if p.requires_grad)
        return Cost(memory_bytes=8 * added, disk_bytes_per_domain=4 * added, parameters=added, passes_per_step=FORWARD)

    def attach(self, stage: Stage) -> None:
        """Attach a new module and key beside the earlier ones; everything else is frozen."""
        check_stage_length(self, stage, self._prefix(stage.model))
        self._build(stage.model, list(self._learnt.values())).attach(stage.model, self.name, freeze=True)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return at_rate(groups, self.config.learning_rate)

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return match · mean(1 − cos(q, k_t)) over the texts of the batch."""
        if not self.config.match:
            return {}
        matching: Matching = attached(stage.model, self.name)
        likeness = matching.likeness[: len(batch["labels"]), :, -1]
        read = counted(batch) if matching.token_by_token else None
        return {"match": self.config.match * over_texts(1 - likeness, read)}

    def detach(self, stage: Stage) -> None:
        self._learnt[stage.domain] = learnt_by(detach(stage.model, self.name).own())

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach all modules, or those up to the text's own domain; fine-tuning may change the last of them."""
        known = known_domains(self._learnt, reading, own=self.config.read == "own")
        if not known:
            return model
        *earlier, last = (self._learnt[domain] for domain in known)
        mixture = self._build(model, earlier)
        fill(mixture.own(), last, self)
        return attach_at_test(mixture, model, self.name, freeze=self.config.freeze_base_at_end_task)

    def _prefix(self, model: nn.Module) -> int:
        """Return the number of positions of a prefix."""
        return self.config.n_tokens if self._module(model) == "prefix" else 0

    def _module(self, model: nn.Module) -> Literal["prefix", "lora"]:
        return self.config.module or ("lora" if kind_of(model) == "decoder" else "prefix")

    def _build(self, model: nn.Module, earlier: list[Learnt]) -> Matching:
        options = self.config
        modules: Modules
        if self._module(model) == "prefix":
            modules = Prefixes(model, options.n_tokens, earlier)
        else:
            scale = options.lora_alpha / options.r
            modules = LowRankBlocks(model, options.target_modules, options.r, scale, options.lora_dropout, earlier)
        key = torch.empty(config_of(model).hidden_size).uniform_(-1, 1)
        return Matching(modules, key, [one[KEY] for one in earlier], options.scale)


class Matching(Composed):
    """Weigh the modules of the domains for each text: w = softmax(scale · cos(q, k_i)).

    q is the mean of the plain model's last hidden states.

    Attributes:
        likeness: cos(q, k_i) of the last pass, [B, 1 or S, t].
    """

    def __init__(self, modules: Modules, key: Tensor, earlier: list[Tensor], scale: float) -> None:
        super().__init__(modules, key, earlier)
        self.scale, self.likeness = scale, torch.empty(0)

    def query(self, base: nn.Module, inputs: dict[str, Any], document: Tensor) -> Tensor:
        self.querying = True
        try:
            with torch.no_grad(), evaluating(base):
                hidden: Tensor = base(**inputs).last_hidden_state
        finally:
            self.querying = False
        return self.pooled(hidden.float(), document, "mean")

    def weigh(self, queries: Tensor) -> Tensor:
        self.likeness = F.cosine_similarity(queries[:, :, None], self.keys.to(queries.dtype), dim=-1)
        return (self.scale * self.likeness).softmax(-1)
