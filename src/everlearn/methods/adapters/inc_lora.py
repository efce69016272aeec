"""IncLoRA: a new low-rank adapter for each domain on top of the frozen sum of the earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import Field
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Memory, Method, MethodConfig, Needs, Setting, Stage, register

if TYPE_CHECKING:
    from everlearn.model.anatomy import Anatomy


@register
class IncLoRA(Method):
    """Incremental LoRA: one adapter per domain, earlier ones frozen and summed (arXiv 2310.14152, without its
    orthogonality terms; the baseline "IncLoRA" of arXiv 2406.17245).

    In domain t a layer computes W x + s · Σ_{i ≤ t} B_i A_i x with s = α / r, and only A_t and B_t are trained. Since
    nothing frozen is ever needed apart, B_i A_i is added to W in float32 when domain i ends: the same function, at the
    cost of one adapter however long the stream is, and every stage is a plain model.
    """

    name = "inc_lora"
    title = "IncLoRA"
    paper = "https://arxiv.org/abs/2310.14152"
    needs = Needs(extra_parameters=True)
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

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
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
        self._targets(setting.model)

    def cost(self, model: nn.Module) -> Cost:
        """The adapter's parameters; finished adapters are kept."""
        count = 0
        for path in self._targets(model):
            module = model.get_submodule(path)
            rows, columns = module.get_parameter("weight").shape
            outputs, inputs = (columns, rows) if isinstance(module, Conv1D) else (rows, columns)
            count += self.config.r * (outputs + inputs) + (outputs if self.config.use_dora else 0)
        return Cost(memory_bytes=8 * count, disk_bytes_per_domain=4 * count, parameters=count)

    def attach(self, stage: Stage) -> None:
        """Freeze the model and add this domain's adapter; B starts at 0, so the function is unchanged."""
        self._trainable = [name for name, parameter in stage.model.named_parameters() if parameter.requires_grad]
        targets = self._targets(stage.model)
        config = LoraConfig(
            r=self.config.r,
            lora_alpha=self.config.lora_alpha,
            lora_dropout=self.config.lora_dropout,
            target_modules=targets,
            fan_in_fan_out=any(isinstance(stage.model.get_submodule(path), Conv1D) for path in targets),
            use_dora=self.config.use_dora,
            use_rslora=self.config.use_rslora,
        )
        stage.model = get_peft_model(stage.model, config)

    def detach(self, stage: Stage) -> None:
        """Add the adapter to the weights, keep a copy of it, and leave a plain model."""
        if not isinstance(stage.model, PeftModel):
            raise MethodError(f"Method '{self.label}' lost its adapter during the domain: `stage.model` was replaced.")
        self._finished = [*self._finished, stage.domain]
        for name, value in get_peft_model_state_dict(stage.model).items():
            self._adapters[f"{stage.domain}/{name}"] = value.detach().cpu().clone()
        plain = stage.model.merge_and_unload(safe_merge=True)
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(name in self._trainable)
        stage.model = plain

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
