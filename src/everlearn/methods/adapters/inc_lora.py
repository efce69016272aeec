"""IncLoRA: a new low-rank adapter for each domain on top of the frozen sum of the earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import Field
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Memory, Method, MethodConfig, Needs, Setting, Stage, register
from everlearn.methods.engine.protection import overrides
from everlearn.model.anatomy import kind_of
from everlearn.model.peft_adapter import TASKS, PeftAdapter
from everlearn.model.quantising import in_full, is_quantised

if TYPE_CHECKING:
    from everlearn.model.anatomy import Anatomy

A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"


@register
class IncLoRA(Method):
    """Incremental LoRA: one adapter per domain, earlier ones frozen and summed (arXiv 2310.14152, without its
    orthogonality terms; the baseline "IncLoRA" of arXiv 2406.17245).

    In domain t a layer computes W x + s · Σ_{i ≤ t} B_i A_i x with s = α / r, and only A_t and B_t are trained. Since
    nothing frozen is ever needed apart, B_i A_i is added to W in float32 when domain i ends: the same function, at the
    cost of one adapter however long the stream is, and every stage is a plain model.

    Beside it each stage keeps all that the stream has changed as one adapter of the base model, of rank t · r:
    s · [B_1 … B_t] [A_1; …; A_t]. A model that is trained on a quantised copy of itself (QLoRA, arXiv 2305.14314) gets
    B_i A_i added to its weights in float32 all the same.
    """

    name = "inc_lora"
    title = "IncLoRA"
    paper = "https://arxiv.org/abs/2310.14152"
    needs = Needs(extra_parameters=True, memory="parameters")
    adds_peft: ClassVar[bool] = True

    class Config(MethodConfig):
        """Options of IncLoRA, by PEFT's names."""

        r: int = Field(8, ge=1)
        """Rank of each domain's adapter."""
        lora_alpha: int = Field(32, ge=1)
        """α: adapters are scaled by α / r (α / √r with `use_rslora`)."""
        lora_dropout: float = Field(0.05, ge=0, lt=1)
        """Dropout on the adapter's input."""
        target_modules: Literal["query-value", "attention", "all-linear"] | list[str] = "query-value"
        """Layers that get an adapter: queries and values (as published), all attention projections, those and the
        feed-forward ones, or names as PEFT takes them. A fused query-key-value projection gets one as a whole."""
        use_dora: bool = False
        """Learn a magnitude for each row too (DoRA, arXiv 2402.09353)."""
        use_rslora: bool = False
        """Scale by α / √r (rsLoRA, arXiv 2312.03732)."""
        merge: bool = True
        """Keep each stage as a whole model with the adapters added to its weights, and the adapter beside it
        (`adapter/`). Without, a stage is the adapter alone, to be read with the base model."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.merges = self.config.merge
        self._finished: list[str] = []
        self._adapters: dict[str, Tensor] = {}
        self._trainable: list[str] = []

    def check(self, setting: Setting) -> None:
        """The model itself must come without adapters, and no other method may add some."""
        super().check(setting)
        if any(isinstance(module, BaseTunerLayer) for module in setting.model.modules()):
            raise MethodError(
                f"Method '{self.label}' needs a plain model, but this one has adapters. Merge them first."
            )
        for other in setting.methods:
            if other.adds_peft and other.name != self.name:
                raise MethodError(f"Methods '{self.label}' and '{other.label}' both add adapters. Remove one of them.")
            if not self.config.merge and any(overrides(other, hook) for hook in ("starting_weights", "final_weights")):
                raise MethodError(
                    f"Method '{other.label}' changes weights that no adapter holds, so stages of method '{self.label}' "
                    "cannot be kept as adapters alone. Set its option `merge: true`."
                )
        self._targets(setting.model)

    def cost(self, model: nn.Module) -> Cost:
        """The adapter's parameters; finished adapters are kept, one by one and together as the stage's."""
        count = 0
        for path in self._targets(model):
            module = model.get_submodule(path)
            rows, columns = module.get_parameter("weight").shape
            outputs, inputs = (columns, rows) if isinstance(module, Conv1D) else (rows, columns)
            count += self.config.r * (outputs + inputs) + (outputs if self.config.use_dora else 0)
        return Cost(
            memory_bytes=8 * count,
            disk_bytes_per_domain=4 * count,
            adapter_bytes_per_domain=4 * count,
            parameters=count,
        )

    def attach(self, stage: Stage) -> None:
        """Freeze the model and add this domain's adapter; B starts at 0, so the function is unchanged."""
        self._trainable = [name for name, parameter in stage.model.named_parameters() if parameter.requires_grad]
        stage.model = get_peft_model(stage.model, self._lora(stage.model))

    def detach(self, stage: Stage) -> None:
        """Add the adapter to the weights, keep a copy of it, and leave a plain model."""
        if not isinstance(stage.model, PeftModel):
            raise MethodError(f"Method '{self.label}' lost its adapter during the domain: `stage.model` was replaced.")
        self._finished = [*self._finished, stage.domain]
        learnt = {name: value.detach().cpu().clone() for name, value in get_peft_model_state_dict(stage.model).items()}
        self._adapters |= {f"{stage.domain}/{name}": value for name, value in learnt.items()}
        adapted = stage.model
        if is_quantised(adapted):  # what was learnt on coarse weights is added to the exact ones
            exact = stage.checkpoints[-1].requires_grad_(True)
            self._trainable = [name for name, _ in exact.named_parameters()]
            adapted = get_peft_model(exact, self._lora(exact))
            set_peft_model_state_dict(adapted, learnt)
        plain = adapted.merge_and_unload(safe_merge=True)
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(name in self._trainable)
        stage.model = plain

    def _lora(self, model: nn.Module, domains: int = 1) -> LoraConfig:
        """An adapter of the rank of so many domains' together, with the scale of one."""
        r, alpha = self.config.r, self.config.lora_alpha
        targets = self._targets(in_full(model) if is_quantised(model) else model)
        return LoraConfig(
            r=domains * r,
            lora_alpha=math.sqrt(domains) * alpha if self.config.use_rslora else domains * alpha,  # type: ignore[arg-type]
            lora_dropout=self.config.lora_dropout,
            target_modules=targets,
            fan_in_fan_out=any(isinstance(model.get_submodule(path), Conv1D) for path in targets),
            use_dora=self.config.use_dora,
            use_rslora=self.config.use_rslora,
        )

    def peft_adapter(self, model: nn.Module, base: Callable[[], nn.Module]) -> PeftAdapter | None:
        """The adapters of all domains side by side.

        DoRA learns W_t = diag(m_t / ‖·‖) (W_{t−1} + s B_t A_t), ‖·‖ the norm of each row of what follows it. With D the
        product of these factors so far this is D (W + s Σ_i D_{i−1}⁻¹ B_i A_i), once more a DoRA adapter.
        """
        if not self._finished:
            return None
        start, parts = base() if self.config.use_dora else model, dict[str, Tensor]()
        for path in self._targets(model):
            key = f"base_model.model.{path}."
            found = [self._learnt(f"{domain}/{key}") for domain in self._finished]
            if self.config.use_dora:
                found = self._on_the_base(start.get_submodule(path), found)
                name = next(name for name in found[-1] if MAGNITUDE in name)
                parts[key + name] = found[-1][name]
            parts[key + A] = torch.cat([part[A] for part in found])
            parts[key + B] = torch.cat([part[B] for part in found], dim=1)
        config = self._lora(model, len(self._finished))
        config.inference_mode, config.task_type = True, TASKS.get(kind_of(model))
        return PeftAdapter(config, parts, alone=not self.merges)

    def _learnt(self, key: str) -> dict[str, Tensor]:
        return {name.removeprefix(key): value for name, value in self._adapters.items() if name.startswith(key)}

    def _on_the_base(self, module: nn.Module, learnt: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """DoRA adapters that were learnt one on top of the other, as parts of one on the base (float64 inside)."""
        weight = module.get_parameter("weight").detach().cpu().double()
        weight = weight.T if isinstance(module, Conv1D) else weight
        r = self.config.r
        scale = self.config.lora_alpha / (math.sqrt(r) if self.config.use_rslora else r)
        factor, found = torch.ones(len(weight), dtype=torch.float64), []
        for part in learnt:
            name = next(name for name in part if MAGNITUDE in name)
            b, magnitude = part[B].double() / factor[:, None], part[name].double()
            weight = weight + scale * b @ part[A].double()
            norm = weight.norm(dim=1)
            factor = magnitude.flatten() * factor.sign() / norm
            own = {B: b.float(), name: (factor * norm).reshape(magnitude.shape).float()}
            found.append(part | own)
        return found

    def memory(self) -> Memory:
        """Every finished domain's adapter under "<domain>/<PEFT name>": publish it, or subtract it again."""
        if not self._finished:
            return Memory()
        facts = {"domains": list(self._finished), "config": self.config.model_dump(mode="json")}
        return Memory(dict(self._adapters), facts)

    def load_memory(self, memory: Memory) -> None:
        """Take the finished adapters back; the weights they were added to are the model's own."""
        self._adapters = dict(memory.tensors)
        self._finished = list(memory.facts.get("domains", []))

    def _targets(self, model: nn.Module) -> list[str]:
        """Paths of the layers that get an adapter.

        Raises:
            MethodError: the model has no such layer.
        """
        from everlearn.model.anatomy import anatomy

        wanted = self.config.target_modules
        if wanted == "all-linear":
            return list(anatomy(model).linears)
        if wanted in ("query-value", "attention"):
            return list(_attention(anatomy(model), everything=wanted == "attention"))
        found: list[str] = []
        for name in wanted:
            matching = [
                path
                for path, module in model.named_modules()
                if (path == name or path.endswith(f".{name}")) and isinstance(module, (nn.Linear, Conv1D))
            ]
            if not matching:
                raise MethodError(
                    f"Method '{self.label}', option 'target_modules': the model has no linear layer '{name}'."
                )
            found += [path for path in matching if path not in found]
        return found


def _attention(anatomy: Anatomy, everything: bool) -> list[str]:
    """Projections of every attention: query and value (or the fused one), or all."""
    paths: list[str] = []
    for site in anatomy.sites:
        if site.kind != "head":
            continue
        *inputs, output = dict.fromkeys(owned.parameter.rsplit(".", 1)[0] for owned in site.owned)
        paths += [*inputs, output] if everything else inputs[:: max(1, len(inputs) - 1)]
    return paths
