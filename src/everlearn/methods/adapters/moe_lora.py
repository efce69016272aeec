"""MoE-LoRA: low-rank experts beside a frozen model, and routers that select among them for each token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812
from peft import LoraConfig, get_peft_model
from pydantic import Field, model_validator
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.magnitude import inside_backward, of_all_processes
from everlearn.methods.adapters.low_rank import ADAPTER, LowRank, LowRankConfig
from everlearn.methods.base import Batch, Cost, Reading, Stage, register
from everlearn.methods.state import Fact, Tensors
from everlearn.model.anatomy import Projection, kind_of
from everlearn.model.architectures import Tokens
from everlearn.model.objectives import Outputs, where_text_is
from everlearn.model.quantising import is_quantised

START = 0.02
"""Standard deviation of the initial weights of a router."""


@register
class MoELoRA(LowRank):
    """A mixture of LoRA experts, trained on the whole stream: the baseline "MoELoRA" of arXiv 2406.17245.

    h = W x + s Σ_{e ∈ top-k} g_e B_e A_e x,   p = softmax(W_r x),   g_e = p_e / Σ_{top-k} p,   s = α / r

    L + β · mean over layers of E Σ_e f_e P_e (arXiv 2101.03961, eq. 4), with f_e the share of the selections that fall
    on expert e and P_e the mean of p_e over all tokens, without padding.

    Every layer with experts has its own router, which reads the input of the layer. Experts and routers continue from
    domain to domain and W stays that of the base model, so no domain id is needed at test time. A mixture that depends
    on x cannot be merged into a weight, so the model of a stage is the base model, and experts and routers are the
    memory of the method, which is attached to read texts.

    The E experts of a layer are one PEFT adapter of rank E · r, A = [A_1; …; A_E] and B = [B_1 … B_E], whose
    activations A x are scaled in blocks by the router: Σ_e g_e B_e A_e x = B (g ⊗ 1_r ⊙ A x).
    """

    name = "moe_lora"
    title = "MoE-LoRA"
    summary = "low-rank experts and routers for all domains"
    paper = "https://arxiv.org/abs/2402.12851"
    kinds = ("trick",)

    class Config(LowRankConfig):
        """Options of MoE-LoRA; the paper leaves all but the number of experts open."""

        r: int = Field(8, ge=1)
        """Rank of each expert."""
        experts: int = Field(4, ge=1)
        """E, the number of experts per layer; the paper has as many as there are domains in the stream."""
        top_k: int = Field(2, ge=1)
        """Number of experts per token."""
        renormalise: bool = True
        """Whether the gates of the selected experts sum to 1; otherwise they are p_e, as for a single expert in
        2101.03961."""
        balance: float = Field(0.01, ge=0, allow_inf_nan=False)
        """β, the weight of the load-balancing loss; 0 disables it. 0.01 is from 2101.03961."""

        @model_validator(mode="after")
        def _router_learns(self) -> Self:
            if self.top_k > self.experts:
                raise ValueError(f"option 'top_k': {self.top_k} of {self.experts} `experts` cannot be chosen")
            if self.top_k == 1 and self.experts > 1 and self.renormalise:
                raise ValueError(
                    "option 'top_k': the gate of a single expert would always be 1, so the router could not learn. Set "
                    "`renormalise: false`"
                )
            return self

    config: Config
    _experts = Tensors(beside="_domains")
    _domains = Fact("domains", list[str], beside="_experts")
    """A and B of all experts under PEFT's names, the routers' weights beside them, and the domains learnt."""

    def cost(self, model: nn.Module) -> Cost:
        rank, shapes = self.config.experts * self.config.r, self._shapes(model)
        count = sum(rank * (inputs + outputs) + self.config.experts * inputs for inputs, outputs in shapes)
        return Cost(memory_bytes=4 * count, disk_bytes=4 * count, parameters=count)

    def attach(self, stage: Stage) -> None:
        """Freeze the model; experts and routers continue from the last domain."""
        super().attach(stage)
        # Only an encoder-decoder has layers that read different kinds of tokens.
        self._route(stage.model, stage.anatomy.linears if kind_of(stage.model) == "encoder-decoder" else {})
        self._fill(stage.model, self._experts, complete=True)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Limit load balancing in the next pass to the text of the batch: no views of other methods, no padding."""
        text = where_text_is(batch)
        for router in routers(stage.model) if self.config.balance else ():
            router.rows, router.text = len(batch["labels"]), text.get(router.tokens)
        return {}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return β E Σ_e f_e P_e, with f_e over all processes."""
        if not self.config.balance:
            return {}
        means, choices = zip(*(router.take() for router in routers(stage.model)), strict=True)
        counts = of_all_processes({str(layer): chosen for layer, chosen in enumerate(choices)})
        shares = torch.stack([counts[str(layer)] / counts[str(layer)].sum() for layer in range(len(choices))])
        return {"balance": self.config.balance * self.config.experts * (shares * torch.stack(means)).sum(1).mean()}

    def detach(self, stage: Stage) -> None:
        self._experts, self._domains = self._learnt(stage), [*self._domains, stage.domain]
        adapted: Any = stage.model
        plain = adapted.unload()
        if is_quantised(plain):
            plain = stage.checkpoints[-1]
            self._trainable = [name for name, _ in plain.named_parameters()]
        self._leave(stage, plain)

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach the experts and routers, for text of any domain.

        Fine-tuning on an end task trains them together with the model.
        """
        if self._experts:
            adapted = get_peft_model(model, self._lora(model))
            self._route(adapted, {})
            self._fill(adapted, self._experts)
            model.requires_grad_(True)
        return model

    def _lora(self, model: nn.Module, parts: int = 1, **options: Any) -> LoraConfig:
        return super()._lora(model, parts * self.config.experts, **options)

    def _route(self, model: nn.Module, known: Mapping[str, Projection]) -> None:
        """Add a router to each layer with an adapter, where PEFT saves and loads it with the adapter."""
        for path, layer in [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")]:
            a: Any = layer.lora_A[ADAPTER]
            router = Router(a.in_features, self.config.experts, self.config.top_k, self.config.renormalise)
            router.tokens = known[path].tokens if path in known else "input"
            layer.lora_router = nn.ModuleDict({ADAPTER: router.to(a.weight.device)})
            layer.register_forward_pre_hook(router.read)
            a.register_forward_hook(router.scale)
            layer.register_forward_hook(router.forget)


class Router(nn.Module):
    """p = softmax(W_r x) of the input of a layer, and the gates that scale the activations of its experts.

    Its hooks are bound methods, so that a copy of the model has hooks that belong to the copy.

    Args:
        features: size of the input of the layer.
        experts: E.
        top_k: number of experts per token.
        renormalise: whether their gates sum to 1.

    Attributes:
        rows: number of first rows of training passes whose selections are recorded; None records nothing.
        text: positions of these rows that hold text, [rows, S] bool; None for all.
        tokens: the tokens that the layer reads.
        shares_prompts: each token has its own gates (:class:`~everlearn.methods.engine.attachment.Attachment`).
    """

    shares_prompts = True

    def __init__(self, features: int, experts: int, top_k: int, renormalise: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, features))
        nn.init.normal_(self.weight, std=START)
        self.experts, self.top_k, self.renormalise = experts, top_k, renormalise
        self.rows: int | None = None
        self.text: Tensor | None = None
        self.tokens: Tokens = "input"
        self._gates: Tensor | None = None
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return probabilities, gates and selections (0 or 1), each [..., E] float32, for inputs [..., d_in]."""
        probabilities = F.linear(x.to(self.weight.dtype), self.weight).float().softmax(-1)
        return probabilities, *gates_of(probabilities, self.top_k, self.renormalise)

    def read(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Compute the gates of the layer's input; a forward pre-hook of the layer."""
        probabilities, self._gates, chosen = self(inputs[0])
        if self.rows is not None and self.training and torch.is_grad_enabled() and not inside_backward():
            # No copies: gradient checkpointing repeats the pass without this, and must save equally many tensors.
            self._seen = probabilities[: self.rows].flatten(0, -2), chosen[: self.rows].flatten(0, -2)

    def scale(self, a: nn.Module, inputs: tuple[Any, ...], activations: Tensor) -> Tensor:
        """Scale each expert's block of activations, [..., E · r], by its gate; a forward hook of A."""
        if self._gates is None:
            return activations
        blocks = activations.unflatten(-1, (self.experts, -1))
        return (blocks * self._gates[..., None].to(activations.dtype)).flatten(-2)

    def forget(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Drop the gates of the last pass; called as a forward hook of the layer."""
        self._gates = None

    def take(self) -> tuple[Tensor, Tensor]:
        """Return and reset the mean probabilities and the number of selections of the last training pass, [E] each.

        Raises:
            MethodError: there was none.
        """
        seen, text = self._seen, self.text
        self._seen, self.rows, self.text = None, None, None
        if seen is None:
            raise MethodError(
                "Method 'moe_lora', option 'balance': there was no forward pass with gradients. Gradient checkpointing "
                "with `use_reentrant: true` hides them: set `activation_checkpointing_kwargs: {use_reentrant: false}`, "
                "or `balance: 0`."
            )
        probabilities, chosen = seen
        counts = probabilities.new_ones(len(probabilities)) if text is None else text.flatten().to(probabilities.dtype)
        return counts @ probabilities / counts.sum().clamp(min=1), counts @ chosen


def gates_of(probabilities: Tensor, top_k: int, renormalise: bool = True) -> tuple[Tensor, Tensor]:
    """Return the gates of the `top_k` most likely experts and their selection (0 or 1), [..., E] (:class:`Router`)."""
    chosen = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(top_k).indices, 1.0)
    gates = probabilities * chosen
    return gates / gates.sum(-1, keepdim=True) if renormalise else gates, chosen


def routers(model: nn.Module) -> Iterator[Router]:
    """Yield the routers of all layers that have experts."""
    return (module for module in model.modules() if isinstance(module, Router))
