"""Common parts of methods with low-rank matrices: target layers, PEFT's LoRA, merging into a plain model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import Field
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.errors import MethodError
from everlearn.methods.base import Method, MethodConfig, Needs, Setting, Stage
from everlearn.methods.engine.protection import overrides
from everlearn.model.finding import is_linear
from everlearn.model.lora_targets import Targets, sizes_of, targets_of
from everlearn.model.peft_adapter import merged, refused_by_peft
from everlearn.model.quantising import in_full, is_quantised
from everlearn.model.vocabulary import new_token_ids, token_tables
from everlearn.model.vocabulary_head import output_head
from everlearn.ranges import OneOf, ranges

A, B, MAGNITUDE, TOKENS = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector", "trainable_tokens_delta"
ADAPTER = "default"
"""Name of the adapter in PEFT while a domain is learnt."""


class LowRankConfig(MethodConfig):
    """Options of every method with low-rank matrices, by PEFT's names."""

    r: int = Field(8, ge=1)
    """Rank of an adapter."""
    lora_alpha: int = Field(32, ge=1)
    """α: adapters are scaled by α / r (α / √r with `use_rslora`)."""
    lora_dropout: float = Field(0.05, ge=0, lt=1)
    """Dropout on the adapter's input."""
    target_modules: Targets | list[str] = "query-value"
    """Layers that get an adapter: queries and values (as published), all attention projections, those and the
    feed-forward ones, or module names as in PEFT. A fused query-key-value projection gets one adapter."""


class MergedConfig(LowRankConfig):
    """Options of methods whose adapters are merged into the weights."""

    use_dora: bool = False
    """Learn a magnitude for each row too (DoRA, arXiv 2402.09353)."""
    use_rslora: bool = False
    """Scale by α / √r (rsLoRA, arXiv 2312.03732)."""
    trainable_token_indices: Literal["new"] | list[Annotated[int, Field(ge=0)]] | None = None
    """Tokens whose embeddings (and rows of an untied vocabulary head) are trained too: `new` for those that
    `everlearn extend` has added, or a list of ids."""
    merge: bool = True
    """Store each stage as a complete model with the adapters merged into its weights, and the adapter beside it
    (`adapter/`). Otherwise a stage is only the adapter, to be loaded with the base model."""


class LowRank(Method):
    """Base class of methods that train low-rank matrices beside a frozen model: h = W x + s · B A x, s = α / r."""

    needs = Needs(extra_parameters=True, memory="parameters")
    adds_peft: ClassVar[bool] = True
    search = ranges(r=OneOf((8, 16, 32, 64)))
    config: LowRankConfig

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._trainable: list[str] = []

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if any(isinstance(module, BaseTunerLayer) for module in setting.model.modules()):
            raise MethodError(
                f"Method '{self.label}' needs a plain model, but this one has adapters. Merge them first."
            )
        for other in setting.methods:
            if other.adds_peft and other.name != self.name:
                raise MethodError(f"Methods '{self.label}' and '{other.label}' both add adapters. Remove one of them.")
        self._targets(setting.model)

    def attach(self, stage: Stage) -> None:
        """Freeze the model and add an adapter; B is initialised with 0, so the function is unchanged."""
        self._trainable = [name for name, parameter in stage.model.named_parameters() if parameter.requires_grad]
        stage.model = get_peft_model(stage.model, self._lora(stage.model))

    def _learnt(self, stage: Stage) -> dict[str, Tensor]:
        """Return a copy of the attached adapter, by PEFT's names."""
        if not isinstance(stage.model, PeftModel):
            raise MethodError(f"Method '{self.label}' lost its adapter during the domain: `stage.model` was replaced.")
        return {name: value.detach().cpu().clone() for name, value in get_peft_model_state_dict(stage.model).items()}

    def _fill(self, model: nn.Module, learnt: Mapping[str, Tensor], *, complete: bool = False) -> None:
        """Load learnt values into an attached adapter; with `complete` none may be missing.

        Raises:
            MethodError: they belong to another model or rank.
        """
        own = get_peft_model_state_dict(model)
        expected = {name for name in own if MAGNITUDE not in name and TOKENS not in name}
        if complete and learnt and (wrong := sorted(learnt.keys() - own.keys() or expected - learnt.keys())):
            raise MethodError(
                f"Method '{self.label}' remembers other tensors than its adapter has: '{wrong[0]}' is in only one of "
                "them. Its memory belongs to another model or other options of the method."
            )
        for name, value in learnt.items():
            if name in own and own[name].shape != value.shape:
                raise MethodError(
                    f"Method '{self.label}' remembers '{name}' with shape {tuple(value.shape)}, which does not fit the "
                    f"model's {tuple(own[name].shape)}. Its memory belongs to another model or `r`."
                )
        set_peft_model_state_dict(model, {name: learnt.get(name, value) for name, value in own.items()})

    def _leave(self, stage: Stage, plain: nn.Module) -> None:
        """Restore a plain model in the stage, with the same parameters trainable as before."""
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(name in self._trainable)
        stage.model = plain

    def _lora(self, model: nn.Module, parts: int = 1, **options: Any) -> LoraConfig:
        """Return the configuration of an adapter with `parts` times the rank and the same scale."""
        targets = self._targets(model)
        shared = {"lora_alpha": parts * self.config.lora_alpha, "lora_dropout": self.config.lora_dropout}
        return LoraConfig(
            r=parts * self.config.r,
            target_modules=targets,
            fan_in_fan_out=any(isinstance(model.get_submodule(path), Conv1D) for path in targets),
            **(shared | options),
        )

    def _shapes(self, model: nn.Module) -> list[tuple[int, int]]:
        """Return the number of inputs and outputs of each target layer."""
        return [sizes_of(model.get_submodule(path)) for path in self._targets(model)]

    def _targets(self, model: nn.Module) -> list[str]:
        """Return the paths of the layers that get an adapter.

        Raises:
            MethodError: the model has no such layer.
        """
        model = in_full(model) if is_quantised(model) else model
        targets = self.config.target_modules
        if not isinstance(targets, list):
            paths = [path for path in targets_of(model, targets) if not refused_by_peft(model, path)]
            if not paths:
                raise MethodError(
                    f"Method '{self.label}', option 'target_modules': PEFT supports no adapter on the layers of "
                    f"'{type(model).__name__}' that '{targets}' selects. Set it to all-linear, or name layers."
                )
            return paths
        paths = []
        for name in targets:
            matching = [
                path
                for path, module in model.named_modules()
                if (path == name or path.endswith(f".{name}")) and is_linear(module)
            ]
            if not matching:
                raise MethodError(
                    f"Method '{self.label}', option 'target_modules': the model has no linear layer '{name}'."
                )
            if why := refused_by_peft(model, matching[0]):
                raise MethodError(
                    f"Method '{self.label}', option 'target_modules': '{name}' can have no adapter in "
                    f"'{type(model).__name__}': {why}. Remove it."
                )
            paths += [path for path in matching if path not in paths]
        return paths


def matrix_of(layer: nn.Module) -> Tensor:
    """Return the weight of a linear layer, [d_out, d_in]."""
    weight = layer.get_parameter("weight").detach()
    return weight.T if isinstance(layer, Conv1D) else weight


def sets_weights(method: Method) -> bool:
    """Return whether a method replaces weights of the frozen model.

    Final weights that are computed from ``stage.start`` (``needs.start``) are those of the adapters.
    """
    ends = overrides(method, "final_weights") and not method.needs.start
    return ends or overrides(method, "starting_weights")


class Merged(LowRank):
    """Base class of methods whose adapter is merged into the float32 weights when a domain ends.

    Class attributes:
        onto: number of the checkpoint whose weights the adapter changes: -1 the last one, 0 the base model.
    """

    onto: ClassVar[int] = -1
    config: MergedConfig

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.merges = self.config.merge

    def check(self, setting: Setting) -> None:
        """Refuse tokens that the model lacks; and `merge: false` if another method changes the frozen weights."""
        super().check(setting)
        self._tokens(setting.model)
        for other in setting.methods:
            if not self.config.merge and sets_weights(other):
                raise MethodError(
                    f"Method '{other.label}' changes weights of the model, so an adapter of method '{self.label}' "
                    "alone does not describe a stage. Set its option `merge: true`."
                )

    def attach(self, stage: Stage) -> None:
        stage.rounded = self.onto if is_quantised(stage.model) else None
        super().attach(stage)

    def detach(self, stage: Stage) -> None:
        """Merge the adapter into the weights, keep a copy of it, and restore a plain model."""
        learnt = self._learnt(stage)
        self._keep(stage.domain, learnt)
        adapted: Any = stage.model
        if is_quantised(adapted):  # the adapter of quantised weights is added to the float32 ones
            exact = stage.checkpoints[self.onto].requires_grad_(True)
            self._trainable = [name for name, _ in exact.named_parameters()]
            adapted = get_peft_model(exact, self._lora(exact))
            set_peft_model_state_dict(adapted, learnt)
        self._leave(stage, merged(adapted))

    def moves(self, model: nn.Module) -> list[str]:
        return [f"{path}.weight" for path in (*self._targets(model), *self._tokens(model))]

    def _tokens(self, model: nn.Module) -> dict[str, list[int]]:
        """Return the ids of the tokens whose rows are trained, by path of the embedding or head.

        Raises:
            MethodError: the model lacks these tokens, or PEFT cannot train their rows.
        """
        chosen = self.config.trainable_token_indices
        if chosen is None:
            return {}
        ids = new_token_ids(model) if chosen == "new" else sorted(chosen)
        at = f"Method '{self.label}', option 'trainable_token_indices':"
        if not ids:
            raise MethodError(
                f"{at} 'new' trains the tokens that `everlearn extend` has added, and the model has none. Extend it, "
                "or leave the option out."
            )
        embeddings: Any = model
        rows = len(embeddings.get_input_embeddings().weight)
        if ids[-1] >= rows:
            raise MethodError(f"{at} {ids[-1]} is not a token of the model, which has {rows:,}.")
        head = output_head(model)
        if getattr(head, "bias", None) is not None:
            raise MethodError(
                f"{at} PEFT trains rows only of a vocabulary head without bias, and that of '{type(model).__name__}' "
                "has one. Leave the option out, and learn the first domain with a method that trains all weights "
                "(such as `mas`)."
            )
        return dict.fromkeys(token_tables(model), ids)

    def _keep(self, domain: str, learnt: dict[str, Tensor]) -> None:
        """Store the trained adapter of a domain, by PEFT's names."""
        raise NotImplementedError

    def _lora(self, model: nn.Module, parts: int = 1, **options: Any) -> LoraConfig:
        alpha = self.config.lora_alpha
        own = {
            "lora_alpha": math.sqrt(parts) * alpha if self.config.use_rslora else parts * alpha,
            "use_dora": self.config.use_dora,
            "use_rslora": self.config.use_rslora,
            "trainable_token_indices": self._tokens(model) or None,
        }
        return super()._lora(model, parts, **(own | options))

    @property
    def _scale(self) -> float:
        """The factor s of B A."""
        return self.config.lora_alpha / (math.sqrt(self.config.r) if self.config.use_rslora else self.config.r)

    def _numbers(self, model: nn.Module) -> int:
        """Return the number of parameters of one adapter."""
        rows = [len(ids) * model.get_parameter(f"{path}.weight").shape[1] for path, ids in self._tokens(model).items()]
        return sum(rows) + sum(
            self.config.r * (inputs + outputs) + (outputs if self.config.use_dora else 0)
            for inputs, outputs in self._shapes(model)
        )
