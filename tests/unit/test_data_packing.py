"""Packing into rows, and what is known of held-out rows: their bytes, their documents, the intervals made of these."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t
from transformers import PreTrainedTokenizerFast

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.data.packing import IGNORED, TextPacker, make_packer
from everlearn.data.tokenize import Encoder
from everlearn.data.windows import Windows
from everlearn.errors import DataError, ModelError
from everlearn.evaluation import METRICS, Cell, percentiles, resample, text_cell
from everlearn.evaluation.held_out_rows import BYTES, DOCUMENT, main_documents, row_widths
from everlearn.model.objectives import make_objective
from everlearn.tasks.held_out import HeldOut

TEXT = st.text(max_size=30)
DOCUMENTS = st.lists(TEXT.map(Document), max_size=12)
EXAMPLES = st.lists(st.tuples(TEXT, TEXT).map(lambda pair: Document(*pair)), max_size=12)


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


SIZE = 32
BITS = METRICS["bits_per_byte"]


def packed(texts: list[str], kind: str = "decoder") -> tuple[PackedBlocks, Encoder, TextPacker]:
    """Rows of these documents."""
    encoder = Encoder(tiny.tokenizer(), kind)  # type: ignore[arg-type]
    packer = TextPacker(encoder, SIZE)
    blocks = packer.feed([_Document(text) for text in texts])  # type: ignore[list-item]
    return PackedBlocks.from_blocks(blocks, seed=0, name="a"), encoder, packer


class _Document:
    target = None

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_bits_per_byte_are_of_the_rows_that_were_scored(kind: str) -> None:
    """Half of the text has tokens of one byte: a level of the other half was off by what all have on average."""
    texts = ["".join(chr(0x4E00 + (7 * i + j) % 90) for j in range(60)) for i in range(12)] + tiny.texts(40, words=50)
    blocks, encoder, packer = packed(texts, kind)
    width = packer.count.bytes_per_label(1 if kind == "decoder" else 0)
    chosen = np.arange(len(blocks))[-24:]
    widths = row_widths(blocks, chosen, encoder.tokenizer, width)
    rows = blocks.take(chosen)
    known = [encoder.tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in rows]
    exact = sum(len(text.encode()) for text in known) / sum(len(row["input_ids"]) for row in rows)
    assert abs(widths.mean() / width - 1) > 0.05, "the sample is another text than the whole"
    assert widths.mean() == pytest.approx(exact, rel=0.03)
    assert row_widths(blocks, np.arange(len(blocks)), encoder.tokenizer, width).mean() == pytest.approx(width, rel=1e-6)

    held_out = HeldOut(PackedBlocks.from_blocks(rows, 0, "a"), width, {BYTES: widths})
    items, nats = np.full(len(rows), SIZE - 1), np.full(len(rows), 50.0)
    cell = text_cell(nats, items, width, given=held_out.row_properties(items), task="a", row="base")
    assert BITS.score(cell) == pytest.approx(nats.sum() / np.log(2) / (items * widths).sum())
    old = text_cell(nats, items, width, task="a", row="base")
    assert BITS.score(old) == pytest.approx(nats.sum() / items.sum() / np.log(2) / width)


def test_a_row_belongs_to_the_document_of_most_of_its_tokens() -> None:
    long, *short = [" ".join(tiny.texts(8, seed=1)), *tiny.texts(6, seed=2, words=6)]
    blocks, encoder, _ = packed([*short[:3], long, *short[3:], *tiny.texts(3, seed=3, words=200)])
    every = np.arange(len(blocks))
    documents = main_documents(blocks, every, encoder.suffix[-1])
    assert documents is not None
    starts = np.cumsum([0, *(len(ids) + 1 for ids in encoder([*short[:3], long]))])
    own = np.searchsorted(starts, every * SIZE + SIZE // 2, "right") - 1  # the document in the middle of a row
    inside = (every * SIZE >= starts[3]) & ((every + 1) * SIZE <= starts[4])
    assert inside.sum() > 5
    assert set(documents[inside]) == {3} == set(own[inside])
    assert documents[-1] > 3
    assert (np.diff(documents) >= 0).all()
    assert main_documents(blocks, every, None) is None
    windows = Windows(blocks, 8, encoder.suffix[-1])
    numbers = np.arange(len(windows))
    found = main_documents(windows, numbers, encoder.suffix[-1])
    assert found is not None
    middle = numbers * 8 + SIZE - 8
    whole = (middle >= starts[3]) & (middle + 8 <= starts[4]) & (numbers > 0)
    assert whole.sum() > 20
    assert set(found[whole]) == {3}


def interval(cell: Cell) -> tuple[float, float]:
    low, high = percentiles(resample([cell], [BITS], seed=0, resamples=20_000)["bits_per_byte"].samples[:, 0])
    return float(low), float(high)


@pytest.mark.parametrize("documents", [12, 40])
def test_rows_of_a_document_are_drawn_together(documents: int) -> None:
    """Documents of ten like rows are so many observations: the interval is about three times as wide."""
    rng = np.random.default_rng(0)
    document = np.repeat(np.arange(documents), 10)
    nats = 100 + 10 * rng.normal(size=documents)[document] + rng.normal(size=10 * documents)
    items = np.full(10 * documents, 31)
    apart = text_cell(nats, items, 4.0, task="a", row="base")
    known = text_cell(nats, items, 4.0, given={DOCUMENT: document}, task="a", row="base")
    (low, high), (first, last) = interval(known), interval(apart)
    assert 2 < (high - low) / (last - first) < 4.2
    # The same documents, each as one row of ten times as many labels.
    joined = text_cell(nats.reshape(-1, 10).sum(1), np.full(documents, 310), 4.0, task="a", row="base")
    assert interval(joined) == pytest.approx((low, high), rel=1e-9)
    # Of a single document its rows are drawn.
    alone = text_cell(nats, items, 4.0, given={DOCUMENT: np.zeros(10 * documents, np.int64)}, task="a", row="base")
    assert interval(alone) == (first, last)


@pytest.mark.parametrize("units", [2, 3, 5, 9, 20])
def test_intervals_of_few_documents_are_student_s_t(units: int) -> None:
    rng = np.random.default_rng(units)
    nats, items = rng.normal(100, 10, units), np.full(units, 31.0)
    half = t.ppf(0.975, units - 1) * nats.std(ddof=1) / np.sqrt(units) / 31
    cell = text_cell(nats, items, 1.0, task="a", row="base")
    drawn = resample([cell], [METRICS["loss"]], seed=0, resamples=100_000)["loss"].samples
    low, high = (float(end) for end in percentiles(drawn[:, 0]))
    mean = nats.sum() / items.sum()
    tolerance = 0.15 if units == 2 else 0.04
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=tolerance * half)
    assert interval(cell) == pytest.approx((low / np.log(2), high / np.log(2)), abs=2 * tolerance * half)


@pytest.mark.parametrize("documents", [3, 5, 9, 20])
def test_nineteen_of_twenty_intervals_hold_the_truth(documents: int) -> None:
    """Documents of twenty rows each, whose own levels vary as much as their rows do; half of them twice as long."""
    rng = np.random.default_rng(1)
    size = np.where(np.arange(documents) % 2, 20, 10)
    document = np.repeat(np.arange(documents), size)
    held = []
    for trial in range(400):
        nats = 100 + rng.normal(size=documents)[document] + rng.normal(size=len(document))
        cell = text_cell(nats, np.ones_like(nats), 1.0, given={DOCUMENT: document})
        low, high = percentiles(resample([cell], [METRICS["loss"]], seed=trial, resamples=1000)["loss"].samples[:, 0])
        held.append(low <= 100 <= high)
    assert 0.9 < np.mean(held) < 0.99


def test_what_is_known_of_rows_is_kept_and_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    blocks, _, _ = packed(tiny.texts(20, words=40))
    rows = {BYTES: np.linspace(3, 5, len(blocks)), DOCUMENT: np.arange(len(blocks))}
    HeldOut(blocks, 4.0, rows).save(tmp_path / "a.safetensors")
    read = HeldOut.load(tmp_path / "a.safetensors")
    for name, column in rows.items():
        np.testing.assert_array_equal(read.rows[name], column)
    assert set(read.blocks.arrays) == set(blocks.arrays)
    part = read.sample(7)
    assert len(part.rows[BYTES]) == 7 == len(part.blocks)
    ids = [row["input_ids"] for row in part.blocks.take(range(7))]
    for place, number in enumerate(part.rows[DOCUMENT]):
        np.testing.assert_array_equal(ids[place], blocks.take([int(number)])[0]["input_ids"])
    assert len(read.half(0).rows[BYTES]) + len(read.half(1).rows[BYTES]) == len(blocks)
    replace(read, rows={}).save(tmp_path / "old.safetensors")
    assert HeldOut.load(tmp_path / "old.safetensors").rows == {}
    assert HeldOut.load(tmp_path / "old.safetensors").row_properties(np.ones(3)) == {}

    cell = text_cell(np.ones(3), np.ones(3), 4.0, given={"bytes": np.full(3, 5.0)}, task="a", row="base")
    cell.save(tmp_path / "cell.safetensors")
    assert BITS.score(Cell.load(tmp_path / "cell.safetensors")) == pytest.approx(1 / np.log(2) / 5)
