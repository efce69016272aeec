"""Trained vectors in front of a text (arXiv 2104.08691), attached to a model for a stage or a test.

PEFT's prompt tuning is not used: it returns the positions of the prompt as part of the output, supports neither packed
rows nor frozen earlier prompts, and its model is not a plain one between stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.engine.attachment import Attachment, arguments, refuse_other_additions, refuse_without_attention
from everlearn.model.anatomy import kind_of
from everlearn.model.head import config_of

if TYPE_CHECKING:
    from everlearn.methods.base import Method, Setting, Stage


class BeforeText(Attachment):
    """Positions that are prepended to the embeddings of every row, and removed from the last hidden state.

    In an encoder-decoder they precede the input of the encoder, and the decoder attends to their encoding. Elsewhere
    they take the first positions of the model, and the text the following ones.
    """

    lengthens_rows = True
    behind = False
    """Whether they follow the text of each row instead, before its padding; for the encoder of an encoder-decoder."""

    def stand(self, text: Tensor) -> Tensor:
        """Return the vectors to prepend, [B, n, E], for embedded rows [B, S, E]."""
        raise NotImplementedError

    @property
    def taken_positions(self) -> int:
        """The number n of positions that the text cannot use."""
        raise NotImplementedError

    def place(self, model: nn.Module) -> None:
        """Register hooks on the base model, or on its two stacks."""
        base: Any = model.base_model
        if kind_of(model) == "encoder-decoder":
            base.encoder.register_forward_pre_hook(self.put_before, with_kwargs=True)
            base.decoder.register_forward_pre_hook(self.let_decoder_see, with_kwargs=True)
        else:
            base.register_forward_pre_hook(self.put_before, with_kwargs=True)
            base.register_forward_hook(self.cut_off)

    def put_before(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """Replace tokens by embeddings with the prompt, and lengthen masks and positions by n; a forward pre-hook."""
        given = arguments(base, args, kwargs)
        ids = given.pop("input_ids", None)
        if ids is not None:
            given["inputs_embeds"] = base.get_input_embeddings()(ids)  # type: ignore[operator]
        text, n = given["inputs_embeds"], self.taken_positions
        mask, positions = given.get("attention_mask"), given.get("position_ids")
        given["inputs_embeds"] = self._beside(self.stand(text), text, mask)
        if mask is not None and mask.dim() == 4:  # the full attention mask of a decoder
            given["attention_mask"] = F.pad(mask, (n, 0, n, 0), value=True).tril()
        elif mask is not None:
            given["attention_mask"] = self._beside(mask.new_ones(len(mask), n), mask, mask)
        elif positions is not None:
            given["attention_mask"] = self._isolating(base, positions, text.dtype)
        if given.get("token_type_ids") is not None:
            given["token_type_ids"] = F.pad(given["token_type_ids"], (n, 0))
        if positions is not None:
            own = torch.arange(n, device=positions.device).expand(len(positions), -1)
            given["position_ids"] = torch.cat([own, positions + n], 1)
        return (), given

    def cut_off(self, base: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Remove the prompt from the output; a forward hook."""
        n = self.taken_positions
        output.last_hidden_state = output.last_hidden_state[:, n:]
        if getattr(output, "hidden_states", None) is not None:
            output.hidden_states = tuple(hidden[:, n:] for hidden in output.hidden_states)
        if getattr(output, "pooler_output", None) is not None:
            pooler: Any = base.pooler
            output.pooler_output = pooler(output.last_hidden_state)  # the first token of the text, not of the prompt
        return output

    def let_decoder_see(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Lengthen the encoder's mask by n; a forward pre-hook of an encoder-decoder's decoder."""
        mask = kwargs.get("encoder_attention_mask")
        if mask is not None:
            ours = mask.new_ones(len(mask), self.taken_positions)
            kwargs = kwargs | {"encoder_attention_mask": self._beside(ours, mask, mask)}
        return args, kwargs

    def _beside(self, ours: Tensor, text: Tensor, mask: Tensor | None) -> Tensor:
        """Concatenate [B, n, …] and [B, S, …] to [B, n + S, …]: before the text, or after the text of each row."""
        if not self.behind:
            return torch.cat([ours, text], 1)
        if mask is None:
            return torch.cat([text, ours], 1)
        n, size = ours.shape[1], text.shape[1]
        at, length = torch.arange(size + n, device=text.device), mask.sum(1, keepdim=True)
        source = torch.where(at < length, at, torch.where(at < length + n, size + at - length, at - n))
        joined = torch.cat([text, ours], 1)
        return joined[torch.arange(len(text), device=text.device)[:, None], source]

    def _isolating(self, base: nn.Module, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the mask of causal rows, [B, 1, n + S, n + S]: P, and earlier tokens of the same document.

        A document continues as long as positions count on (as transformers reads packed rows); with P in front, that
        rule would hide P from all documents but the first.
        """
        n = self.taken_positions
        document = F.pad((positions[:, 1:] != positions[:, :-1] + 1).cumsum(1), (1, 0))
        same = document[:, :, None] == document[:, None, :]
        sees = F.pad(same, (n, 0, n, 0), value=True).tril()[:, None]
        if config_of(base)._attn_implementation == "sdpa":
            return sees
        return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)


class SoftPrompt(BeforeText):
    """The same vectors in front of every row.

    Attributes:
        vectors: the trained vectors, [n, E].
    """

    shares_prompts = True

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors.clone())

    def prompt(self) -> Tensor:
        """Return the vectors in front of a text, [n, E]."""
        return self.vectors

    def stand(self, text: Tensor) -> Tensor:
        return self.prompt().to(text.dtype).expand(len(text), -1, -1)

    @property
    def taken_positions(self) -> int:
        return len(self.vectors)


def word_embeddings(model: nn.Module) -> Tensor:
    """Return the token embeddings, [vocabulary, E]."""
    get: Any = model.get_input_embeddings
    weight: Tensor = get().weight
    return weight


def at_rate(
    groups: list[dict[str, Any]], learning_rate: float | None, weight_decay: float | None = None
) -> list[dict[str, Any]]:
    """Return the parameter groups with the learning rate and weight decay of the prompt; None keeps a value.

    The prompt is all that is trained. The schedule scales the initial value of each group.
    """
    own = {"lr": learning_rate, "weight_decay": weight_decay}
    changed = {key: value for key, value in own.items() if value is not None}
    return [{**group, **changed} for group in groups] if changed else groups


def check_prompt(method: Method, setting: Setting, tokens: int) -> None:
    """Check that a prompt fits the positions, and that it does not connect packed documents.

    Raises:
        MethodError: the check failed, or another method adds parameters.
    """
    refuse_other_additions(method, setting)
    attention = config_of(setting.model)._attn_implementation
    isolate = setting.objective.isolate and kind_of(setting.model) != "encoder-decoder"
    if isolate and setting.objective.name == "masked":
        raise MethodError(
            f"Method '{method.label}' puts one prompt before a row, through which the documents packed into it see "
            "each other. Set `data.isolate_documents: false`."
        )
    if isolate and tokens:
        refuse_without_attention(method, setting, "puts one prompt before a row for every document in it")
    if isolate and attention not in ("sdpa", "eager"):
        instead = ", or set `data.isolate_documents: false`" if setting.objective.name == "causal" else ""
        raise MethodError(
            f"Method '{method.label}' needs `model.attn_implementation: sdpa` or eager for a prompt that all documents "
            f"of a row see (got '{attention}'). Change it{instead}."
        )
    check_length(method, setting.objective.longest_input(setting.model), tokens, setting.block_size)


def check_stage_length(method: Method, stage: Stage, tokens: int) -> None:
    """Check that a prompt fits the rows of a stage."""
    check_length(method, stage.objective.longest_input(stage.model), tokens, stage.source.block_tokens or 1)


def check_length(method: Method, longest: int | None, tokens: int, text: int) -> None:
    """Raise ``MethodError`` if a prompt and a text exceed the longest input of the model."""
    if longest is not None and tokens + text > longest:
        raise MethodError(
            f"Method '{method.label}', option 'n_tokens': {tokens} prompt tokens and a text of {text} do "
            f"not fit the model's {longest} positions. Lower `n_tokens` or `data.block_size`."
        )


def check_memory(method: Method, model: nn.Module, vectors: Tensor) -> None:
    """Raise ``MethodError`` if saved vectors do not fit the embeddings of a model."""
    features = word_embeddings(model).shape[1]
    if vectors.shape[1] != features:
        raise MethodError(
            f"Method '{method.label}' remembers vectors of size {vectors.shape[1]}, but this model's embeddings have "
            f"{features}. Its memory belongs to another model."
        )
