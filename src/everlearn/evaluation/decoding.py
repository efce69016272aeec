"""Decoding: at each step the likeliest token, or one that is drawn, until the end or the most that may be written.

A loop of our own and not ``model.generate``: a checkpoint brings a ``generation_config`` along that changes answers
silently (sampling, penalties, forced tokens, a longest length), several models have to agree on each token
(:class:`~everlearn.evaluation.ensemble.Ensemble`), and what a method puts before a text must not be put there again at
every step. The tests have transformers' own greedy decoding as a reference.

Rows of a batch do not see each other, and padding is neither attended to nor counted as a position, so an answer does
not depend on what shares its batch: the numbers differ by rounding alone (about 1e-6 in float32), which could change an
answer only where two tokens are that close to being equally likely.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import ModelError
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import config_of

Continuation = Generator[Tensor, Tensor, None]
"""Yields the log-probabilities of each row's next token, [B, V] float64; is sent the tokens that were chosen, [B]."""
Choose = Callable[[Tensor], Tensor]
"""From log-probabilities, [B, V], to tokens, [B]."""


def greedy(steps: Continuation, *, max_new_tokens: int, stop: Sequence[int]) -> list[list[int]]:
    """The likeliest token at each step, for each row up to the first id in `stop`, which is left out."""
    return written(steps, lambda likely: likely.argmax(-1), max_new_tokens=max_new_tokens, stop=stop)


def drawn(top_k: int, repetition_penalty: float = 1.0) -> Choose:
    """Draws among the k likeliest tokens, by torch's generator, for one batch of rows from their beginning.

    Args:
        top_k: k (arXiv 1805.04833).
        repetition_penalty: log-probabilities of tokens that the row has written are multiplied by it, before the k are
            taken (arXiv 1909.05858, there on logits).
    """
    before: list[Tensor] = []

    def choose(likely: Tensor) -> Tensor:
        if before and repetition_penalty != 1:
            seen = torch.stack(before, 1)
            likely = likely.scatter(1, seen, likely.gather(1, seen) * repetition_penalty)
        most, tokens = likely.topk(min(top_k, likely.shape[-1]))
        chosen = tokens.gather(1, torch.multinomial(most.softmax(-1), 1))[:, 0]
        before.append(chosen)
        return chosen

    return choose


def written(steps: Continuation, choose: Choose, *, max_new_tokens: int, stop: Sequence[int]) -> list[list[int]]:
    """The tokens that are chosen, for each row up to the first id in `stop`, which is left out."""
    answer: list[Tensor] = []
    ends: Tensor | None = None
    likely = next(steps)
    ending = torch.tensor(list(stop), dtype=torch.long, device=likely.device)
    for _ in range(max_new_tokens):
        chosen = choose(likely)
        answer.append(chosen)
        ended = torch.isin(chosen, ending)
        ends = ended if ends is None else ends | ended
        if bool(ends.all()) or len(answer) == max_new_tokens:
            break
        likely = steps.send(chosen)
    steps.close()
    endings = set(stop)
    answers = []
    for row in torch.stack(answer, 1).tolist():
        end = next((at for at, token in enumerate(row) if token in endings), len(row))
        answers.append(row[:end])
    return answers


def continuation(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """What a model finds likely next; `inputs` as in :meth:`Predictor.generate`.

    Raises:
        ModelError: a model that reads masked text does not write.
    """
    kind = kind_of(model)
    if kind == "encoder":
        raise ModelError(
            f"'{type(model).__name__}' fills masks and does not write: an end task of kind text-to-text needs a "
            "decoder or an encoder-decoder. Leave it out, or change `model.path`."
        )
    if kind == "encoder-decoder":
        return _from_encoder(model, inputs)
    lengthened = any(getattr(module, "lengthens_rows", False) for module in model.modules())
    return (_again if lengthened else _on)(model, inputs)


def _on(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """A decoder, with its cache; rows are padded on the left."""
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ids, cache = inputs["input_ids"], None
    while True:
        out: Any = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        ids = (yield _likely(out.logits))[:, None]
        cache, positions = out.past_key_values, positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)


def _again(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """A decoder whose additions belong before the text: each step reads the whole rows again, padded on the right."""
    mask, ids = inputs["attention_mask"], inputs["input_ids"]
    lengths = mask.sum(1)
    order = torch.argsort(mask, dim=1, descending=True, stable=True)  # real tokens first, in their order
    ids = ids.gather(1, order)
    rows = torch.arange(len(ids), device=ids.device)
    while True:
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        out: Any = model(input_ids=ids, position_ids=positions, use_cache=False)
        chosen = yield _likely(out.logits[rows, lengths - 1][:, None])
        ids = torch.cat([ids, ids[:, -1:]], 1)
        ids[rows, lengths] = chosen
        lengths = lengths + 1


def _from_encoder(model: nn.Module, inputs: Mapping[str, Tensor]) -> Continuation:
    """An encoder-decoder: the prompt is encoded once; the decoder goes on with its cache."""
    encoder: Any = model.get_encoder()  # type: ignore[operator]
    encoded, cache = encoder(**inputs), None
    start = config_of(model).decoder_start_token_id
    ids = torch.full((len(inputs["input_ids"]), 1), start, device=inputs["input_ids"].device)
    while True:
        out: Any = model(
            encoder_outputs=encoded,
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
        )
        ids, cache = (yield _likely(out.logits))[:, None], out.past_key_values


def _likely(logits: Tensor) -> Tensor:
    """In float64, so that no two logits become one probability."""
    return torch.log_softmax(logits[:, -1].double(), -1)
