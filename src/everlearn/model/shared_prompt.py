"""Process a prompt once for several texts that follow it, such as the options of a question.

A decoder gets the prompt and all texts as one row, in which each text attends to the prompt and itself, and its
positions follow the prompt's (:func:`after_one_prompt`). In an encoder-decoder the encoder reads each prompt once, and
the decoder has a row for each text (:func:`prompts_of`). The results equal those of separate rows, up to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.model.vocabulary_head import config_of

PER_TOKEN = ("torch.", "transformers.", "peft.tuners.lora.", "bitsandbytes.")
"""Packages whose modules process each token separately, except for attention and convolutions."""


def can_share_prompts(model: nn.Module, length: int) -> bool:
    """Return whether a pass may hold several texts after one prompt.

    Modules that a method adds must declare that they process each token separately (`shares_prompts`). Attention must
    accept any mask and any position ids, over all of the `length` tokens of prompt and text. No other layer may mix
    tokens; recurrent ones are recognised by their convolution.
    """
    config = config_of(model)
    sharing = [module for module in model.modules() if getattr(module, "shares_prompts", False)]
    shares = {id(part) for module in sharing for part in module.modules()}
    length += sum(getattr(module, "taken_positions", 0) for module in sharing)
    untouched = all(
        (id(m) in shares or type(m).__module__.startswith(PER_TOKEN))
        and all(id(getattr(h, "__self__", None)) in shares for h in _hooks(m))
        for m in model.modules()
    )
    only_attention = not any(isinstance(m, nn.Conv1d) for m in model.modules())
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return (
        untouched
        and only_attention
        and getattr(config, "_attn_implementation", None) == "sdpa"
        and not getattr(config, "alibi", False)
        and all(not window or window >= length for window in windows)
    )


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def after_one_prompt(prompt: int, texts: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
    """Return the attention pattern of a row with a prompt and several texts after it.

    Args:
        prompt: tokens of the prompt.
        texts: tokens of each text.
        width: tokens of the row; the rest of it is treated as one more text, which does not see the prompt.

    Returns:
        The mask [S, S], true where the token of the row sees the token of the column; position ids [S].
    """
    text = torch.full((width,), -1)
    positions = torch.zeros(width, dtype=torch.long)
    text[:prompt], positions[:prompt] = 0, torch.arange(prompt)
    start = prompt
    for number, length in enumerate(texts, 1):
        text[start : start + length] = number
        positions[start : start + length] = prompt + torch.arange(length)
        start += length
    sees = (text[:, None] == text[None, :]) | ((text[None, :] == 0) & (text[:, None] > 0))
    return sees.tril(), positions


@contextlib.contextmanager
def prompts_of(model: nn.Module, row: Tensor) -> Iterator[None]:
    """Give the decoder of an encoder-decoder several rows for a prompt inside the block.

    Args:
        model: the encoder-decoder.
        row: for each row of the decoder, [B], the row of its prompt in the encoder.
    """

    def repeat(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        for name in ("encoder_hidden_states", "encoder_attention_mask"):
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name][row]
        return args, kwargs

    decoder: Any = model.get_decoder()  # type: ignore[operator]
    handle = decoder.register_forward_pre_hook(repeat, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
