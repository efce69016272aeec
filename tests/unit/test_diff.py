"""What a model forgot: losses of tokens against plain transformers, paired intervals, verdicts, the page."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import everlearn
import tiny
from everlearn.config.recipe import parse
from everlearn.data.corpus import Document
from everlearn.data.tokenize import Encoder
from everlearn.diagnostics.diff.changes import pieces
from everlearn.diagnostics.diff.comparing import Diff
from everlearn.diagnostics.diff.passages import TextPassage, choose, few, rows_of
from everlearn.diagnostics.diff.result import judge
from everlearn.diagnostics.diff.scoring import TokenLosses, score
from everlearn.diagnostics.diff.sources import of_recipe
from everlearn.diagnostics.diff.tasks import read_tasks
from everlearn.diagnostics.diff.texts import compare
from everlearn.errors import DataError, ModelError, RecipeError
from everlearn.evaluation import Estimate
from everlearn.model.objectives import make_objective

SIZE = 32


def save(model, folder, tokenizer=None):
    model.save_pretrained(folder)
    (tokenizer or tiny.tokenizer()).save_pretrained(folder)
    return folder


def noisy(model, size=0.05):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def fitted(model, texts, steps=60):
    """Fine-tuned by plain transformers on documents, one at a time."""
    tokenizer, optimizer = tiny.tokenizer(), torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        ids = torch.tensor([[0, *tokenizer(texts[step % len(texts)], add_special_tokens=False)["input_ids"]]])[:, :64]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two causal models and a text."""
    folder = tmp_path_factory.mktemp("diff")
    save(tiny.model("gpt2"), folder / "old")
    save(noisy(tiny.model("gpt2")), folder / "new")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in tiny.texts(80))
    (folder / "words.jsonl").write_text(rows, encoding="utf-8")
    return folder


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_every_token_has_the_loss_that_plain_transformers_gives_it(architecture):
    """Also tokens of a passage that is longer than a row: behind the last token of the row before."""
    model, tokenizer = tiny.model(architecture), tiny.tokenizer()
    encoder = Encoder(tokenizer, "decoder")
    texts = [*tiny.texts(4, words=10), " ".join(tiny.texts(6))]
    ids = encoder(texts)
    rows = rows_of(ids, encoder, SIZE)
    objective = make_objective(None, model, tokenizer)
    found = score(model, objective, rows, ids, name="m", batch_size=3, device=torch.device("cpu"))
    model = model.double()
    starts = {(n, p): None for n, p in zip(rows.passage.ravel(), rows.place.ravel(), strict=True) if n >= 0}
    assert len(starts) == sum(map(len, ids)), "each token once"
    for row, (owner, places) in enumerate(zip(rows.passage, rows.place, strict=True)):
        segments, tokens = rows.blocks[row]["segments"], rows.blocks[row]["input_ids"]
        for segment in np.unique(segments):
            here = np.flatnonzero(segments == segment)
            with torch.no_grad():
                logits = model(input_ids=torch.tensor(tokens[None, here].astype(np.int64))).logits[0]
            for at, position in enumerate(here):
                if owner[position] < 0:
                    continue
                log_p = torch.log_softmax(logits[at - 1], -1)
                nats = found.nats[owner[position]][places[position]]
                assert nats == pytest.approx(-float(log_p[tokens[position]]), rel=1e-4)
                assert found.guess[owner[position]][places[position]] == int(log_p.argmax())
    # A passage that fits into a row: behind the beginning token, all of it, as anybody would compute it.
    with torch.no_grad():
        own = torch.tensor([[0, *ids[0]]])
        mean = model(input_ids=own, labels=own).loss
    assert found.nats[0].sum() / len(ids[0]) == pytest.approx(float(mean), rel=1e-5)
    texts_bits = found.sums()[0].sum() / math.log(2) / sum(len(t.encode()) for t in texts)
    losses = TokenLosses(found.ids, found.nats, found.guess)
    passages = [TextPassage(number, text) for number, text in enumerate(texts)]
    assert compare("t", passages, losses, losses, tokenizer).before.value == pytest.approx(texts_bits)


def test_a_masked_model_is_scored_on_its_masked_tokens_and_the_same_ones_each_time():
    model, tokenizer = tiny.model("roberta"), tiny.tokenizer()
    encoder = Encoder(tokenizer, "encoder")
    ids = encoder(tiny.texts(20))
    rows = rows_of(ids, encoder, SIZE)
    objective = make_objective(None, model, tokenizer)
    how = {"name": "m", "device": torch.device("cpu")}
    one = score(model, objective, rows, ids, batch_size=2, **how)
    other = score(noisy(tiny.model("roberta")), objective, rows, ids, batch_size=5, **how)
    scored = [~np.isnan(own) for own in one.nats]
    assert all(np.array_equal(own, ~np.isnan(nats)) for own, nats in zip(scored, other.nats, strict=True))
    assert sum(own.sum() for own in scored) == len(rows.blocks) * round(0.15 * SIZE)
    batch = objective.collate(rows.blocks[:1], [0])
    with torch.no_grad():
        logits = model.double()(input_ids=batch["input_ids"]).logits[0]
    log_p = torch.log_softmax(logits[batch["positions"][0]], -1)
    wanted = -log_p.gather(1, batch["labels"][0][:, None])[:, 0]
    places = [(rows.passage[0, p], rows.place[0, p]) for p in batch["positions"][0].tolist()]
    assert [one.nats[n][p] for n, p in places] == pytest.approx(wanted.tolist(), rel=1e-4)


def test_passages_are_cut_at_ends_and_drawn_in_any_order_of_the_documents():
    documents = [Document(text) for text in tiny.texts(30)] + [Document("One sentence. " * 40)]
    passages = choose(documents, 100, 10**6)
    for number, document in enumerate(documents):
        own = [passage for passage in passages if passage.document == number]
        assert sum(len(passage.text) for passage in own) == len(document.text)
        assert all(len(passage.text) <= 100 and passage.text in document.text for passage in own)
    drawn = [passage.text for passage in choose(documents, 100, 500)]
    assert [passage.text for passage in choose(documents[::-1], 100, 500)] == drawn
    assert 500 <= sum(map(len, drawn)) <= 600
    assert drawn == [passage.text for passage in passages][: len(drawn)], "of more there are those of fewer"
    ids = [[0] * 10] * len(passages)
    assert sorted(few(passages, ids, 35), key=passages.index) == passages[:4]
    assert len(few(passages, ids, 30)) == 3
    assert len(few(passages, ids, 10**6)) == len(passages)


def test_a_paired_interval_is_narrower_than_the_difference_of_two(place):
    found = everlearn.diff(place / "old", place / "new", {"words": place / "words.jsonl"}, block_size=SIZE, blocks=24)
    text = found.texts[0]
    unpaired = text.after.minus(text.before)
    width = text.difference.high - text.difference.low
    assert 0 < width < 0.5 * (unpaired.high - unpaired.low)
    assert text.difference.value == pytest.approx(text.after.value - text.before.value)
    assert text.unit == "documents"
    assert text.documents >= 10


def test_the_same_model_twice_differs_by_nothing_at_all(place):
    found = everlearn.diff(place / "old", place / "old", [place / "words.jsonl"], block_size=SIZE, blocks=8)
    text = found.texts[0]
    assert (text.difference.value, text.difference.low, text.difference.high) == (0, 0, 0)
    assert found.verdicts == {"words": "no difference"}
    assert "no difference can be shown" in found.verdict
    assert (text.lost.passages, text.gained.tokens, text.gained.words) == ([], [], [])
    assert all(part.change == 0 for part in found.layers)
    assert (found.before, found.after) != ("old", "old"), "they are told apart"


def test_of_a_data_set_with_splits_a_held_out_one_is_compared_and_named(place, tmp_path):
    words, options = place / "words.jsonl", {"block_size": SIZE, "blocks": 8}
    (tmp_path / "test.jsonl").write_text(words.read_text())
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in tiny.texts(80, 7)))
    found, alone = (
        everlearn.diff(place / "old", place / "new", {"words": path}, **options) for path in (tmp_path, words)
    )
    assert found.texts[0].difference == alone.texts[0].difference
    assert "The text of 'words' is its split 'test'." in found.notes


def test_what_a_model_was_taught_is_learnt_and_what_it_knew_is_forgotten(tmp_path):
    """Two texts of different words: a model that knew the first is fine-tuned on the second."""
    first = [text.replace("the", "graphs") for text in tiny.texts(40)]
    second = [" ".join(reversed(text.split())).upper() for text in tiny.texts(40, seed=5)]
    model = fitted(tiny.model("gpt2"), first)
    save(model, tmp_path / "knew")
    save(fitted(model, second), tmp_path / "taught")
    for name, texts in (("first", first), ("second", second)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
    paths = [tmp_path / "first.txt", tmp_path / "second.txt"]
    found = everlearn.diff(tmp_path / "knew", tmp_path / "taught", paths, block_size=SIZE, blocks=24)
    assert found.verdicts == {"first": "forgot", "second": "learnt"}
    assert found.verdict.startswith("taught forgot some of first (+")
    assert "got better at second (−" in found.verdict
    lost = found.texts[0].lost
    assert all(token.after > token.before for token in lost.tokens)
    assert [word.after - word.before > 0 for word in lost.words] == [True] * len(lost.words)
    assert lost.passages[0].after > lost.passages[0].before
    assert found.texts[1].gained.words


def other_tokenizer():
    """Bytes and few merges: other tokens of the same text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(tiny.texts(50, seed=9), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


def test_models_of_two_tokenizers_are_compared_by_their_bytes(place, tmp_path):
    other = other_tokenizer()
    save(tiny.model("gpt2", vocab_size=300, bos_token_id=0, eos_token_id=0), tmp_path / "bytes", other)
    how = {"block_size": 64, "blocks": 4}
    found = everlearn.diff(place / "old", tmp_path / "bytes", [place / "words.jsonl"], **how)
    text = found.texts[0]
    assert not text.by_token
    assert not text.lost.tokens + text.gained.words
    assert any("tokenizers differ" in note for note in found.notes)
    # Each has its own bits over the same bytes.
    alone = everlearn.diff(tmp_path / "bytes", tmp_path / "bytes", [place / "words.jsonl"], **how).texts[0]
    assert alone.before.value == pytest.approx(text.after.value, rel=0.05)
    assert text.difference.value == pytest.approx(text.after.value - text.before.value)


def test_masked_models_of_two_tokenizers_are_refused(place, tmp_path):
    core = other_tokenizer()
    core.add_special_tokens({"mask_token": "<mask>", "pad_token": "<pad>"})
    save(tiny.model("roberta"), tmp_path / "one")
    save(tiny.model("roberta"), tmp_path / "other", core)
    with pytest.raises(ModelError, match="no masks are the same"):
        everlearn.diff(tmp_path / "one", tmp_path / "other", [place / "words.jsonl"], block_size=SIZE)


def test_verdicts_keep_to_interval_and_tolerance():
    assert judge(Estimate(0.05, 0.01, 0.09), 0.02) == "forgot"
    assert judge(Estimate(0.01, 0.005, 0.019), 0.02) == "lost within tolerance"
    assert judge(Estimate(0.01, 0.005, 0.09), 0.02) == "forgot", "it may be more than is tolerated"
    assert judge(Estimate(-0.05, -0.09, -0.01)) == "learnt"
    assert judge(Estimate(0.05, -0.01, 0.09)) == "no difference"
    assert judge(Estimate(0.05)) == "unknown"


def test_letters_of_several_tokens_are_shown_once():
    tokenizer = tiny.tokenizer()
    text = "the naïve 🙂 model"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(pieces(tokenizer, ids)) == text
    assert "\ufffd" not in "".join(pieces(tokenizer, ids))


def test_the_page_escapes_the_users_text_and_names_no_path(place, tmp_path):
    nasty = [f"<script>alert({n})</script> & <b>{text}</b>" for n, text in enumerate(tiny.texts(40))]
    (tmp_path / "nasty.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in nasty), encoding="utf-8"
    )
    texts = {"<i>nasty</i>": tmp_path / "nasty.jsonl", "words": place / "words.jsonl"}
    found = everlearn.diff(place / "old", place / "new", texts, block_size=SIZE, blocks=8)
    page = found.save(tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("<script") == 1, "the page's own"
    assert "<i>nasty" not in page
    assert "&lt;i&gt;nasty" in page
    assert "<b>the" not in page
    assert str(tmp_path) not in page
    assert str(place) not in page
    assert "src=" not in page
    assert "href=" not in page
    for part in ("What lost most", "What gained most", "Which layers moved", found.verdict.split(" (")[0]):
        assert part.replace("<", "&lt;").replace(">", "&gt;") in page


def test_the_json_keeps_its_keys(place):
    found = everlearn.diff(place / "old", place / "new", [place / "words.jsonl"], block_size=SIZE, blocks=8)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(data) == {
        *("format", "everlearn", "before", "after", "kind", "block_size", "tolerated", "verdict"),
        *("texts", "tasks", "layers", "parts", "notes"),
    }
    assert data["format"] == 1
    text = data["texts"][0]
    assert set(text) == {
        *("name", "verdict", "documents", "passages", "tokens", "bytes", "unit", "before", "after", "difference"),
        *("by_token", "lost", "gained"),
    }
    assert set(text["difference"]) == {"value", "low", "high"}
    assert set(text["lost"]) == {"passages", "tokens", "words"}
    assert set(text["lost"]["words"][0]) == {"token", "count", "before", "after", "instead"}
    assert set(text["lost"]["tokens"][0]) == {
        *("document", "left", "token", "right", "before", "after", "guess_before", "guess_after"),
    }
    assert set(text["lost"]["passages"][0]) == {"document", "bytes", "before", "after", "pieces"}
    assert [layer["layer"] for layer in data["layers"]][-1] == "all"


@pytest.fixture
def choices(tmp_path):
    rows = [
        {"question": f"{text} what", "options": ["graphs", "nodes", "edges"], "right": n % 3}
        for n, text in enumerate(tiny.texts(30, words=8))
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = tmp_path / "task.yaml"
    path.write_text(
        f"name: pick\nkind: choice\ntest: {tmp_path / 'test.jsonl'}\nprompt: '{{question}}'\n"
        "choices_column: options\nanswer_column: right\n",
        encoding="utf-8",
    )
    return path


def test_end_tasks_are_compared_in_pairs_with_the_examples_that_changed(place, choices, tmp_path):
    found = everlearn.diff(place / "old", place / "new", tasks=[choices])
    task = found.tasks[0]
    assert (task.examples, task.higher_is_better) == (30, True)
    assert task.difference.value == pytest.approx((task.better - task.worse) / 30)
    assert task.worse + task.better > 0
    assert all(flip.before > flip.after and flip.said_before != flip.said_after for flip in task.lost)
    assert found.verdicts["pick"] in ("forgot", "learnt", "no difference")
    page = found.save(tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "pick" in page
    same = everlearn.diff(place / "old", place / "old", tasks=[choices]).tasks[0]
    assert (same.difference.low, same.difference.high, same.worse, same.better) == (0, 0, 0, 0)


def test_an_adapter_without_a_tokenizer_is_read_on_its_base(place, tmp_path):
    save(tiny.model("llama"), tmp_path / "base")
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["down_proj"], init_lora_weights=False)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), config)
    adapted.save_pretrained(tmp_path / "adapter")
    save(adapted.merge_and_unload(safe_merge=True), tmp_path / "merged")
    how = {"texts": [place / "words.jsonl"], "block_size": SIZE, "blocks": 4}
    moved = everlearn.diff(tmp_path / "base", tmp_path / "adapter", **how)
    assert moved.texts[0].difference.value != 0
    assert {part.part for part in moved.layers if part.change} == {"feed-forward"}
    assert everlearn.diff(tmp_path / "adapter", tmp_path / "merged", **how).texts[0].difference.value == 0


def test_what_cannot_be_compared_is_refused_in_a_sentence(place, tmp_path):
    words = [place / "words.jsonl"]
    save(tiny.model("roberta"), tmp_path / "masked")
    save(tiny.model("t5"), tmp_path / "t5")
    (tmp_path / "short.txt").write_text("the model", encoding="utf-8")
    with pytest.raises(ModelError, match=r"is a causal model and AFTER .* a masked one"):
        everlearn.diff(place / "old", tmp_path / "masked", words)
    with pytest.raises(ModelError, match="encoder-decoder"):
        everlearn.diff(tmp_path / "t5", tmp_path / "t5", words)
    with pytest.raises(RecipeError, match=r"BEFORE is '.*nowhere', which is neither a folder"):
        everlearn.diff(tmp_path / "nowhere", place / "new", words)
    with pytest.raises(RecipeError, match="nothing to compare on"):
        everlearn.diff(place / "old", place / "new")
    with pytest.raises(DataError, match="fewer than a row of 128"):
        everlearn.diff(place / "old", place / "new", [tmp_path / "short.txt"])
    with pytest.raises(RecipeError, match="reads 128 tokens at most"):
        everlearn.diff(place / "old", place / "new", words, block_size=1000)
    with pytest.raises(RecipeError, match="would be called 'words'"):
        everlearn.diff(place / "old", place / "new", words * 2)
    with pytest.raises(RecipeError, match="--device"):
        everlearn.diff(place / "old", place / "new", words, device="nothing")
    for task in ("{name: t, train: a.jsonl, test: b.jsonl}", "- {name: t, path: a.jsonl}"):
        (tmp_path / "tuned.yaml").write_text(task, encoding="utf-8")
        with pytest.raises(RecipeError, match=r"'t' .* is of kind classification, which fine-tunes"):
            read_tasks(tmp_path / "tuned.yaml")


@pytest.mark.parametrize("form", ["- {TASK}", "end_tasks:\n- {TASK}", "{TASK}"])
def test_end_tasks_are_read_in_the_form_of_a_recipe(tmp_path, form):
    task = "name: q, kind: text-to-text, test: qa.jsonl"
    (tmp_path / "tasks.yaml").write_text(form.replace("TASK", task), encoding="utf-8")
    assert [(each.name, each.kind) for each in read_tasks(tmp_path / "tasks.yaml")] == [("q", "text-to-text")]


@pytest.mark.parametrize("form", ["", "[]", "end_tasks: 3", "words"])
def test_a_file_without_end_tasks_is_refused_with_the_form(tmp_path, form):
    (tmp_path / "tasks.yaml").write_text(form, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"has no end tasks. Write a list of tasks"):
        read_tasks(tmp_path / "tasks.yaml")


def test_the_python_name_is_exported():
    assert everlearn.diff.__name__ == "diff"
    assert Diff.__dataclass_fields__["texts"]


def test_a_domain_that_continues_another_is_not_compared_twice():
    domains = [{"name": "news", "path": "news.txt"}, {"name": "more", "path": "more.txt", "continues": "news"}]
    texts, _ = of_recipe(parse({"model": "base", "domains": domains, "method": "sequential"}), [])
    assert [*texts] == ["news"]
