"""Decoding, and samples of held-out text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tiny
from everlearn.config.recipe import parse
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.errors import ModelError, RecipeError
from everlearn.evaluation import Cell
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions
from everlearn.methods.engine.attachment import attached
from everlearn.methods.prompts.soft_prompt import SoftPrompt
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint, Ensemble, TextRouter
from everlearn.predictors.decoding import Ending, decode
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.held_out import HeldOut
from everlearn.tasks.samples import _BLANKS, _WRITTEN, TOP, Samples, _continued, _with_blanks

pytestmark = pytest.mark.usefixtures("long_samples")


# -- Greedy decoding: batches against one by one, the cache against whole passes, transformers' own as a reference -----


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


# -- What is kept of what a model says: which words are blank, what is guessed and written, against slow readings ------


KINDS = {"roberta": "encoder", "gpt2": "decoder", "t5": "encoder-decoder"}


def asked(architecture, folder, objective=None, name="first", count=2, seed=0):
    """Held-out blocks in a file, a model, its predictor and the conditions."""
    kind, model = KINDS[architecture], tiny.model(architecture, seed=seed)
    with torch.no_grad():  # a random model finds everything equally likely
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    made = make_objective(objective, model, tiny.tokenizer())
    target = "the answer" if made.name == "text-to-text" else None
    found = tiny.pack([Document(text, target) for text in tiny.texts(40, 4, words=50)], 64, kind=kind)
    path = folder / f"{name}.safetensors"
    HeldOut(PackedBlocks.from_blocks(list(found), seed=0, name=name), 4.0).save(path)
    how = Conditions("base", tiny.tokenizer(), made.reseeded("x"), 4)
    return Samples(path, name, count), Checkpoint(model, made), how


def decoded(ids):
    return tiny.tokenizer().decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_blanks_are_whole_words_and_the_pieces_are_the_passage(tmp_path):
    task, predictor, how = asked("roberta", tmp_path)
    cell = task.measure(predictor, how)
    assert cell.facts["form"] == "blanks"
    assert len(cell.facts["shown"]) == 2
    blocks = task.held_out.blocks.take(range(len(task.held_out.blocks)))
    for shown in cell.facts["shown"]:
        assert len(shown) % 2 == 1
        assert 1 <= len(shown) // 2 <= _BLANKS
        assert any("".join(shown) in decoded(block["input_ids"]) for block in blocks)
        assert all(truth in tiny.WORDS for truth in shown[1::2])
    assert sum(len(shown) // 2 for shown in cell.facts["shown"]) == len(cell) == len(cell.texts)
    assert cell["text"].tolist() == sorted(cell["text"].tolist())


def test_guesses_are_the_likeliest_words_of_the_model_where_the_blanks_are_masked(tmp_path):
    task, predictor, how = asked("roberta", tmp_path, count=1)
    cell = task.measure(predictor, how)
    blocks = task.held_out.blocks
    for block in blocks.take(range(len(blocks))):
        question = _with_blanks(block, how)
        if list(question.shown) == cell.facts["shown"][0]:
            break
    ids = torch.from_numpy(question.block["input_ids"].astype(np.int64))[None]
    truths = ids[0, list(question.at)]
    ids[0, list(question.at)] = tiny.tokenizer().mask_token_id
    with torch.no_grad():
        likely = torch.softmax(predictor.model(input_ids=ids).logits[0, list(question.at)].double(), -1)
    for i, truth in enumerate(truths.tolist()):
        order = likely[i].argsort(descending=True)[:TOP]
        assert cell["likely"][:, i] == pytest.approx(likely[i, order].numpy(), rel=1e-5)
        assert cell["truth"][i] == pytest.approx(float(likely[i, truth]), rel=1e-5)
        assert cell.texts[i].split("\n") == [" ".join(decoded([token]).split()) for token in order.tolist()]


@pytest.mark.parametrize("objective", ["causal", "text-to-text"])
def test_a_decoder_goes_on_as_greedy_decoding_does(objective, tmp_path):
    task, predictor, how = asked("gpt2", tmp_path, objective)
    cell = task.measure(predictor, how)
    blocks = task.held_out.blocks.take(range(len(task.held_out.blocks)))
    for shown, text in zip(cell.facts["shown"], cell.texts, strict=True):
        prompt, truth, _ = shown
        (ids,) = {
            tuple(block["input_ids"][start:end])
            for block in blocks
            for start in range(len(block["input_ids"]))
            for end in range(start + 1, len(block["input_ids"]) + 1)
            if (start == 0 or block["segments"][start] != block["segments"][start - 1])
            and block["segments"][start] == block["segments"][end - 1]
            and decoded(block["input_ids"][start:end]) == prompt
            and decoded(block["input_ids"][start:]).startswith(prompt + truth)
        }
        row, written = list(ids), []
        for _ in range(_WRITTEN):
            with torch.no_grad():
                token = int(predictor.model(input_ids=torch.tensor([row])).logits[0, -1].argmax())
            if token == tiny.tokenizer().eos_token_id:
                break
            row.append(token)
            written.append(token)
        assert text == " ".join(decoded(row)[len(decoded(list(ids))) :].split(" ")).strip()
    assert truth.strip() == "the answer" if objective == "text-to-text" else len(truth) > 10


def test_an_encoder_decoder_answers_a_prompt(tmp_path):
    task, predictor, how = asked("t5", tmp_path, count=1)
    cell = task.measure(predictor, how)
    (shown,) = cell.facts["shown"]
    assert (cell.facts["form"], shown[1]) == ("answer", "the answer")
    ids = tiny.tokenizer()(shown[0], return_tensors="pt").input_ids
    most = _WRITTEN + 1
    with torch.no_grad():
        row = predictor.model.generate(ids, max_new_tokens=most, do_sample=False, eos_token_id=2, pad_token_id=1)[0]
    assert cell.texts[0] == decoded(row[1:]).strip()


def test_which_texts_are_asked_follows_from_the_name_alone(tmp_path):
    task, predictor, how = asked("roberta", tmp_path)
    other = Checkpoint(tiny.model("roberta", seed=5), predictor.objective)
    torch.manual_seed(99)
    first, second = task.measure(predictor, how), task.measure(other, how)
    assert first.same_examples(second)
    assert first.texts != second.texts
    again, *_ = asked("roberta", tmp_path, name="another")
    assert again.measure(predictor, how).facts["shown"] != first.facts["shown"]


def test_a_file_gives_back_what_was_said_and_no_metric_reads_it(tmp_path):
    task, predictor, how = asked("roberta", tmp_path)
    cell = task.measure(predictor, how)
    cell.save(tmp_path / "cell.safetensors")
    found = Cell.load(tmp_path / "cell.safetensors")
    assert (found.texts, dict(found.facts), found.kind) == (cell.texts, dict(cell.facts), "samples")
    assert found["likely"].shape == (TOP, len(cell))
    assert metrics_of([cell]) == []


def test_ensembles_and_chosen_members_fill_blanks(tmp_path):
    task, one, how = asked("roberta", tmp_path, count=1)
    other = Checkpoint(tiny.model("roberta", seed=5), one.objective)
    block = _with_blanks(task.held_out.blocks.take([0])[0], how)
    batch = how.objective.collate([block.block] * 2, [0, 1])
    with torch.no_grad():
        alone = [each.likely(batch) for each in (one, other)]
        mixed = Ensemble((one, other)).likely(batch)
        assert torch.allclose(mixed.exp(), (alone[0].exp() + alone[1].exp()) / 2)
        sharp = Ensemble((one, other), mix="confident").likely(batch)
        assert torch.equal(sharp, torch.where((alone[0].amax(-1) >= alone[1].amax(-1))[..., None], *alone))
        chooser = TextRouter((one, other), one.objective)
        picked = chooser.chosen(batch)
        assert torch.equal(chooser.likely(batch), torch.stack([alone[n][row] for row, n in enumerate(picked.tolist())]))
        losses = one.label_losses(batch)
        gathered = alone[0].gather(2, batch["labels"].clamp(min=0)[..., None])[..., 0]
        assert torch.allclose(losses.double(), torch.where(batch["labels"] == -100, 0, -gathered), atol=1e-5)


def test_a_prompt_of_nothing_is_no_question(tmp_path):
    _, _, how = asked("gpt2", tmp_path, "causal")
    block = {"input_ids": np.arange(5, 9, dtype=np.int32), "segments": np.zeros(4, np.int32)}
    assert _continued(block, 2, 2, 4, how).at == ()
    assert _continued(block, 0, 2, 4, how).at == (2,)


def test_fewer_than_no_texts_are_refused():
    raw = {"model": "m", "domains": [{"name": "a", "path": "a.txt"}], "evaluation": {"samples": -1}}
    with pytest.raises(RecipeError, match=r"`evaluation.samples`.*\(got -1\)"):
        parse(raw)
    assert parse(raw | {"evaluation": {"samples": 0}}).evaluation.samples == 0
