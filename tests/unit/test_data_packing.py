from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import tiny
from everlearn.data.corpus import Document
from everlearn.data.packing import IGNORED, TextPacker, make_packer
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, ModelError
from everlearn.model.objectives import make_objective

TEXT = st.text(max_size=30)
DOCUMENTS = st.lists(TEXT.map(Document), max_size=12)
EXAMPLES = st.lists(st.builds(Document, TEXT, TEXT), max_size=12)


def without(*names: str) -> PreTrainedTokenizerFast:
    """The tiny tokenizer, bare: it adds no special token, and those named are not set."""
    from tokenizers import Tokenizer

    core = Tokenizer.from_str(tiny.tokenizer().backend_tokenizer.to_str())
    content = json.loads(core.to_str())
    content["post_processor"] = None
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    given = {key: value for key, value in special.items() if key not in names}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)), **given)


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(4, 20), st.sampled_from(["encoder", "decoder"]))
def test_packing_loses_no_token_and_cuts_exactly(documents, size, kind):
    encoder = Encoder(tiny.tokenizer(), kind)
    ids = [[0, *row, 2] for row in encoder([document.text for document in documents])]
    stream = [token for row in ids for token in row]
    owner = [number for number, row in enumerate(ids) for _ in row]
    blocks = list(tiny.pack(documents, size, kind=kind))
    assert len(blocks) == len(stream) // size
    for i, block in enumerate(blocks):
        assert block["input_ids"].dtype == block["segments"].dtype == np.int32
        assert block["input_ids"].tolist() == stream[i * size : (i + 1) * size]
        inside = owner[i * size : (i + 1) * size]
        assert block["segments"].tolist() == [sorted(set(inside)).index(number) for number in inside]


@settings(max_examples=40, deadline=None)
@given(DOCUMENTS, st.integers(0, 12), st.integers(4, 20))
def test_the_remainder_is_exact_state(documents, cut, size):
    encoder = Encoder(tiny.tokenizer(), "encoder")
    whole, first, second = (TextPacker(encoder, size) for _ in range(3))
    before = first.feed(documents[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after = second.feed(documents[cut:])
    expected = whole.feed(documents)
    assert len(before) + len(after) == len(expected)
    for found, wanted in zip([*before, *after], expected, strict=True):
        assert found["input_ids"].tolist() == wanted["input_ids"].tolist()
        assert found["segments"].tolist() == wanted["segments"].tolist()
    assert second.remainder.tolist() == whole.remainder.tolist()
    assert len(second.remainder) < size


def test_counts_are_exact():
    documents = [Document("the model"), Document("Größe 漢"), Document("<s> the </s>")]
    packer = TextPacker(Encoder(tiny.tokenizer(), "encoder"), 8)
    packer.feed(documents)
    plain = sum(len(row) for row in packer.encoder([document.text for document in documents]))
    assert packer.count.documents == 3
    assert packer.count.text_bytes == sum(len(document.text.encode()) for document in documents)
    assert packer.count.text_tokens == plain
    assert packer.count.tokens == plain + 6
    assert packer.count.bytes_per_token == packer.count.text_bytes / plain


def test_text_that_looks_like_a_special_token_stays_text():
    ids = Encoder(tiny.tokenizer(), "encoder")(["a </s> b <mask>"])[0]
    assert not {2, 4} & set(ids)
    assert tiny.tokenizer().decode(ids) == "a </s> b <mask>"


def test_a_decoder_always_gets_an_end_token():
    bare = Encoder(without(), "decoder")
    assert (bare.prefix, bare.suffix) == ([], [2])
    full = Encoder(tiny.tokenizer(), "decoder")
    assert (full.prefix, full.suffix) == ([0], [2])
    assert Encoder(without("eos_token"), "encoder").suffix == []
    with pytest.raises(ModelError, match="no end-of-sequence"):
        Encoder(without("eos_token"), "decoder")
    assert bare.fingerprint != full.fingerprint
    assert full.fingerprint == Encoder(tiny.tokenizer(), "decoder").fingerprint


def test_the_fingerprint_ignores_what_calls_leave_behind():
    tokenizer = without()
    before = Encoder(tokenizer, "decoder").fingerprint
    tokenizer("some text", truncation=True, max_length=3, padding="max_length")
    assert Encoder(tokenizer, "decoder").fingerprint == before


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@settings(max_examples=60, deadline=None)
@given(documents=EXAMPLES, size=st.integers(4, 30))
def test_examples_stay_whole_and_only_answers_are_labelled(documents, size, kind):
    encoder = Encoder(tiny.tokenizer(), kind)
    packer = make_packer(encoder, size, examples=True)
    blocks = [*packer.feed(documents), *packer.finish()]
    found = []
    for block in blocks:
        assert {row.shape for row in block.values()} == {(size,)}
        for number in range(block["segments"].max() + 1):
            inside = block["segments"] == number
            ids, labels = block["input_ids"][inside].tolist(), block["labels"][inside].tolist()
            if set(ids) != {1}:
                found.append((ids, labels))
            else:
                assert set(labels) == {IGNORED}
                assert number == block["segments"].max(), "the filled-up tail"
    prompts, answers = (encoder([getattr(d, key) for d in documents]) for key in ("text", "target"))
    assert len(found) == len(documents)
    truncated = longest = 0
    for (ids, labels), prompt, answer in zip(found, prompts, answers, strict=True):
        kept = answer[: size - 2] if kind == "decoder" else [*answer[: size - 3], 2]
        behind = (
            []
            if kind == "decoder"
            else [tiny.tokenizer().mask_token_id] * (min(-(-len(kept) // 8) * 8, size - 2) - len(kept))
        )
        taken = len(kept) + len(behind)
        longest = max(longest, min(taken, size // 4))
        fits = len(prompt) + taken + 2 <= size
        before = [0, *(prompt if fits else prompt[: size - 2 - max(longest, taken)])]
        truncated += len(answer) > size - (2 if kind == "decoder" else 3) or len(prompt) > size - 2 - taken
        assert ids == [*before, *kept, *behind, 2]
        assert labels == [
            *[IGNORED] * len(before),
            *kept,
            *[IGNORED] * len(behind),
            2 if kind == "decoder" else IGNORED,
        ]
    assert packer.count.truncated == truncated


def test_a_masked_model_cannot_count_how_long_an_answer_is():
    """As many masks as an answer has tokens would tell `Good` from `Bad` where one of them is two tokens."""
    tokenizer = tiny.tokenizer()
    encoder = Encoder(tokenizer, "encoder")
    texts = ["the", "the model", "the model learns"]
    assert len({len(ids) for ids in encoder(texts)}) == 3
    packer = make_packer(encoder, 16, examples=True)
    blocks = [*packer.feed([Document("what", text) for text in texts]), *packer.finish()]
    assert len(blocks) == 3
    objective = make_objective("masked", tiny.model("roberta"), tokenizer, examples=True)
    batch = objective.collate(blocks, [0, 1, 2])
    first, *others = batch["input_ids"].tolist()
    assert others == [first, first], "what it reads is the same"
    learnt = [row[row != IGNORED].tolist() for row in batch["labels"]]
    assert learnt == [[*ids, 2] for ids in encoder(texts)], "and it learns the answers and where they end"


@settings(max_examples=30, deadline=None)
@given(EXAMPLES, st.integers(0, 12))
def test_half_filled_blocks_are_exact_state(documents, cut):
    encoder = Encoder(tiny.tokenizer(), "decoder")
    whole, first, second = (make_packer(encoder, 24, examples=True) for _ in range(3))
    expected = [*whole.feed(documents), *whole.finish()]
    before = first.feed(documents[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    blocks = [*before, *second.feed(documents[cut:]), *second.finish()]
    assert [{k: v.tolist() for k, v in block.items()} for block in blocks] == [
        {k: v.tolist() for k, v in block.items()} for block in expected
    ]


@settings(max_examples=40, deadline=None)
@given(EXAMPLES, st.integers(3, 20), st.integers(3, 10))
def test_encoder_decoder_examples_are_rows_of_their_own_lengths(documents, size, target_size):
    tokenizer = tiny.tokenizer()
    encoder = Encoder(tokenizer, "encoder-decoder")
    packer = make_packer(encoder, size, examples=True, target_size=target_size)
    blocks = packer.feed(documents)
    prompts, answers = (encoder([getattr(d, key) for d in documents]) for key in ("text", "target"))
    assert [block["input_ids"].tolist() for block in blocks] == [[0, *ids[: size - 2], 2] for ids in prompts]
    assert [block["labels"].tolist() for block in blocks] == [[0, *ids[: target_size - 2], 2] for ids in answers]
    long = [len(p) > size - 2 or len(a) > target_size - 2 for p, a in zip(prompts, answers, strict=True)]
    assert packer.count.truncated == sum(long)
    assert packer.finish() == []


@pytest.mark.parametrize("keep_last", [0, 3])
def test_where_a_cut_prompt_ends_does_not_tell_how_long_its_answer_is(keep_last: int) -> None:
    encoder = Encoder(tiny.tokenizer(), "decoder")
    answers = ["model model model model", "yes", "matrix matrix", "yes", "model model model"]
    packer = make_packer(encoder, 40, examples=True, keep_last=keep_last)
    documents = [Document(" ".join(["matrix"] * 60), answer) for answer in answers]
    blocks = packer.feed(documents) + packer.finish()
    assert len({len(ids) for ids in encoder(answers)}) > 2
    firsts = [int(np.flatnonzero(block["labels"] != IGNORED)[0]) for block in blocks]
    assert len(firsts) == len(answers)
    assert len(set(firsts)) == 1


def test_text_that_does_not_fit_the_model_is_refused():
    plain, example = [Document("text")], [Document("text", "answer")]
    with pytest.raises(DataError, match="needs a `target_column`"):
        list(tiny.pack(plain, 8, kind="encoder-decoder"))
    with pytest.raises(DataError, match="`block_size: 2` leaves no room"):
        list(tiny.pack(plain, 2, kind="encoder"))
    with pytest.raises(DataError, match="`target_size: 1` leaves no room"):
        list(tiny.pack(example, 8, kind="decoder", target_size=1))
    assert list(tiny.pack([], 8, kind="encoder")) == []


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_the_end_of_a_long_prompt_stays_where_that_is_asked(kind: str) -> None:
    encoder = Encoder(tiny.tokenizer(), kind)
    text = " ".join(["matrix"] * 30) + " Answer:"
    (prompt,), (answer,) = encoder([text]), encoder(["yes"])
    for last in (0, 5, 500):
        packer = make_packer(encoder, 20, examples=True, keep_last=last)
        block = (packer.feed([Document(text, "yes")]) + packer.finish())[0]
        around = len(encoder.prefix) + (len(encoder.suffix) if kind == "encoder-decoder" else len(answer) + 1)
        room = 20 - around
        kept = min(last, room)
        expected = prompt[: room - kept] + (prompt[-kept:] if kept else [])
        assert block["input_ids"].tolist()[len(encoder.prefix) :][:room] == expected
        assert packer.count.truncated == 1
    short = make_packer(encoder, 200, examples=True, keep_last=5)
    block = (short.feed([Document(text, "yes")]) + short.finish())[0]
    assert block["input_ids"].tolist()[len(encoder.prefix) :][: len(prompt)] == prompt
