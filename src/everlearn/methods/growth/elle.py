"""ELLE: a model that grows before each domain without changing its function, with a trained prompt for each domain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.data.reservoir import Reservoir
from everlearn.errors import MethodError
from everlearn.methods.base import FORWARD, Cost, Method, MethodConfig, Needs, Setting, register
from everlearn.methods.distillation.teacher import rounding_like
from everlearn.methods.engine.attachment import attached, detach
from everlearn.methods.growth.net2net import (
    FORMS,
    NewLayers,
    added_parameters,
    choose_layers,
    form_of,
    grow,
    grown_config,
)
from everlearn.methods.growth.recovery import Lesson, Recovery
from everlearn.methods.prompts.domain_prompt import NO_PROMPT, DomainPrompts
from everlearn.methods.rehearsal.replay import Replay
from everlearn.methods.stage import Batch, Reading, Stage
from everlearn.methods.state import Fact, Nested, Tensors
from everlearn.model.vocabulary_head import config_of, logit_bias, logit_cap, output_head, projection

REPLAY = "replay/"
PROMPT = "prompt/"
RECOVERY = "elle_recovery"
_Amount = int | list[int]


@register
class ELLE(Method):
    """ELLE (arXiv 2203.06311): efficient lifelong pre-training by function-preserving growth.

    Before each domain but the first the model is made wider and deeper by copies
    (:mod:`everlearn.methods.growth.net2net`). Then it recovers the loss of the approximation: at update u of the first
    U the loss is

        L = (1 − r) · L_t + r · T² · KL(p_before(·; T) ‖ p(·; T)),   r = max(0, 1 − u/U)

    at the labelled positions, with the model before the growth as the teacher. A share of the text comes from earlier
    domains, and every text is read with the trained prompt of its own domain, at test time too. After each domain the
    model is a plain transformers model of its new size; prompts and old text are in the memory of the method.

    Differences from the paper: its runs have no teacher, and recover in separate updates on old text before the domain
    begins (5,000 before 20,000). This loss is an option of the authors' code, with other teachers. Here recovery is the
    first part of the steps of the domain, on its mixture of new and old text. The authors' model has prompts from its
    pre-training on; here the first domain of the stream is the first with a prompt. They copy features at random; here
    every feature is copied once before any is copied twice.
    """

    name = "elle"
    title = "ELLE"
    summary = "grows the model with each domain"
    paper = "https://arxiv.org/abs/2203.06311"
    kinds = ("isolation", "replay", "data-focused")
    needs = Needs(
        old_data=True,
        domain_id_test=True,
        extra_parameters=True,
        peft=False,
        anatomy=True,
        memory="parameters",
    )
    identity: ClassVar[dict[str, Any] | None] = {"add_layers": 0, "add_heads": 0, "prompts": False, "share": 0}
    grows = 2

    class Config(MethodConfig):
        add_layers: _Amount = 1
        """Layers added before a domain: one number, or one for each growth (the last applies to all further ones). The
        authors grow 6 layers by 2, 2, 1, 1."""
        add_heads: _Amount = 1
        """Heads added to every layer before a domain; hidden size and neurons grow in proportion. In grouped-query
        attention these are key-value heads, each with its queries. Adding as many as exist doubles the width exactly.
        The authors grow 6 heads by 2, 2, 1, 1."""
        grow_first: bool = False
        """Grow before the first domain too."""
        new_layers: NewLayers = "copy"
        """`copy` a layer (as published), or initialise its copy to write zeros (`identity`), which is exact in models
        that normalise before their blocks (GPT-2, Llama)."""
        noise: float = Field(0.01, ge=0, allow_inf_nan=False)
        """Standard deviation of noise on weights that read copies, so that a unit and its copy can diverge."""
        recovery: float = Field(0.2, ge=0, le=1)
        """U as a share of the steps; 0.2 is the authors' 5,000 of 25,000."""
        temperature: float = Field(1.0, gt=0, allow_inf_nan=False)
        """T."""
        prompts: bool = True
        """A trained prompt for each domain."""
        share: float = Field(0.1, ge=0, lt=1)
        """Share of the training tokens that comes from earlier domains."""
        capacity: int = Field(2048, ge=1)
        """Blocks stored of all earlier domains together."""

    config: Config
    _prompts = Tensors(PROMPT, dims=1)
    _lineage = Fact("lineage", list[int])
    _old_text = Nested(REPLAY, at="_replay")
    """Prompts, ancestor of each layer in the first model, and old text; within a domain, those at its beginning."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        for option in ("add_layers", "add_heads"):
            amount = getattr(self.config, option)
            if (isinstance(amount, list) and not amount) or min(amount if isinstance(amount, list) else [amount]) < 0:
                raise MethodError(f"Method 'elle', option '{option}': must be 0 or more (got {amount!r}).")
        self.needs = replace(type(self).needs, old_data=self.config.share > 0, domain_id_test=self.config.prompts)
        self.grows = 1 if self.config.grow_first else type(self).grows
        self._replay = Replay(share=self.config.share, capacity=self.config.capacity)
        self._next_lineage: list[int] = []
        self._teacher: nn.Module | None = None
        self._teacher_domains: tuple[str, ...] = ()
        self._recovers = False
        self._domains: dict[bytes, int] = {}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        kind = config_of(setting.model).model_type
        if kind not in FORMS:
            raise MethodError(f"Method 'elle' cannot grow a '{kind}' model; it can grow {', '.join(sorted(FORMS))}.")
        if self.config.new_layers == "identity" and not form_of(setting.model).pre_norm:
            raise MethodError(
                f"Method 'elle', option 'new_layers': 'identity' is not exact in a '{kind}' model, which normalises "
                "after its blocks. Set `new_layers: copy`."
            )
        if len(setting.methods) > 1:
            other = next(method for method in setting.methods if method is not self)
            raise MethodError(
                f"Method 'elle' replaces the model by a larger one, which method '{other.label}' does not support. "
                "Remove one of them (elle replays old text itself: `share`)."
            )
        attention = config_of(setting.model)._attn_implementation
        if self.config.prompts and attention not in ("sdpa", "eager"):
            raise MethodError(
                f"Method 'elle', option 'prompts': a prompt that all documents of a row see needs "
                f"`model.attn_implementation: sdpa` or eager (got '{attention}'). Change it, or set `prompts: false`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of the largest growth, from the current model; later ones cost in proportion.

        A teacher is held during recovery.
        """
        if config_of(model).model_type not in FORMS:
            return Cost()  # :meth:`check` refuses it
        replay = self._replay.cost(model)
        layers, heads = (max(_each(amount)) for amount in (self.config.add_layers, self.config.add_heads))
        prompt = grown_config(model, heads=heads).hidden_size if self.config.prompts else 0
        teaches = self.config.recovery > 0 and layers + heads > 0
        held = sum(parameter.numel() for parameter in model.parameters()) if teaches else 0
        return Cost(
            memory_bytes=replay.memory_bytes + 4 * held + 16 * prompt,
            disk_bytes=replay.disk_bytes,
            disk_bytes_per_domain=4 * prompt,
            parameters=added_parameters(model, layers, heads) + 2 * prompt,
            passes_per_step=self.config.recovery * FORWARD if teaches else 0.0,
        )

    # -- a domain ----------------------------------------------------------------------------------------------

    def attach(self, stage: Stage) -> None:
        """Grow the model and the prompts of earlier domains; a new prompt is initialised at random."""
        self._check_memory(stage.model)
        prompts = {name: self._prompts[name] for name in stage.earlier if name in self._prompts}
        self._next_lineage = self._lineage
        layers, heads = self._amounts(stage)
        if layers or heads:
            lineage = self._lineage or list(range(config_of(stage.model).num_hidden_layers))
            copied = choose_layers(lineage, layers)
            grown = grow(stage.model, copied, heads, noise=self.config.noise, new_layers=self.config.new_layers)
            self._next_lineage = [lineage[origin] for origin in grown.origins]
            if self.config.recovery > 0:
                self._recovers = True
                self._set_teacher(stage.model, prompts)
                Recovery().attach(grown.model, RECOVERY)
            prompts = {name: vector[grown.hidden] for name, vector in prompts.items()}
            stage.model = grown.model
        if self.config.prompts:
            config = config_of(stage.model)
            new = torch.randn(config.hidden_size) * config.initializer_range
            DomainPrompts(torch.stack([*prompts.values(), new])).attach(stage.model, self.name)
            self._domains = self._domains_of_stored({name: number for number, name in enumerate(prompts)})

    def training_data(self, source: BlockSource, stage: Stage) -> BlockSource:
        return self._replay.training_data(source, stage)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Select the prompt of each row and, in the first part of the stage, compute the targets of the teacher.

        Each row gets the prompt of the domain from which its text comes. While the loss of the teacher has a weight
        (:meth:`recovery_weight`), the teacher's last hidden states are computed. The divergence from the teacher is
        computed from them in the forward pass, at the vocabulary head.
        """
        rows = self._domains_of_rows(stage, batch)
        if rows is not None:
            attached(stage.model, self.name).rows = rows
        weight = self.recovery_weight(stage)
        if weight == 0:
            self._teacher = None
        if self._recovers and weight > 0:
            features, project = self._teacher_features(stage, batch, rows)
            recovery = attached(stage.model, RECOVERY)
            recovery.lesson = Lesson(features, project, batch["labels"].flatten(), weight, self.config.temperature)
        return {}

    def end_domain(self, stage: Stage) -> None:
        self._replay.end_domain(stage)

    def detach(self, stage: Stage) -> None:
        if self.config.prompts:
            vectors = detach(stage.model, self.name).vectors.detach().cpu()
            names = [*(name for name in stage.earlier if name in self._prompts), stage.domain]
            self._prompts = {name: vector.clone() for name, vector in zip(names, vectors, strict=True)}
        if self._recovers:
            detach(stage.model, RECOVERY)
        self._recovers, self._teacher, self._teacher_domains, self._domains = False, None, (), {}
        self._lineage = self._next_lineage

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the prompt of a learnt domain, which fine-tuning may change; other text is read without one."""
        if reading.domain in reading.learnt and reading.domain in self._prompts:
            DomainPrompts(self._prompts[reading.domain][None]).attach(model, self.name)
        return model

    @property
    def tested_as_saved(self) -> bool:
        """Return whether there are no prompts, so that the plain model is tested."""
        return not self.config.prompts

    def recovery_weight(self, stage: Stage) -> float:
        """Return the weight of the teacher's loss at the current step, r = max(0, 1 − u/U)."""
        last = self.config.recovery * stage.steps
        return max(0.0, 1 - stage.step / last) if last > 0 else 0.0

    # -- details -----------------------------------------------------------------------------------------------

    def _amounts(self, stage: Stage) -> tuple[int, int]:
        """Return the number of layers and heads to add before a domain."""
        growth = stage.index - self.grows
        if growth < 0:
            return 0, 0
        layers, heads = (_each(amount) for amount in (self.config.add_layers, self.config.add_heads))
        return layers[min(growth, len(layers) - 1)], heads[min(growth, len(heads) - 1)]

    def _check_memory(self, model: nn.Module) -> None:
        """Raise ``MethodError`` if lineage or prompts do not fit the model."""
        config, layers = config_of(model), len(self._lineage)
        if layers and (layers != config.num_hidden_layers or not all(0 <= at < layers for at in self._lineage)):
            why = f"a lineage of {layers} layers, and the model has {config.num_hidden_layers}"
        elif wrong := [name for name, prompt in self._prompts.items() if len(prompt) != config.hidden_size]:
            why = f"a prompt of '{wrong[0]}' that does not have the model's {config.hidden_size} features"
        else:
            return
        raise MethodError(f"Method 'elle' remembers {why}. Its memory belongs to another model.")

    def _set_teacher(self, model: nn.Module, prompts: dict[str, Tensor]) -> None:
        """Use the model before its growth, with its prompts, as the teacher."""
        self._teacher = model.requires_grad_(False).eval()
        self._teacher_domains = tuple(prompts)
        if prompts:
            DomainPrompts(torch.stack(list(prompts.values()))).attach(model, self.name)

    def _teacher_features(
        self, stage: Stage, batch: Batch, rows: Tensor | None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return the inputs of the teacher's vocabulary projection at each label, [N, H], and that projection."""
        teacher = self._teacher
        head = output_head(teacher) if teacher is not None else None
        if teacher is None or head is None:
            raise MethodError("Method 'elle' has no teacher: run `begin_domain` before the first step.")
        if self._teacher_domains and rows is not None:
            known = torch.where(rows < len(self._teacher_domains), rows, NO_PROMPT)
            attached(teacher, self.name).rows = known
        seen: list[Tensor] = []
        # Forward hooks see the arguments as changed by pre-hooks: only the labelled positions.
        hook = head.register_forward_hook(lambda _, args, losses: seen.append(args[0]))
        with hook, torch.no_grad(), rounding_like(stage.model):
            stage.objective.forward(teacher, batch)
        return seen[0], projection(head, logit_cap(teacher), logit_bias(teacher))

    def _domains_of_stored(self, numbers: dict[str, int]) -> dict[bytes, int]:
        """Return the domain number of each stored block by its digest, which identifies replayed rows of a batch."""
        memory = self._replay.memory()
        if not memory:
            return {}
        kept = Reservoir.from_memory(memory.tensors, memory.facts)
        pairs = zip(kept.blocks, kept.domains, strict=True)
        return {_digest(block["input_ids"]): numbers[domain] for block, domain in pairs if domain in numbers}

    def _domains_of_rows(self, stage: Stage, batch: Batch) -> Tensor | None:
        """Return the domain number of each row, [B] on the CPU; that of the current domain is the last."""
        if not self.config.prompts:
            return None
        plain = batch.get("plain_ids", batch["input_ids"]).cpu().numpy()
        current = len(attached(stage.model, self.name).vectors) - 1
        return torch.tensor([self._domains.get(_digest(row), current) for row in plain])


def _each(amount: _Amount) -> list[int]:
    return amount if isinstance(amount, list) else [amount]


def _digest(tokens: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(tokens, np.int32).tobytes(), digest_size=16).digest()
