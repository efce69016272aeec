"""Greedy decoding: batches against one by one, the cache against whole passes, transformers' own as a reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from everlearn.errors import ModelError
from everlearn.methods.engine.attachment import attached
from everlearn.methods.prompts.soft_prompt import SoftPrompt
from everlearn.predictors.decoding import Ending, decode
from everlearn.predictors.predictor import Checkpoint, Predictor

WRITERS = [name for name in tiny.ARCHITECTURES if tiny.objective_of(name) != "masked"]
WIDTH, NEW = 32, 20


def lively(architecture: str) -> Any:
    """A random model with weights large enough that it does not say the same to everything."""
    # A random BART with tied words finds the word that it has just read likeliest.
    model = tiny.model(architecture, **({"tie_word_embeddings": False} if architecture == "bart" else {}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def prompts(rows: int = 7) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 17, 9, 30, 1, 12, 25][:rows]
    return [torch.randint(5, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def inputs(rows: list[list[int]], architecture: str, width: int = WIDTH) -> dict[str, Tensor]:
    """Padded as a decoder or an encoder-decoder has it; what pads is a token that would change every answer."""
    left = tiny.objective_of(architecture) == "causal"
    pad = 7
    ids = [[pad] * (width - len(r)) + r if left else r + [pad] * (width - len(r)) for r in rows]
    mask = [[0] * (width - len(r)) + [1] * len(r) if left else [1] * len(r) + [0] * (width - len(r)) for r in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def ask(model: nn.Module, batch: dict[str, Tensor], new: int = NEW, stop: tuple[int, ...] = ()) -> list[list[int]]:
    with torch.no_grad():
        return Checkpoint(model).generate(batch, max_new_tokens=new, stop=stop)


@pytest.mark.parametrize("architecture", WRITERS)
def test_batched_is_one_by_one_and_transformers(architecture: str) -> None:
    model, rows = lively(architecture), prompts()
    batched = ask(model, inputs(rows, architecture))
    assert len(set(map(tuple, batched))) >= len(rows) // 2, "the rows differ, so that a mix-up would show"
    assert batched == ask(model, inputs(rows, architecture)), "deterministic"
    for row, answer in zip(rows, batched, strict=True):
        alone = inputs([row], architecture, width=len(row))
        assert ask(model, alone) == [answer]
        with torch.no_grad():
            ids = model.generate(**alone, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=1)
        start = len(row) if tiny.objective_of(architecture) == "causal" else 1
        assert ids[0, start:].tolist() == answer


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_the_cache_is_the_same_as_whole_passes(architecture: str) -> None:
    model, rows = lively(architecture), prompts()
    cached = ask(model, inputs(rows, architecture))
    for row, answer in zip(rows, cached, strict=True):
        ids = list(row)
        for _ in range(NEW):  # the slow reference: everything again, no padding, no cache
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert ids[len(row) :] == answer


def test_a_row_ends_at_the_first_stop_and_not_before() -> None:
    model, rows = lively("llama"), prompts()
    whole = ask(model, inputs(rows, "llama"))
    stop = (whole[1][4], whole[3][0])
    cut = ask(model, inputs(rows, "llama"), stop=stop)
    for full, kept in zip(whole, cut, strict=True):
        end = next((i for i, token in enumerate(full) if token in stop), len(full))
        assert kept == full[:end]
    assert cut[3] == []
    assert ask(model, inputs(rows, "llama"), new=3) == [row[:3] for row in whole]


def test_no_step_is_taken_after_the_last_row_ended() -> None:
    taken = []

    def steps() -> Any:
        script = torch.tensor([[1, 2], [2, 2], [0, 0]])
        for row in script:
            taken.append(1)
            yield torch.nn.functional.one_hot(row, 3).double()

    assert decode(steps(), Ending(9, [2])) == [[1], []]
    assert len(taken) == 2


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_what_stands_before_a_text_is_put_there_once(architecture: str) -> None:
    model, rows, few = lively(architecture), prompts(), 6
    plain = ask(model, inputs(rows, architecture), new=few)
    width = model.get_input_embeddings().weight.shape[1]
    torch.manual_seed(0)
    SoftPrompt(torch.randn(3, width)).attach(model, "dap_prompt")
    read = ask(model, inputs(rows, architecture), new=few)
    assert read != plain
    vectors = attached(model, "dap_prompt").vectors.detach()
    model = lively(architecture)
    for row, answer in zip(rows, read, strict=True):
        ids = list(row)
        for _ in range(few):
            embedded = torch.cat([vectors, model.get_input_embeddings()(torch.tensor(ids))])[None]
            with torch.no_grad():
                ids.append(int(model(inputs_embeds=embedded, use_cache=False).logits[0, -1].argmax()))
        assert ids[len(row) :] == answer


def test_who_does_not_write_says_so() -> None:
    with pytest.raises(ModelError, match="fills masks and does not write"):
        ask(tiny.model("roberta"), inputs(prompts(), "roberta"))
    with pytest.raises(ModelError, match="Predictor does not generate"):
        Predictor().generate({}, max_new_tokens=1, stop=())


def test_drawn_tokens_are_of_the_likeliest_and_the_same_for_the_same_seed() -> None:
    likely = torch.log_softmax(torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]], dtype=torch.float64), -1)

    def rows(top_k: int, penalty: float = 1.0, seed: int = 0) -> list[list[int]]:
        draws = torch.rand(2, 200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ending = Ending(200, temperature=1, draws=draws, top_k=top_k, repetition_penalty=penalty)
        together = decode(always(likely), ending)
        for row in range(2):  # whatever shares a batch with it
            alone = decode(always(likely[row][None]), ending.of(torch.tensor([row])))
            assert alone == [together[row]]
        return together

    assert rows(1) == [[0] * 200, [3] * 200] == decode(always(likely), Ending(200))
    assert rows(2) == rows(2) != rows(2, seed=1)
    first, second = rows(2)
    assert (set(first), set(second)) == ({0, 1}, {2, 3})
    share = first.count(0) / 200
    assert abs(share - 1 / (1 + math.exp(-1))) < 0.1, "as likely as they are among the two"
    assert rows(1, penalty=50.0)[0][:4] == [0, 1, 2, 3], "what was written is unlikely to come again"
    assert decode(always(likely), Ending(5, [0], temperature=1, draws=torch.zeros(2, 5), top_k=1)) == [[], [3] * 5]


def always(likely: Tensor) -> Any:
    while True:
        yield likely
