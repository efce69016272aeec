"""Tokenise text, with the special tokens that the model expects; the text of a special token stays plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from everlearn.data.blocks import hash_of
from everlearn.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["encoder", "decoder", "encoder-decoder"]


class Encoder:
    """A tokenizer with the special tokens before and after each document.

    Encoders get its special tokens (``<s> … </s>``, ``[CLS] … [SEP]``). Decoders get the beginning token if the
    tokenizer adds one, and always the end token, so that the model learns where a document ends.

    Attributes:
        prefix: ids before the text.
        suffix: ids after the text.
        end: id of the end of a sequence; None for an encoder without one.
        answer_end: the id that an encoder predicts after an answer, or an empty list. Without it, an answer that is the
            beginning of another one would always be more likely. Other kinds of model have `end` or `suffix` there.
        pad: id that fills rows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kind: Kind) -> None:
        """Determine the special tokens that the tokenizer adds around a text.

        Raises:
            ModelError: a decoder's tokenizer has no end token.
        """
        self.tokenizer = tokenizer
        self.kind = kind
        bare = self(["a"])[0]
        full = tokenizer("a", add_special_tokens=True, return_attention_mask=False)["input_ids"]
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        self.prefix: list[int] = list(full[:start])
        self.suffix: list[int] = list(full[start + len(bare) :])
        self.end: int | None = tokenizer.eos_token_id
        if kind != "encoder":
            if self.end is None:
                raise ModelError(
                    f"The tokenizer '{tokenizer.name_or_path or type(tokenizer).__name__}' has no end-of-sequence "
                    f"token, which a {kind} model needs to learn where a document ends. Set `tokenizer.eos_token`."
                )
            if self.end not in self.suffix:
                self.suffix.append(self.end)
        self.answer_end: list[int] = self.suffix[:1] if kind == "encoder" else []
        pad = tokenizer.pad_token_id
        self.pad: int = pad if pad is not None else (self.end or 0)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens: ``</s>`` inside a text is ordinary characters."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return ids

    @property
    def fingerprint(self) -> str:
        """Hash of the vocabulary, the rules and the special tokens."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            rules = json.dumps(sorted(self.tokenizer.get_vocab().items()))
        else:
            content = json.loads(backend.to_str())
            # Calls with truncation or padding leave their settings there.
            content.pop("truncation", None)
            content.pop("padding", None)
            rules = json.dumps(content, sort_keys=True)
        return hash_of(type(self.tokenizer).__name__, rules, self.kind, self.prefix, self.suffix, self.pad)
