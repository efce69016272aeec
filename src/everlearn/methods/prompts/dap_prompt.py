"""DAP-Prompt: a soft prompt for each domain in front of a frozen model."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import (
    Cost,
    Memory,
    Method,
    MethodConfig,
    Needs,
    Reading,
    Setting,
    Stage,
    register,
)
from everlearn.methods.engine.attachment import Attachment, detach, freeze_base, refuse_other_additions
from everlearn.model.objectives import config_of


@register
class DAPPrompt(Method):
    """Soft prompts (arXiv 2104.08691) learnt on a domain, the baseline DAP-Prompt of DAS (arXiv 2302.03241).

    A domain has n vectors P, [n, E]; a text with token embeddings X is read as [P; X], and its last hidden states are
    those behind P. Nothing but P is trained on a domain, so the checkpoint is the base model throughout, bit for bit.
    P takes the model's first n positions and the text those that follow. A text of no learnt domain is read as it is.

    Rows are longer by n tokens, which is what a step costs more. Packed documents of a causal model all see P and not
    each other.
    """

    name = "dap_prompt"
    title = "DAP-Prompt"
    paper = "https://arxiv.org/abs/2302.03241"
    needs = Needs(
        domain_id_test=True,
        extra_parameters=True,
        objectives=frozenset({"masked", "causal"}),
        peft=False,
        anatomy=True,
        memory="parameters",
    )
    freezes = True

    class Config(MethodConfig):
        """Options of soft prompts."""

        n_tokens: int = Field(100, ge=1)
        """n."""
        initialise: Literal["vocabulary", "uniform"] = "vocabulary"
        """P begins as the embeddings of the first n tokens of the vocabulary, or uniform in [-0.5, 0.5]. The released
        repositories have both."""
        learning_rate: float | None = Field(0.3, gt=0, allow_inf_nan=False)
        """Of P while a domain is learnt, on the schedule of the run; null takes `train.learning_rate`. 0.3 is what the
        authors' code for DGA uses and 2104.08691 recommends; the paper gives none."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the classification head, as the released code does: P and the model stay. The paper
        fine-tunes both."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._prompts: dict[str, Tensor] = {}

    def check(self, setting: Setting) -> None:
        """The prompt must fit the positions, and must not carry one packed document into another."""
        super().check(setting)
        refuse_other_additions(self, setting)
        attention = config_of(setting.model)._attn_implementation
        isolate = setting.objective.isolate
        if isolate and setting.objective.name == "masked":
            raise MethodError(
                "Method 'dap_prompt' puts one prompt before a row, through which the documents packed into it see each "
                "other. Set `data.isolate_documents: false`."
            )
        if isolate and attention not in ("sdpa", "eager"):
            raise MethodError(
                "Method 'dap_prompt' needs `model.attn_implementation: sdpa` or eager for a prompt that all documents "
                f"of a row see (got '{attention}'). Change it, or set `data.isolate_documents: false`."
            )
        self._check_length(setting.objective.longest_input(setting.model), setting.block_size)

    def cost(self, model: nn.Module) -> Cost:
        """The prompt; one is kept for each domain."""
        added = self.config.n_tokens * _embeddings(model).shape[1]
        return Cost(memory_bytes=4 * added, disk_bytes_per_domain=4 * added, parameters=added)

    def attach(self, stage: Stage) -> None:
        """Attach a new prompt and freeze everything else."""
        self._check_length(stage.objective.longest_input(stage.model), stage.source.block_tokens or 1)
        SoftPrompt(self._new(stage.model)).attach(stage.model, self.name, freeze=True)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The prompt's learning rate: it is all that is trained. The schedule scales whatever a group begins with."""
        if self.config.learning_rate is None:
            return groups
        return [{**group, "lr": self.config.learning_rate} for group in groups]

    def detach(self, stage: Stage) -> None:
        """Keep the prompt and leave the base model."""
        self._prompts[stage.domain] = detach(stage.model, self.name).vectors.detach().cpu().clone()

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """The prompt of the text's domain, which fine-tuning may change; none for other text."""
        if reading.domain not in self._prompts:
            return model
        vectors = self._prompts[reading.domain]
        if vectors.shape[1] != _embeddings(model).shape[1]:
            raise MethodError(
                f"Method 'dap_prompt' remembers vectors of size {vectors.shape[1]}, but this model's embeddings have "
                f"{_embeddings(model).shape[1]}. Its memory belongs to another model."
            )
        prompt = SoftPrompt(vectors)
        if self.config.freeze_base_at_end_task:
            freeze_base(model)
            prompt.requires_grad_(False)
        prompt.attach(model, self.name)
        return model

    def memory(self) -> Memory:
        """The prompt of each domain, by its name."""
        return Memory(dict(self._prompts), {"domains": list(self._prompts)} if self._prompts else {})

    def load_memory(self, memory: Memory) -> None:
        """Take the prompts back."""
        self._prompts = {name: memory.tensors[name] for name in memory.facts.get("domains", [])}

    def _new(self, model: nn.Module) -> Tensor:
        words = _embeddings(model)
        if self.config.initialise == "uniform":
            return torch.rand(self.config.n_tokens, words.shape[1]) - 0.5
        first = torch.arange(self.config.n_tokens, device=words.device) % len(words)
        return words[first].detach().clone()

    def _check_length(self, longest: int | None, text: int) -> None:
        if longest is not None and self.config.n_tokens + text > longest:
            raise MethodError(
                f"Method 'dap_prompt', option 'n_tokens': {self.config.n_tokens} prompt tokens and a text of {text} do "
                f"not fit the model's {longest} positions. Lower `n_tokens` or `data.block_size`."
            )


class SoftPrompt(Attachment):
    """Vectors in front of every row's embeddings, taken out of the last hidden state again.

    Attributes:
        vectors: P, [n, E].
    """

    lengthens_rows = True

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors.clone())

    @property
    def taken_positions(self) -> int:
        """n: how many positions of the model are taken from the text."""
        return len(self.vectors)

    def place(self, model: nn.Module) -> None:
        """Hook the base model."""
        base: Any = model.base_model
        base.register_forward_pre_hook(self.put_before, with_kwargs=True)
        base.register_forward_hook(self.cut_off)

    def put_before(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Forward pre-hook: embeddings instead of tokens, and everything else longer by n."""
        given = dict(inspect.signature(base.forward).bind(*args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        ids = given.pop("input_ids", None)
        if ids is not None:
            given["inputs_embeds"] = base.get_input_embeddings()(ids)  # type: ignore[operator]
        text, n = given["inputs_embeds"], len(self.vectors)
        given["inputs_embeds"] = torch.cat([self.vectors.to(text.dtype).expand(len(text), -1, -1), text], 1)
        mask, positions = given.get("attention_mask"), given.get("position_ids")
        if mask is not None:
            given["attention_mask"] = F.pad(mask, (n, 0), value=1)
        elif positions is not None:
            given["attention_mask"] = self._isolating(base, positions)
        if given.get("token_type_ids") is not None:
            given["token_type_ids"] = F.pad(given["token_type_ids"], (n, 0))
        if positions is not None:
            own = torch.arange(n, device=positions.device).expand(len(positions), -1)
            given["position_ids"] = torch.cat([own, positions + n], 1)
        return (), given

    def cut_off(self, base: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Forward hook: what is outside sees the text alone."""
        n = len(self.vectors)
        output.last_hidden_state = output.last_hidden_state[:, n:]
        if getattr(output, "hidden_states", None) is not None:
            output.hidden_states = tuple(hidden[:, n:] for hidden in output.hidden_states)
        if getattr(output, "pooler_output", None) is not None:
            pooler: Any = base.pooler
            output.pooler_output = pooler(output.last_hidden_state)  # of the text's first token, not of the prompt's
        return output

    def _isolating(self, base: nn.Module, positions: Tensor) -> Tensor:
        """What each token of a causal row sees, [B, 1, n + S, n + S]: P, and what came before in its own document.

        Documents are where positions count on (as transformers reads packed rows); behind P that would leave all but
        the first without it.
        """
        n = len(self.vectors)
        document = F.pad((positions[:, 1:] != positions[:, :-1] + 1).cumsum(1), (1, 0))
        same = document[:, :, None] == document[:, None, :]
        sees = F.pad(same, (n, 0, n, 0), value=True).tril()[:, None]
        if config_of(base)._attn_implementation == "sdpa":
            return sees
        dtype = self.vectors.dtype
        return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)


def _embeddings(model: nn.Module) -> Tensor:
    """Token embeddings, [vocabulary, E]."""
    get: Any = model.get_input_embeddings
    weight: Tensor = get().weight
    return weight
