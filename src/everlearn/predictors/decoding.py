"""Decode greedily or by sampling, until the end of the answer or the maximum number of tokens.

This replaces ``model.generate`` for three reasons: a checkpoint may have a ``generation_config`` that silently changes
answers (sampling, penalties, forced tokens, a maximum length); the models of an ensemble must choose each token
together (:class:`~everlearn.predictors.ensemble.Ensemble`); and a prompt that a method prepends must not be prepended
again at every step. The tests compare it with transformers' greedy decoding.

An answer does not depend on the other rows of its batch: padding is neither attended to nor counted as a position, and
numbers differ only by rounding (about 1e-6 in float32), which matters only if two tokens are almost equally likely.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from everlearn.errors import ModelError
from everlearn.model.anatomy import kind_of
from everlearn.model.finding import cache_argument, cache_in, takes
from everlearn.model.objectives import decoder_start
from everlearn.model.vocabulary_head import running_sums

Continuation = Generator[Tensor, Tensor, None]
"""Yields the log-probabilities of each row's next token, [B, V] float64, and receives the chosen tokens, [B]."""


@dataclass(frozen=True)
class Ending:
    """Where an answer ends, and how its tokens are chosen.

    Attributes:
        max_new_tokens: maximum number of tokens for each row.
        stop: ids that end an answer, which are left out.
        is_complete: returns whether the generated ids of a row end the answer, for ends longer than one token.
        temperature: divisor of the log-probabilities when tokens are sampled; at 0 the most likely token is chosen.
        draws: uniform numbers in [0, 1) for sampling, [B, max_new_tokens] float64, so that the samples of a row do not
            depend on the other rows of a batch.
        top_k: number of most likely tokens to sample from (arXiv 1805.04833); all by default.
        repetition_penalty: factor of the log-probabilities of tokens that the row already contains, applied first
            (arXiv 1909.05858, there on logits).
    """

    max_new_tokens: int
    stop: Sequence[int] = ()
    is_complete: Callable[[Sequence[int]], bool] | None = None
    temperature: float = 0.0
    draws: Tensor | None = None
    top_k: int | None = None
    repetition_penalty: float = 1.0

    def of(self, rows: Tensor) -> Ending:
        """Return the settings for some of the rows."""
        return self if self.draws is None else replace(self, draws=self.draws[rows.to(self.draws.device)])

    def choose(self, likely: Tensor, before: Sequence[Tensor]) -> Tensor:
        """Choose the next token of each row, [B].

        Args:
            likely: log-probabilities [B, V].
            before: the tokens that were chosen before it, [B] each.
        """
        if before and self.repetition_penalty != 1:
            seen = torch.stack(list(before), 1)
            likely = likely.scatter(1, seen, likely.gather(1, seen) * self.repetition_penalty)
        if self.draws is None or self.temperature == 0:
            return likely.argmax(-1)
        draws = self.draws[:, len(before), None]
        if self.top_k is None:
            return _at(draws, torch.softmax(likely / self.temperature, -1))[:, 0]
        most, tokens = likely.topk(min(self.top_k, likely.shape[-1]))
        return tokens.gather(1, _at(draws, torch.softmax(most / self.temperature, -1)))[:, 0]


def _at(numbers: Tensor, probabilities: Tensor) -> Tensor:
    """Return the indices, [B, 1], at which uniform numbers in [0, 1), [B, 1], fall in distributions [B, K]."""
    upto = running_sums(probabilities)
    within = numbers.to(upto) * upto[:, -1:]  # a sum of many is not quite 1
    return torch.searchsorted(upto, within, right=True).clamp(max=upto.shape[1] - 1)


def decode(steps: Continuation, ending: Ending) -> list[list[int]]:
    """Choose a token at each step for each row, until every row has ended."""
    written: list[list[int]] = []
    before: list[Tensor] = []
    open_rows: set[int] = set()
    ids = set(ending.stop)
    likely = next(steps)
    for step in range(ending.max_new_tokens):
        chosen = ending.choose(likely, before)
        before.append(chosen)
        if not step:
            written, open_rows = [[] for _ in range(len(chosen))], set(range(len(chosen)))
        for row, token in enumerate(chosen.tolist()):
            if row in open_rows:
                if token not in ids:
                    written[row].append(token)
                if token in ids or (ending.is_complete is not None and ending.is_complete(written[row])):
                    open_rows.remove(row)
        if not open_rows or step + 1 == ending.max_new_tokens:
            break
        likely = steps.send(chosen)
    steps.close()
    return written


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Return the inputs from which a decoder continues rows of token ids."""
    width = max(map(len, rows))
    ids = [[pad] * (width - len(row)) + [*row] for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids, device=device), "attention_mask": torch.tensor(mask, device=device)}


def continuation(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """Yield log-probabilities of the next token, step by step; `inputs` as in :meth:`Predictor.generate`.

    Raises:
        ModelError: the model is an encoder, which cannot generate.
    """
    kind = kind_of(model)
    if kind == "encoder":
        raise ModelError(
            f"'{type(model).__name__}' fills masks and does not write: an end task of kind text-to-text needs a "
            "decoder or an encoder-decoder. Leave it out, or change `model.path`."
        )
    # Prompts and prefixes of PEFT are put before the text in every pass, so again where a pass continues from a cache.
    prompted = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
    cache = None if prompted else cache_argument(model)
    if kind == "encoder-decoder":
        return _from_encoder_again(model, inputs) if cache is None else _from_encoder(model, inputs, cache)
    lengthened = any(getattr(module, "lengthens_rows", False) for module in model.modules())
    return _again(model, inputs) if cache is None or lengthened else _on(model, inputs, cache)


def _on(model: nn.Module, inputs: Mapping[str, Tensor], argument: str) -> Continuation:
    """Continue with a decoder and its cache, by the name of its argument; rows are padded on the left."""
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ids, cache = inputs["input_ids"], None
    positioned = takes(model, "position_ids")
    while True:
        out: Any = model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=1,
            **{argument: cache},
            **({"position_ids": positions} if positioned else {}),
        )
        cache = cache_in(out)
        if cache is None:  # its modules keep the cache (RecurrentGemma)
            yield from _again(model, inputs)
        ids = (yield _likely(out.logits))[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)


def _again(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """Continue with a decoder without a cache, in complete rows that are padded on the right.

    It is for methods that prepend to a text, and for models with another kind of cache (Mamba).
    """
    mask, ids = inputs["attention_mask"], inputs["input_ids"]
    lengths = mask.sum(1)
    order = torch.argsort(mask, dim=1, descending=True, stable=True)  # real tokens first, in their order
    ids = ids.gather(1, order)
    rows = torch.arange(len(ids), device=ids.device)
    positioned = takes(model, "position_ids")
    while True:
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        out: Any = model(input_ids=ids, use_cache=False, **({"position_ids": positions} if positioned else {}))
        before = out.logits.shape[1] - ids.shape[1]  # positions of a PEFT prompt
        chosen = yield _likely(out.logits[rows, before + lengths - 1][:, None])
        ids = torch.cat([ids, ids[:, -1:]], 1)
        ids[rows, lengths] = chosen
        lengths = lengths + 1


def _from_encoder(model: nn.Module, inputs: Mapping[str, Tensor], argument: str) -> Continuation:
    """Continue with an encoder-decoder: the prompt is encoded once; the decoder continues with its cache."""
    encoder: Any = model.get_encoder()  # type: ignore[operator]
    encoded, cache = encoder(**inputs), None
    start = decoder_start(model)
    ids = torch.full((len(inputs["input_ids"]), 1), start, device=inputs["input_ids"].device)
    while True:
        out: Any = model(
            encoder_outputs=encoded,
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=ids,
            use_cache=True,
            **{argument: cache},
        )
        ids, cache = (yield _likely(out.logits))[:, None], cache_in(out)


def _from_encoder_again(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """Continue with an encoder-decoder without a cache: prompt and answer are read again in each step."""
    ids = torch.full((len(inputs["input_ids"]), 1), decoder_start(model), device=inputs["input_ids"].device)
    while True:
        out: Any = model(**inputs, decoder_input_ids=ids, use_cache=False)
        ids = torch.cat([ids, (yield _likely(out.logits[:, -1:]))[:, None]], 1)


def _likely(logits: Tensor) -> Tensor:
    """Return log-probabilities in float64, so that different logits do not become equal by rounding."""
    return torch.log_softmax(logits[:, -1].double(), -1)
