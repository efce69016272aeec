"""MIGU: update only the rows of a linear layer whose outputs are largest on the current batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.magnitude import NOTHING_SEEN, OutputMagnitude
from everlearn.methods.base import ApplyTo, Cost, Mask, Method, MethodConfig, Needs, Setting, Variant, register
from everlearn.methods.engine.attachment import low_rank_beside, refuse_frozen_model
from everlearn.methods.engine.protection import overrides
from everlearn.methods.masks.kept_rows import KeptRows
from everlearn.methods.masks.rows import SELECTORS, Rule, Selector, keep_largest, kept_rows, rows_of, trained, units_of
from everlearn.methods.stage import Batch, Stage
from everlearn.model.anatomy import Anatomy, Component, anatomy
from everlearn.model.architectures import Tokens
from everlearn.model.content import CONTENT
from everlearn.model.objectives import where_text_is
from everlearn.ranges import Between, ranges

Part = Literal[Component, "head"]
PROJECTIONS: tuple[Part, ...] = get_args(Component)


@register
class MIGU(Method):
    """Magnitude-based gradient updating (arXiv 2406.17245, §3.2).

    For a linear layer with outputs y, let n_i = Σ |y_i| over all positions of the current optimizer step. Of the d_out
    rows of its weight, the floor(T · d_out) with the smallest n_i are masked in this step.

    With LoRA (§3.3), and low-rank blocks of other methods, the rows of A are ranked by the outputs of A, and the rows
    of B by the outputs of the complete layer.
    """

    name = "migu"
    title = "MIGU"
    summary = "updates only the rows of weights that have large outputs"
    paper = "https://arxiv.org/abs/2406.17245"
    kinds = ("trick",)
    needs = Needs(anatomy=True)
    identity: ClassVar[dict[str, Any] | None] = {"threshold": 0}
    variants = (
        Variant(
            "migu_released",
            "MIGU (released)",
            "As in the authors' code for full fine-tuning: gradients are masked, for rows below a quantile, also of "
            "the "
            "vocabulary head and embeddings that are tied to it.",
            {"apply_to": "gradient", "rule": "quantile", "components": (*PROJECTIONS, "head")},
        ),
        Variant(
            "migu_kept_rows",
            "MIGU (kept rows)",
            "Each micro-batch selects its own rows at the end of its forward pass, and gradients of the other rows are "
            "not computed. This equals the published rule only without gradient accumulation.",
            {"apply_to": "gradient", "gradient_of": "kept-rows"},
        ),
    )

    class Config(MethodConfig):
        threshold: float = Field(0.7, ge=0, lt=1)
        """Share of rows that are masked in each step; 0 is plain training."""
        selector: Selector = "magnitude"
        """Score that ranks rows: outputs (as in the paper); or weights, gradients or random scores, which its Table 11
        names without a definition: here Σ|w| or Σ|g| of a row, or new random scores at each step."""
        components: tuple[Part, ...] = Field(PROJECTIONS, min_length=1)
        """Which layers are masked (its Table 5): projections of attention and feed-forward networks; `head` adds the
        vocabulary head, and tied embeddings."""
        lora_b: Literal["output", "own"] = "output"
        """Outputs that rank the rows of LoRA's B: those of the complete layer (the paper's x_O), or of the adapter only
        (x_B)."""
        rule: Rule = "floor"
        """Number of masked rows: with `floor` exactly floor(T · n); with `quantile` those below the T-quantile of the
        sums, as in the released code."""
        apply_to: ApplyTo = "update"
        """Whether the mask applies to updates or gradients. The paper and its code mask gradients; with Adam, masked
        rows then still move."""
        gradient_of: Literal["all-rows", "kept-rows"] = "all-rows"
        """`kept-rows` computes weight gradients only for the kept rows: it is faster, and each micro-batch (over all
        processes) ranks by its own outputs."""
        skip_first_domain: bool = True
        """Train the first domain without a mask, as in the released code (the paper does not say)."""
        mask_bias: bool = False
        """Mask the biases of masked rows too; the released code does not."""
        count_padding: bool = True
        """Include padding in the sums, as in the released code. What fills packed rows of chats or of prompts with
        answers never counts."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.selector != "magnitude":
                yield ("lora_b", "count_padding"), f"with `selector: {self.selector}`, which reads no outputs"

    search = ranges(threshold=Between(0.2, 0.95))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._magnitude: OutputMagnitude | None = None
        self._kept: KeptRows | None = None
        self._plan: dict[str, Tensor] = {}
        self._moved: dict[str, Tensor] = {}
        self._hooks = ExitStack()
        self._active = False

    def check(self, setting: Setting) -> None:
        super().check(setting)
        refuse_frozen_model(self, setting, low_rank=True)
        if not _layers(setting.model, anatomy(setting.model), self.config.components):
            raise MethodError(
                f"Method '{self.label}', option 'components': the model has no {' or '.join(self.config.components)}. "
                f"It has {', '.join(dict.fromkeys(p.component for p in anatomy(setting.model).linears.values()))}."
            )
        if self.config.gradient_of == "kept-rows":
            self._check_kept_rows(setting)

    def _check_kept_rows(self, setting: Setting) -> None:
        what = f"Method '{self.label}', option 'gradient_of': kept-rows"
        if self.config.selector != "magnitude" or "head" in self.config.components:
            raise MethodError(f"{what} selects rows by the outputs of projections only. Set it to all-rows.")
        if setting.has_peft or any(other.freezes for other in setting.methods):
            raise MethodError(f"{what} saves nothing with adapters, whose gradients are small. Set it to all-rows.")
        for other in setting.methods:
            if overrides(other, "transforms"):
                raise MethodError(
                    f"{what} does not work with '{other.label}', which changes the weights of the forward pass."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: one float per output feature, and the copy that restores masked updates."""
        if not self.config.threshold:
            return Cost()
        copies = sums = 0
        for path in trained(model, _layers(model, anatomy(model), self.config.components)):
            for name, parameter, _ in rows_of(model, path, self.config.mask_bias):
                # Sums and mask: two floats per row. The copy exists during the optimizer step only.
                copies += parameter.numel() * parameter.element_size() if self.config.apply_to == "update" else 0
                sums += 8 * (parameter.shape[0] if name.endswith("bias") else max(parameter.shape))
        return Cost(memory_bytes=copies + sums, whole_bytes=sums)

    def begin_domain(self, stage: Stage) -> None:
        """Decide whether this domain is masked."""
        self._close()
        self._active = self.config.threshold > 0 and not (stage.first and self.config.skip_first_domain)

    def begin_training(self, stage: Stage) -> None:
        """Register the hooks, after the adapters of all methods were attached.

        Raises:
            MethodError: no layer of the configured components is trained.
        """
        self._layers = _layers(stage.model, stage.anatomy, self.config.components)
        paths = trained(stage.model, self._layers)
        if not paths and self.config.threshold:
            others = {
                part for part in PROJECTIONS if trained(stage.model, _layers(stage.model, stage.anatomy, (part,)))
            }
            raise MethodError(
                f"Method '{self.label}', option 'components': no {' or '.join(self.config.components)} is trained. "
                f"Trained are: {', '.join(part for part in PROJECTIONS if part in others) or 'no projections'}."
            )
        if not self._active:
            return
        self._units = list(units_of(stage.model, paths))
        if self.config.selector == "magnitude":
            self._magnitude = OutputMagnitude(stage.model, paths, own_of_b=self.config.lora_b == "own")
            self._hooks.callback(self._magnitude.close)
        if self.config.gradient_of == "kept-rows":
            self._kept = KeptRows(stage.model, paths, lambda: self._plan)
            self._hooks.callback(self._kept.close)
            self._hooks.enter_context(stage.model.register_forward_hook(self._choose))

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Set which positions of the next pass are counted: those of the batch, not views of other methods."""
        if self._magnitude is not None:
            self._plan = {}
            self._magnitude.rows, self._magnitude.labels = len(batch["labels"]), batch["labels"].numel()
            all_count = self.config.count_padding and CONTENT not in batch
            masks = {} if all_count else where_text_is(batch)
            self._magnitude.positions = {path: masks[kind] for path, kind in self._layers.items() if kind in masks}
        return {}

    def _choose(self, *_: Any) -> None:
        """Choose the rows to keep at the end of a counted pass; later passes (references, views) keep all rows."""
        sums = self._magnitude.take() if self._magnitude is not None else {}
        if not sums:
            return
        plan, self._plan = self._plan, {}
        for path, factors in keep_largest(sums, self.config.threshold, self.config.rule).items():
            plan[path] = kept_rows(factors, self.config.threshold, self.config.rule)
            self._moved[path] = self._moved[path].maximum(factors) if path in self._moved else factors

    def mask(self, stage: Stage) -> Mask | None:
        """Return the mask of the rows with the smallest outputs in this step."""
        if not self._active:
            return None
        if self._kept is not None:
            kept, self._moved = self._moved, {}
            if not kept:
                raise MethodError(NOTHING_SEEN)
        else:
            magnitude, select = self._magnitude, self.config.selector
            scores = magnitude.pop() if magnitude is not None else SELECTORS[select](stage, self._units)
            kept = keep_largest(scores, self.config.threshold, self.config.rule)
        factors = {
            name: rows.view([-1 if at == dim else 1 for at in range(parameter.dim())])
            for path, rows in kept.items()
            for name, parameter, dim in rows_of(stage.model, path, self.config.mask_bias)
        }
        return Mask(factors, self.config.apply_to)

    def detach(self, stage: Stage) -> None:
        self._close()

    def _close(self) -> None:
        self._hooks.close()
        self._magnitude = self._kept = None
        self._plan, self._moved = {}, {}


def _layers(model: nn.Module, layout: Anatomy, components: tuple[Part, ...]) -> dict[str, Tokens]:
    """Return the paths of the layers to mask, and the tokens of their positions (:attr:`Projection.tokens`)."""
    beside = low_rank_beside(model)
    layers: dict[str, Tokens] = {
        beside.get(path, path): each.tokens for path, each in layout.linears.items() if each.component in components
    }
    if "head" in components and layout.head:
        head = model.get_submodule(layout.head)
        # All layers of an encoder's head are computed at labels only, so they see no padding.
        layers |= {
            f"{layout.head}.{name}".rstrip("."): "answer"
            for name, module in head.named_modules()
            if isinstance(module, nn.Linear)
        }
    return layers
