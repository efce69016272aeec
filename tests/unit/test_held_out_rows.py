"""What is known of held-out rows: their own bytes, the document that they are of, and what intervals make of these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.packing import TextPacker
from everlearn.data.tokenize import Encoder
from everlearn.data.windows import Windows
from everlearn.evaluation import METRICS, Cell, percentiles, resample, text_cell
from everlearn.evaluation.held_out_rows import BYTES, DOCUMENT, main_documents, row_widths
from everlearn.evaluation.statistics import bootstrap_ratio
from everlearn.tasks.held_out import HeldOut

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
    cell = text_cell(nats, items, width, given=held_out.given(items), task="a", row="base")
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
    # A ratio's samples are drawn by the same rule.
    np.testing.assert_allclose(
        bootstrap_ratio(nats, items, groups=document, seed=0),
        bootstrap_ratio(nats.reshape(-1, 10).sum(1), np.full(documents, 310), seed=0),
        rtol=1e-12,
    )


@pytest.mark.parametrize("units", [2, 3, 5, 9, 20])
def test_intervals_of_few_documents_are_student_s_t(units: int) -> None:
    rng = np.random.default_rng(units)
    nats, items = rng.normal(100, 10, units), np.full(units, 31.0)
    half = t.ppf(0.975, units - 1) * nats.std(ddof=1) / np.sqrt(units) / 31
    low, high = percentiles(bootstrap_ratio(nats, items, seed=0, resamples=100_000)[:, 0])
    mean = nats.sum() / items.sum()
    tolerance = 0.15 if units == 2 else 0.04
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=tolerance * half)
    cell = text_cell(nats, items, 1.0, task="a", row="base")
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
        low, high = percentiles(
            bootstrap_ratio(nats, np.ones_like(nats), groups=document, seed=trial, resamples=1000)[:, 0]
        )
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
    assert HeldOut.load(tmp_path / "old.safetensors").given(np.ones(3)) == {}

    cell = text_cell(np.ones(3), np.ones(3), 4.0, given={"bytes": np.full(3, 5.0)}, task="a", row="base")
    cell.save(tmp_path / "cell.safetensors")
    assert BITS.score(Cell.load(tmp_path / "cell.safetensors")) == pytest.approx(1 / np.log(2) / 5)
