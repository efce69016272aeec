from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import tiny
from everlearn.data import prepare as prepare_
from everlearn.data import stored_columns
from everlearn.data.corpus import Corpus, Document, Domain, is_held_out
from everlearn.data.streaming import StreamedBlocks
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError
from everlearn.files import damage

TEXTS = tiny.texts(120, words=30)
OPEN_FILES = Path("/proc/self/fd")


def write(folder: Path, texts: list[str] = TEXTS, name: str = "a.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps({"text": text, "answer": text[::-1]}) + "\n" for text in texts))
    return str(folder / name)


def prepared(folder: Path, corpus: Corpus, kind="decoder", block_size=16, seed=0, **options):
    return prepare_(corpus, tiny.tokenizer(), kind, block_size, seed=seed, cache=folder / "cache", **options)


def same(blocks, expected) -> bool:
    return all(
        set(a) == set(b) and all(np.array_equal(a[key], b[key]) for key in a)
        for a, b in zip(blocks, expected, strict=True)
    )


def test_training_and_held_out_blocks_partition_the_documents(tmp_path):
    domain = Domain(name="d", path=write(tmp_path), validation=0.3)
    made = prepared(tmp_path, domain)
    parts = {held: [Document(t) for t in TEXTS if is_held_out(Document(t), 0.3) == held] for held in (True, False)}
    expected = {held: list(tiny.pack(parts[held], 16, kind="decoder")) for held in parts}
    assert same(made.train.take(range(made.train.size)), expected[False])
    assert same(made.validation.take(range(len(made.validation))), expected[True])
    ids = Encoder(tiny.tokenizer(), "decoder")([document.text for document in parts[False]])
    assert made.documents == len(parts[False])
    assert made.tokens == sum(len(row) + 2 for row in ids)
    assert made.bytes == sum(len(document.text.encode()) for document in parts[False])
    held = Encoder(tiny.tokenizer(), "decoder")([document.text for document in parts[True]])
    # A decoder predicts the end of each text too, so total nats over total bytes is bits per byte.
    assert made.bytes_per_token == sum(len(d.text.encode()) for d in parts[True]) / sum(len(row) + 1 for row in held)
    # Where documents see each other the beginning of each is predicted, too: from the end of the one before.
    seen = prepared(tmp_path, domain, isolated=False)
    assert seen.bytes_per_token == sum(len(d.text.encode()) for d in parts[True]) / sum(len(row) + 2 for row in held)
    assert same(seen.train.take(range(seen.train.size)), expected[False])
    encoder = prepared(tmp_path, domain, kind="encoder")
    assert encoder.bytes_per_token == sum(len(d.text.encode()) for d in parts[True]) / sum(map(len, held))


def test_the_cache_is_found_and_depends_on_everything(tmp_path, monkeypatch):
    domain = Domain(name="d", path=write(tmp_path), validation=0.3)
    first = prepared(tmp_path, domain)
    built = []
    work = prepare_.__globals__["_Work"]
    build = work.build
    monkeypatch.setattr(work, "build", lambda self, folder, told: (built.append(folder), build(self, folder, told)))
    again = prepared(tmp_path, domain, seed=1)
    assert not built
    assert again.fingerprint == first.fingerprint == again.train.fingerprint
    assert isinstance(again.train.arrays["input_ids"], np.memmap)
    fingerprints = {first.fingerprint}
    for change in (
        {"corpus": domain.model_copy(update={"validation": 0.2})},
        {"corpus": domain.model_copy(update={"max_documents": 90})},
        {"block_size": 17},
        {"kind": "encoder"},
    ):
        fingerprints.add(prepared(tmp_path, **{"corpus": domain, **change}).fingerprint)
    write(tmp_path, TEXTS[:-1])
    fingerprints.add(prepared(tmp_path, domain).fingerprint)
    assert len(fingerprints) == 6
    assert len(built) == 5


def test_a_damaged_cache_is_made_anew(tmp_path):
    domain = Domain(name="d", path=write(tmp_path), validation=0.3)
    expected = prepared(tmp_path, domain).train.take(range(5))
    (folder,) = (tmp_path / "cache").iterdir()
    file = folder / "train.input_ids.npy"
    file.write_bytes(file.read_bytes()[:-7])
    assert damage(folder) is not None
    assert same(prepared(tmp_path, domain).train.take(range(5)), expected)
    assert damage(folder) is None
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_an_error_leaves_nothing_in_the_cache(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\nbroken\n')
    with pytest.raises(DataError, match="line 2"):
        prepared(tmp_path, Corpus(path=str(tmp_path / "a.jsonl")))
    assert list((tmp_path / "cache").iterdir()) == []


def test_held_out_text_from_a_file_and_none(tmp_path):
    held = write(tmp_path, TEXTS[:20], "held.jsonl")
    made = prepared(tmp_path, Domain(name="d", path=write(tmp_path, TEXTS[20:]), validation=held))
    expected = list(tiny.pack(map(Document, TEXTS[:20]), 16, kind="decoder"))
    assert same(made.validation.take(range(len(made.validation))), expected)
    assert made.documents == 100
    whole = prepared(tmp_path, Domain(name="d", path=write(tmp_path), validation=None))
    assert whole.validation is None
    assert whole.bytes_per_token == pytest.approx(
        sum(map(len, TEXTS)) / sum(len(row) + 1 for row in Encoder(tiny.tokenizer(), "decoder")(TEXTS))
    )
    assert prepared(tmp_path, Corpus(path=write(tmp_path))).documents == 120


def test_examples_for_an_encoder_decoder_keep_their_lengths(tmp_path):
    corpus = Domain(name="d", path=write(tmp_path), target_column="answer", validation=0.3)
    made = prepared(tmp_path, corpus, "encoder-decoder", 40, target_size=20)
    documents = [Document(t, t[::-1]) for t in TEXTS if not is_held_out(Document(t), 0.3)]
    expected = list(tiny.pack(documents, 40, kind="encoder-decoder", target_size=20))
    assert same(made.train.take(range(made.train.size)), expected)
    assert made.train.block_tokens is None
    assert made.truncated > 0


def test_the_width_of_an_answer_is_that_of_all_its_labels(tmp_path):
    """Some encoder-decoders predict the beginning of an answer too, and nats of all labels over bytes are wanted."""
    corpus = Domain(name="d", path=write(tmp_path), target_column="answer", validation=0.3)
    made = prepared(tmp_path, corpus, "encoder-decoder", 200, target_size=200)
    held = made.validation.take(range(len(made.validation)))
    answers = [t[::-1] for t in TEXTS if is_held_out(Document(t), 0.3)]
    assert made.truncated == 0
    assert made.bytes_per_token == sum(map(len, answers)) / sum(len(block["labels"]) for block in held)


def test_a_stream_trains_on_the_fly_and_measures_on_stored_blocks(tmp_path, monkeypatch):
    path = write(tmp_path)
    packed = prepared(tmp_path, Domain(name="d", path=path, validation=0.3))
    streamed = prepared(tmp_path, Domain(name="d", path=path, validation=0.3, streaming=True))
    assert isinstance(streamed.train, StreamedBlocks)
    assert (streamed.documents, streamed.tokens, streamed.bytes, streamed.train.size) == (None, None, None, None)
    assert same(islice(streamed.train, packed.train.size), packed.train.take(range(packed.train.size)))
    held = packed.validation.take(range(len(packed.validation)))
    assert same(streamed.validation.take(range(len(streamed.validation))), held)
    monkeypatch.setitem(prepare_.__globals__, "STREAM_HELD_OUT", 10)
    few = prepared(tmp_path, Domain(name="e", path=path, validation=0.31, streaming=True))
    documents = [Document(t) for t in TEXTS if is_held_out(Document(t), 0.31)][:10]
    assert same(few.validation.take(range(len(few.validation))), list(tiny.pack(documents, 16, kind="decoder")))
    nothing = prepared(tmp_path, Domain(name="f", path=path, validation=None, streaming=True))
    assert nothing.validation is None
    assert nothing.bytes_per_token > 0


def test_a_corpus_smaller_than_a_block_says_how_large_it_is(tmp_path):
    path = write(tmp_path, ["the model"])
    tokens = len(Encoder(tiny.tokenizer(), "decoder")(["the model"])[0]) + 2
    with pytest.raises(DataError, match=rf"'d' has {tokens} tokens .*fewer than one block \(`data.block_size: 64`\)"):
        prepared(tmp_path, Domain(name="d", path=path, validation=None), block_size=64)
    path = write(tmp_path, TEXTS[:5])
    with pytest.raises(DataError, match=r"held-out text of 'd' \(`validation: 1e-06`\) has 0 tokens in 0 documents"):
        prepared(tmp_path, Domain(name="d", path=path, validation=1e-6))


def test_the_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    prepare_(Corpus(path=write(tmp_path)), tiny.tokenizer(), "encoder", 16, seed=0, name="general")
    (folder,) = (tmp_path / "home" / "everlearn" / "data").iterdir()
    assert folder.name.startswith("general-")


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="open files are counted in /proc")
def test_a_stream_of_many_domains_needs_few_open_files(tmp_path):
    before, count = len(list(OPEN_FILES.iterdir())), 100
    stream = []
    for number in range(count):
        text = [f"{word} of domain {number}" for word in tiny.texts(4, words=20)]
        stream.append(prepared(tmp_path, Domain(name=f"d{number}", path=write(tmp_path, text), validation=0.5)))
    blocks = [domain.train.take([0])[0]["input_ids"].tolist() for domain in stream]
    assert len(list(OPEN_FILES.iterdir())) - before <= 80
    # What was closed is opened again.
    assert blocks == [domain.train.take([0])[0]["input_ids"].tolist() for domain in stream]


def test_a_cache_that_is_removed_while_it_is_used_is_a_sentence(tmp_path):
    made = prepared(tmp_path, Domain(name="d", path=write(tmp_path), validation=0.3))
    stored_columns._mapped.cache_clear()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DataError, match="was removed while it was in use"):
        next(made.train)


def test_a_cache_that_is_made_again_is_read_anew(tmp_path):
    domain = Domain(name="d", path=write(tmp_path), validation=0.3)
    first = prepared(tmp_path, domain)
    expected = first.train.take(range(first.train.size))
    path = next((tmp_path / "cache").glob("*/train.input_ids.npy"))
    path.write_bytes(path.read_bytes()[:-8])
    again = prepared(tmp_path, domain)
    assert same(again.train.take(range(again.train.size)), expected)
