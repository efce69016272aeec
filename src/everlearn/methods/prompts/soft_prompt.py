"""Trained vectors in front of a text (arXiv 2104.08691), attached to a model for a stage or a test.

PEFT's prompt tuning is not used: it returns the positions of the prompt as part of the output, supports neither packed
rows nor frozen earlier prompts, and its model is not a plain one between stages.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.base import Method, Setting, Stage
from everlearn.methods.engine.attachment import Attachment, arguments, refuse_other_additions, refuse_without_attention
from everlearn.model.anatomy import kind_of
from everlearn.model.vocabulary_head import config_of


class BeforeText(Attachment):
    """Positions that are prepended to the embeddings of every row, and removed from the last hidden state.

    In an encoder-decoder they precede the input of the encoder, and the decoder attends to their encoding. Elsewhere
    they take the first positions of the model, and the text the following ones.
    """

    lengthens_rows = True
    active = True
    """Whether anything is prepended to the next text."""
    behind = False
    """Whether they follow the text of each row, before its padding; only in the encoder of an encoder-decoder."""

    def vectors_for(self, text: Tensor) -> Tensor:
        """Return the vectors to prepend, [B, n, E], for embedded rows [B, S, E]."""
        raise NotImplementedError

    @property
    def taken_positions(self) -> int:
        """The number n of positions that the text cannot use."""
        raise NotImplementedError

    def place(self, model: nn.Module) -> None:
        base: Any = model.base_model
        if kind_of(model) == "encoder-decoder":
            base.encoder.register_forward_pre_hook(self.put_before, with_kwargs=True)
            base.decoder.register_forward_pre_hook(self.let_decoder_see, with_kwargs=True)
        else:
            base.register_forward_pre_hook(self.put_before, with_kwargs=True)
            base.register_forward_hook(self.cut_off)

    def put_before(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace tokens by embeddings with the prompt, and lengthen masks and positions by n; a forward pre-hook."""
        if not self.active:
            return args, kwargs
        inputs = arguments(base, args, kwargs)
        ids = inputs.pop("input_ids", None)
        if ids is not None:
            inputs["inputs_embeds"] = base.get_input_embeddings()(ids)  # type: ignore[operator]
        text, n = inputs["inputs_embeds"], self.taken_positions
        mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
        inputs["inputs_embeds"] = self._joined(self.vectors_for(text), text, mask)
        if mask is not None and mask.dim() == 4:  # the full attention mask of a decoder
            inputs["attention_mask"] = F.pad(mask, (n, 0, n, 0), value=True).tril()
        elif mask is not None:
            inputs["attention_mask"] = self._joined(mask.new_ones(len(mask), n), mask, mask)
        elif positions is not None:
            inputs["attention_mask"] = self._isolating(base, positions, text.dtype)
        if inputs.get("token_type_ids") is not None:
            inputs["token_type_ids"] = F.pad(inputs["token_type_ids"], (n, 0))
        if positions is not None:
            own = torch.arange(n, device=positions.device).expand(len(positions), -1)
            inputs["position_ids"] = torch.cat([own, positions + n], 1)
        return (), inputs

    def cut_off(self, base: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Remove the prompt from the output; a forward hook."""
        if not self.active:
            return output
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
        if mask is not None and self.active:
            own = mask.new_ones(len(mask), self.taken_positions)
            kwargs = kwargs | {"encoder_attention_mask": self._joined(own, mask, mask)}
        return args, kwargs

    def _joined(self, own: Tensor, text: Tensor, mask: Tensor | None) -> Tensor:
        """Concatenate [B, n, …] and [B, S, …] to [B, n + S, …]: before the text, or after the text of each row."""
        if not self.behind:
            return torch.cat([own, text], 1)
        joined = torch.cat([text, own], 1)
        if mask is None:
            return joined
        n, size = own.shape[1], text.shape[1]
        at, length = torch.arange(size + n, device=text.device), mask.sum(1, keepdim=True)
        source = torch.where(at < length, at, torch.where(at < length + n, size + at - length, at - n))
        return joined[torch.arange(len(text), device=text.device)[:, None], source]

    def _isolating(self, base: nn.Module, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the mask of causal rows, [B, 1, n + S, n + S]: P, and earlier tokens of the same document.

        With P in front, the rule by which transformers reads packed rows would hide P from all documents but the first.
        """
        n = self.taken_positions
        return as_attention_mask(base, F.pad(seen_in_rows(positions), (n, 0, n, 0), value=True).tril(), dtype)


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

    def vectors_for(self, text: Tensor) -> Tensor:
        return self.prompt().to(text.dtype).expand(len(text), -1, -1)

    @property
    def taken_positions(self) -> int:
        return len(self.vectors)


class PromptMethod(Method):
    """Base class of methods that train a prompt of `n_tokens` vectors in front of a frozen model."""

    freezes = True

    def check(self, setting: Setting) -> None:
        super().check(setting)
        check_prompt(self, setting, self.config.n_tokens)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return at_rate(groups, self.config.learning_rate, getattr(self.config, "weight_decay", None))


def seen_in_rows(positions: Tensor) -> Tensor:
    """Return the causal mask of a decoder, [B, 1, S, S] bool: earlier tokens of the same document.

    A document continues as long as positions increase by 1, as transformers reads packed rows.
    """
    document = F.pad((positions[:, 1:] != positions[:, :-1] + 1).cumsum(1), (1, 0))
    return (document[:, :, None] == document[:, None, :]).tril()[:, None]


def as_attention_mask(base: nn.Module, sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of which tokens see which, [B, 1, S, S] bool, in the form that the model's attention reads."""
    if config_of(base)._attn_implementation == "sdpa":
        return sees
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)


def word_embeddings(model: nn.Module) -> Tensor:
    """Return the token embeddings, [vocabulary, E]."""
    get: Any = model.get_input_embeddings
    weight: Tensor = get().weight
    return weight


def at_rate(
    groups: list[dict[str, Any]], learning_rate: float | None, weight_decay: float | None = None
) -> list[dict[str, Any]]:
    """Return the parameter groups with another learning rate and weight decay; None keeps a value."""
    own = {"lr": learning_rate, "weight_decay": weight_decay}
    changed = {key: value for key, value in own.items() if value is not None}
    return [{**group, **changed} for group in groups] if changed else groups


def check_prompt(method: Method, setting: Setting, tokens: int) -> None:
    """Raise ``MethodError`` if a prompt does not fit the setting: its positions, packing, or other methods."""
    refuse_other_additions(method, setting)
    attention = config_of(setting.model)._attn_implementation
    isolate = setting.objective.isolate and kind_of(setting.model) != "encoder-decoder"
    if isolate and setting.objective.name == "masked":
        raise MethodError(
            f"Method '{method.label}' prepends one prompt to a row, through which packed documents would influence "
            "each other. Set `data.isolate_documents: false`."
        )
    if isolate and tokens:
        refuse_without_attention(method, setting, "prepends one prompt for all documents of a row")
    if isolate and attention not in ("sdpa", "eager"):
        instead = ", or set `data.isolate_documents: false`" if setting.objective.name == "causal" else ""
        raise MethodError(
            f"Method '{method.label}' needs `model.attn_implementation: sdpa` or eager for a prompt that all documents "
            f"of a row attend to (got '{attention}'). Change it{instead}."
        )
    check_length(method, setting.objective.longest_input(setting.model), tokens, setting.block_size)


def check_stage_length(method: Method, stage: Stage, tokens: int) -> None:
    """Raise ``MethodError`` if a prompt and a row of the stage exceed the longest input of the model."""
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
