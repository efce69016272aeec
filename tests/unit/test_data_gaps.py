"""Rows without text, corpora of one document, several sources, and text that is learnt and measured at once."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import stages
import tiny
from everlearn.config import recipe as recipes
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Corpus, Document, Domain, is_held_out
from everlearn.data.documents import Skipped, check_corpus, read_documents
from everlearn.data.held_out import OwnHeldOut, cut
from everlearn.data.leaks import check_leaks
from everlearn.data.mixing import Mixture
from everlearn.data.notes import notes_of
from everlearn.data.prepare import Prepared, prepare
from everlearn.data.streaming import StreamedBlocks
from everlearn.errors import DataError, RecipeError

TEXTS = tiny.texts(120)


def write(path: Path, texts: list[str | None]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def prepared(folder: Path, domain: Domain) -> Prepared:
    return prepare(domain, tiny.tokenizer(), "decoder", 32, seed=0, cache=folder / "cache")


# -- rows without text ----------------------------------------------------------------------------------------


def test_rows_without_text_are_counted_and_skipped(tmp_path):
    rows = [{"text": "a"}, {"text": None}, {"id": 3}, {"text": " "}, {"text": "b"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    skipped = Skipped()
    found = [document.text for document, _ in read_documents(Corpus(path=str(path)), skipped=skipped)]
    assert (found, skipped.rows, skipped.first) == (["a", "b"], 3, f"{path}, line 2")
    check_corpus(Corpus(path=str(path)))


def test_empty_lines_of_text_are_no_missing_rows(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n \ntwo\n")
    skipped = Skipped()
    assert len(list(read_documents(Corpus(path=str(tmp_path / "a.txt")), skipped=skipped))) == 2
    assert skipped.rows == 0


def test_a_value_that_is_no_text_is_still_a_mistake_of_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null}\n{"text": "a"}\n{"text": 5}\n')
    with pytest.raises(DataError, match=r"line 3: column 'text' must hold text; it holds int"):
        list(read_documents(Corpus(path=str(path))))


@pytest.mark.parametrize("rows", [3, 1500])
def test_a_column_that_no_row_has_is_refused(tmp_path, rows):
    (tmp_path / "a.jsonl").write_text('{"txt": "a", "id": 1}\n' * rows)
    with pytest.raises(DataError, match=r"line 1 has no column 'text'; .* Did you mean 'txt'"):
        list(read_documents(Corpus(path=str(tmp_path / "a.jsonl"))))


def test_the_key_of_the_column_is_named_if_no_column_is_near(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"review_body": "a", "id": 1}\n')
    with pytest.raises(DataError, match=r"are 'review_body', 'id'\. Name the one with the text in `text_column`\."):
        list(read_documents(Corpus(path=str(tmp_path / "a.jsonl"))))


def test_text_that_the_tokenizer_splits_into_bytes_is_noted(tmp_path):
    for name, texts in (("ja", [f"{number} 吾輩は猫である。名前はまだ無い。" for number in range(60)]), ("en", TEXTS)):
        domain = Domain(name=name, path=write(tmp_path / f"{name}.jsonl", texts), validation=0.3)
        read = {name: prepared(tmp_path, domain)}
        noted = ["`everlearn extend`" in " ".join(notes_of([domain], read, 32, known)) for known in (300, 12_000)]
        assert noted == [False, name == "ja"], "a vocabulary of bytes or characters splits text on purpose"


def test_the_number_of_skipped_rows_is_remembered_with_the_blocks(tmp_path):
    domain = Domain(name="d", path=write(tmp_path / "a.jsonl", [None, *TEXTS, None, ""]), validation=0.3)
    for _ in range(2):  # made, and found in the cache
        part = prepared(tmp_path, domain)
        assert part.skipped == 3
        assert notes_of([domain], {"d": part}, 32) == ["3 rows of 'd' hold no text (null or blank) and were skipped."]


def test_a_cache_folder_of_an_older_version_is_made_anew(tmp_path):
    domain = Domain(name="d", path=write(tmp_path / "a.jsonl", [*TEXTS, None]), validation=0.3)
    before = prepared(tmp_path, domain)
    (folder,) = (tmp_path / "cache").iterdir()
    facts = json.loads((folder / "facts.json").read_text())
    (folder / "facts.json").write_text(json.dumps({key: value for key, value in facts.items() if key != "version"}))
    (folder / "seal.json").unlink()
    assert prepared(tmp_path, domain).skipped == 1
    assert prepared(tmp_path, domain).fingerprint == before.fingerprint


# -- one document ---------------------------------------------------------------------------------------------


def test_the_end_of_a_single_document_is_held_out(tmp_path):
    paragraphs = [f"Paragraph {i}. {text}" for i, text in enumerate(TEXTS)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    domain = Domain(name="d", path=str(tmp_path / "book.txt"), documents="file", validation=0.1)
    whole = [document for document, _ in read_documents(domain)]
    (kept, _), (held, is_held) = OwnHeldOut(domain, 0.1).parted(whole)
    assert is_held
    assert kept.text + held.text == "\n\n".join(paragraphs)  # contiguous, and nothing of it on both sides
    assert kept.text.endswith("\n\n")
    assert held.text.startswith("Paragraph ")
    assert 0.05 < len(held.text) / len(whole[0].text) < 0.15
    part = prepared(tmp_path, domain)
    assert part.end_held_out
    assert part.validation is not None
    learnt, measured = (
        tiny.tokenizer().decode(np.concatenate([block["input_ids"] for block in blocks.take(range(len(blocks)))]))
        for blocks in (part.train, part.validation)
    )
    assert "Paragraph 119" in measured
    assert "Paragraph 119" not in learnt
    assert "the end of its text is held out" in notes_of([domain], {"d": part}, 32)[0]


def test_one_huge_row_is_never_the_held_out_part(tmp_path):
    sentences = [f"Sentence {i} says {text}" for i, text in enumerate(tiny.texts(4000, seed=8, words=20))]
    huge, share = " ".join(sentences), 0.05
    while not is_held_out(Document(huge), share):
        huge += " x"
    assert len(huge) > 200_000
    domain = Domain(name="d", path=write(tmp_path / "a.jsonl", [*TEXTS[:5], huge, *TEXTS[5:10]]), validation=share)
    part = prepared(tmp_path, domain)
    assert part.end_held_out
    held_out, learnt = (part.counts[name].text_bytes for name in ("validation", "train"))
    assert held_out / (held_out + learnt) == pytest.approx(share, rel=0.2)
    assert notes_of([domain], {"d": part}, 32)[0].startswith("'d' has too few documents, or too unequal ones")


def test_a_share_that_cannot_be_kept_is_noted(tmp_path):
    rows = [{"text": f"q{i} " * 30, "a": "b " * (2 if i < 9 else 4000)} for i in range(10)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    domain = Domain(name="d", path=str(tmp_path / "a.jsonl"), target_column="a", validation=0.1)
    note = next(note for note in notes_of([domain], {"d": prepared(tmp_path, domain)}, 32) if "holds out" in note)
    assert "99.6 % of its text" in note
    assert "`validation: 0.1` asks for 10.0 %" in note
    assert "Split the long ones, or name a file" in note


def test_few_documents_hold_out_the_last_ones(tmp_path):
    texts = ["alpha " * 40, "beta " * 40, "gamma " * 40]
    domain = Domain(name="d", path=write(tmp_path / "a.jsonl", texts), validation=1e-9)
    own = OwnHeldOut(domain, 1e-9)  # no hash is that small
    assert own.kept_characters == pytest.approx(sum(map(len, texts)))
    own.share, own.kept_characters = 0.4, 0.6 * sum(map(len, texts))
    parts = [(document.text, held) for document, held in own.parted(document for document, _ in read_documents(domain))]
    assert "".join(text for text, _ in parts) == "".join(texts)
    assert [held for _, held in parts] == [False, False, True, True]
    assert parts[2][0].startswith("beta ")


def test_where_documents_fall_on_both_sides_nothing_changes(tmp_path):
    domain = Domain(name="d", path=write(tmp_path / "a.jsonl", TEXTS), validation=0.3)
    own = OwnHeldOut(domain, 0.3)
    assert own.kept_characters is None
    held = [document for document, held in own.parted(document for document, _ in read_documents(domain)) if held]
    assert held == [document for document, _ in read_documents(domain) if is_held_out(document, 0.3)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("aa aa. bb\ncc\n\ndd ee", "aa aa. bb\ncc\n\n"),
        ("aa aa. bb\ncc dd ee ff", "aa aa. bb\n"),
        ("aa aa bb. cc dd ee ff", "aa aa bb. "),
        ("aa aa bb cc dd ee ff", "aa aa bb "),
        ("a" * 20, "a" * 10),
    ],
)
def test_a_text_is_cut_at_the_best_place_near_by(text, first):
    assert cut(text, 10, 5) == (first, text[len(first) :])


def test_one_prompt_with_its_answer_cannot_be_parted(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "q " * 50, "a": "b " * 50}))
    with pytest.raises(DataError, match="validation: null"):
        prepared(tmp_path, Domain(name="d", path=str(tmp_path / "a.jsonl"), target_column="a"))


# -- several sources ------------------------------------------------------------------------------------------


def two(tmp_path: Path, **options) -> Domain:
    large, small = write(tmp_path / "large.jsonl", TEXTS[:90]), write(tmp_path / "small.jsonl", TEXTS[90:])
    sources = [{"path": large, "weight": 1}, {"path": small, "weight": 3}]
    return Domain(**{"name": "d", "sources": sources, "validation": 0.3} | options)


def test_sources_have_their_shares_of_the_tokens_at_every_moment(tmp_path):
    part = prepared(tmp_path, two(tmp_path))
    assert isinstance(part.train, Mixture)
    assert part.train.asked == {"large": 0.25, "small": 0.75}
    for count, _ in enumerate(islice(part.train, 200), 1):
        given = part.train.tokens["small"] / 32
        assert abs(given - 0.75 * count) <= 1
    assert part.train.size == sum(source.size for source in part.train.sources.values())
    assert part.documents == part.counts["train"].documents


def test_held_out_rows_of_sources_come_in_their_shares(tmp_path):
    part = prepared(tmp_path, two(tmp_path))
    alone = [prepared(tmp_path, each) for each in two(tmp_path).parts]
    rows = {
        name: {row["input_ids"].tobytes() for row in each.validation.take(range(each.validation.size))}
        for name, each in zip(("large", "small"), alone, strict=True)
    }
    got = [row["input_ids"].tobytes() for row in part.validation.take(range(part.validation.size))]
    small = sum(row in rows["small"] for row in got)
    assert small + sum(row in rows["large"] for row in got) == len(got) == len(set(got))
    assert abs(small / len(got) - 0.75) <= 1 / len(got) + 1e-9
    widths = [each.bytes_per_token for each in alone]
    assert min(widths) <= part.bytes_per_token <= max(widths)


def changing(tmp_path: Path, one: Any, other: Any) -> Domain:
    """The same two sources with other weights."""
    domain = two(tmp_path)
    paths = [source.path for source in domain.sources]
    sources = [{"path": path, "weight": weight} for path, weight in zip(paths, (one, other), strict=True)]
    return Domain(name="d", sources=sources, validation=0.3)


@pytest.mark.parametrize("blocks", [1, 2, 7, 150])
@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (({"start": 3, "end": 1}, {"start": 1, "end": 3}), (0.75, 0.25)),
        (({"start": 8, "end": 0}, 2), (0.8, 0.0)),
        ((1, {"start": 0, "end": 4}), (1.0, 0.2)),
    ],
)
def test_weights_that_change_give_the_shares_of_all_rows_so_far(tmp_path, weights, shares, blocks):
    """Reference: the sum of the shares of every row, from those of the first weights to those of the last ones."""
    part = prepared(tmp_path, changing(tmp_path, *weights))
    train = part.train.fresh(4).along(blocks)
    due = 0.0
    for row in range(blocks + 3):
        due += 32 * (shares[0] + (shares[1] - shares[0]) * min(1.0, row / max(1, blocks - 1)))
        next(train)
        assert abs(train.tokens["large"] - due) <= 32 * (1 + 1e-9)
        assert train.asked["large"] == pytest.approx(due / (32 * (row + 1)))
    mean = sum(shares) / 2
    assert part.train.asked == pytest.approx({"large": mean, "small": 1 - mean})
    held = [row["input_ids"].tobytes() for row in part.validation.take(range(part.validation.size))]
    alone = prepared(tmp_path, two(tmp_path).parts[0]).validation
    large = {row["input_ids"].tobytes() for row in alone.take(range(alone.size))}
    assert abs(sum(row in large for row in held) / len(held) - mean) <= 1 / len(held) + 1e-9


def test_weights_that_do_not_change_are_the_same_numbers_whatever_their_form(tmp_path):
    same = prepared(tmp_path, changing(tmp_path, {"start": 1, "end": 1}, 3)).train
    assert same.fingerprint == prepared(tmp_path, two(tmp_path)).train.fingerprint
    assert same.along(9) is same


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (({"start": 0, "end": 0}, 1), r"`sources\.0\.weight` is 0 from start to end: remove the source"),
        (({"start": 1, "end": 0}, {"start": 2, "end": 0}), "the `end` of every source's `weight` is 0"),
        (({"start": 0, "end": 1}, {"start": 0, "end": 2}), "the `start` of every source's `weight` is 0"),
        (({"start": 1}, 1), r"The recipe needs `domains\.0\.sources\.0\.weight\.end`"),
        (({"start": 1, "end": 2, "strat": 2}, 1), r"Unknown key `.*\.weight\.strat`\. Did you mean 'start'"),
        (({"start": -1, "end": 2}, 1), r"weight\.start` must be 0\.0 or more \(got -1\)"),
        ((-1, 1), r"weight` must be above 0"),
        ((True, 1), "must be a number, not true or false"),
    ],
)
def test_wrong_weights_are_named(tmp_path, weights, says):
    paths = [source.path for source in two(tmp_path).sources]
    sources = [{"path": path, "weight": weight} for path, weight in zip(paths, weights, strict=True)]
    raw = {"model": "none", "domains": [{"name": "d", "sources": sources}]}
    with pytest.raises(RecipeError, match=says):
        recipes.parse(raw)


def test_weights_of_general_text_cannot_change(tmp_path):
    def recipe(weight):
        sources = [{"path": two(tmp_path).sources[0].path, "weight": weight}]
        return {"model": "none", "domains": [{"name": "d", "path": "a.txt"}], "general": {"sources": sources}}

    with pytest.raises(RecipeError, match=r"write one number for each `weight` of `general\.sources`"):
        recipes.parse(recipe({"start": 1, "end": 2}))
    assert recipes.parse(recipe(2)).general is not None, "the advice"


def test_a_mixture_of_sources_goes_on_where_it_was(tmp_path):
    source = prepared(tmp_path, two(tmp_path)).train
    list(islice(source, 17))
    state = json.loads(json.dumps(source.state_dict()))
    expected = [block["input_ids"].tolist() for block in islice(source, 40)]
    again = prepared(tmp_path, two(tmp_path)).train
    again.load_state_dict(state)
    assert [block["input_ids"].tolist() for block in islice(again, 40)] == expected
    assert again.fresh(3).size == source.size


def test_the_same_sources_with_other_weights_are_another_domain(tmp_path):
    one, other = two(tmp_path), two(tmp_path)
    changed = other.model_copy(
        update={"sources": (other.sources[0], other.sources[1].model_copy(update={"weight": 2}))}
    )
    assert prepared(tmp_path, one).fingerprint == prepared(tmp_path, other).fingerprint
    assert prepared(tmp_path, one).fingerprint != prepared(tmp_path, changed).fingerprint


def test_sources_take_the_domains_columns_unless_they_have_their_own(tmp_path):
    sources = [{"path": "a.jsonl"}, {"path": "b.csv", "text_column": "body"}]
    domain = Domain(name="d", text_column="content", sources=sources)
    assert [part.text_column for part in domain.parts] == ["content", "body"]
    assert [part.name for part in domain.parts] == ["d.a", "d.b"]
    assert Domain.model_validate(domain.model_dump(mode="json")) == domain


def test_sources_of_one_name_are_told_apart():
    domain = Domain(name="d", sources=[{"path": "x/train.jsonl"}, {"path": "y/train.jsonl"}, {"path": "z/*.txt"}])
    assert domain.source_names == ["train-1", "train-2", "source-3"]


def test_a_held_out_file_is_that_of_the_whole_domain(tmp_path):
    held = write(tmp_path / "held.jsonl", tiny.texts(40, seed=9))
    part = prepared(tmp_path, two(tmp_path, validation=held))
    assert part.counts["validation"].documents == 40
    assert part.documents == 120


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs a `path`, or `sources`"),
        ({"path": "a", "sources": [{"path": "b"}]}, "both `path` and `sources`"),
        ({"sources": [{"path": "b"}], "max_documents": 5}, "`max_documents` belongs to each"),
        ({"sources": [{"path": "b", "weight": 0}]}, "greater than 0"),
        ({"sources": [{"path": "b", "weight": float("nan")}]}, "finite"),
    ],
)
def test_sources_that_cannot_be_meant_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        Domain(name="d", **options)


def test_a_recipe_places_sources_and_limits(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", TEXTS)
    monkeypatch.chdir(tmp_path)
    raw = {
        "model": "m",
        "domains": [{"name": "d", "sources": [{"path": "a.jsonl"}, {"path": "a.jsonl", "weight": 2}]}],
        "data": {"max_row_bytes": 4096, "max_expansion": 3},
    }
    recipe = recipes.parse(raw)
    assert [source.path for source in recipe.domains[0].sources] == [str(tmp_path / "a.jsonl")] * 2
    assert tuple(recipe.domains[0].parts[1].limits) == (4096, 3)
    assert recipes.parse(recipe.model_dump(mode="json")) == recipe


# -- learnt and measured --------------------------------------------------------------------------------------


def test_held_out_text_that_is_the_training_text_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", TEXTS)
    copy = write(tmp_path / "copy.jsonl", TEXTS)
    os.link(path, tmp_path / "hard.jsonl")
    (tmp_path / "soft.jsonl").symlink_to(path)
    for other in (path, copy, str(tmp_path / "hard.jsonl"), str(tmp_path / "soft.jsonl")):
        domain = Domain(name="d", path=path, validation=other)
        with pytest.raises(DataError, match="nothing would be held out"):
            check_corpus(domain)
        with pytest.raises(DataError, match="nothing would be held out"):
            prepared(tmp_path, domain)
    with pytest.raises(DataError, match="is the split that is trained on"):
        prepared(tmp_path, Domain(name="d", path="some/data", validation="train"))


def test_held_out_documents_that_are_trained_on_are_counted(tmp_path):
    path, held = write(tmp_path / "a.jsonl", TEXTS), write(tmp_path / "b.jsonl", [*tiny.texts(30, seed=5), *TEXTS[:10]])
    (leak,) = check_leaks([Domain(name="d", path=path, validation=held)], {}, tmp_path).leaks
    assert (leak.count, leak.identical, leak.of, leak.own) == (10, 10, 40, True)


def test_corpora_that_share_text_are_named_with_their_share(tmp_path):
    def domain(name: str, texts: list[str]) -> Domain:
        return Domain(name=name, path=write(tmp_path / f"{name}.jsonl", texts), validation=None)

    one, other = domain("one", TEXTS[:60]), domain("other", TEXTS[40:])
    general, apart = domain("general", TEXTS[:60]), domain("apart", tiny.texts(50, seed=3))
    corpora = [one, other, apart, general]
    check = check_leaks(corpora, {}, tmp_path)
    counts = {(pair.one, pair.other): pair.documents for pair in check.shared if pair.worth_saying}
    assert counts == {("one", "other"): 20, ("one", "general"): 60, ("other", "general"): 20}
    endings = [note.endswith("the drift of 'general' is not that of unseen text.") for note in check.notes("general")]
    assert endings == [False, True, True]
    prepared_all = {each.name: prepared(tmp_path, each) for each in corpora}
    assert notes_of(corpora, prepared_all, 32) == [f"'one' and 'general' read the same file, {tmp_path / 'one.jsonl'}."]
    assert check_leaks([one, apart], {}, tmp_path).notes() == []


# -- one pass -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [0, 3, 1000])
def test_a_stream_is_read_once_where_more_is_asked_for(tmp_path, buffer):
    corpus = Corpus(path=write(tmp_path / "a.jsonl", TEXTS[:40]), streaming=True, shuffle_buffer=buffer)
    stream = StreamedBlocks(corpus, tiny.tokenizer(), "decoder", 32, seed=0)
    every = [block["input_ids"].tobytes() for block in stream.once(1)]
    in_order = StreamedBlocks(corpus.model_copy(update={"shuffle_buffer": 0}), tiny.tokenizer(), "decoder", 32, seed=0)
    assert sorted(every) == sorted(block["input_ids"].tobytes() for block in in_order.once(1))
    assert len(every) == len(set(every)) > 20
    # As far as the pass goes, what an endless reading gives.
    endless = [block["input_ids"].tobytes() for block in islice(stream.fresh(1), max(0, len(every) - buffer))]
    assert every[: len(endless)] == endless
    assert next(stream)["input_ids"].size == 32  # the stream itself has not moved


def test_packed_blocks_and_mixtures_are_read_once(tmp_path):
    blocks = PackedBlocks({"input_ids": np.arange(40, dtype=np.int32).reshape(10, 4)}, seed=0, name="p")
    assert sorted(block["input_ids"][0] for block in blocks.once(5)) == list(range(0, 40, 4))
    corpus = Corpus(path=write(tmp_path / "a.jsonl", TEXTS[:40]), streaming=True)
    stream = StreamedBlocks(corpus, tiny.tokenizer(), "decoder", 32, seed=0)
    length = len(list(stream.once(0)))
    mixture = Mixture([("stream", stream, 0.5), ("other", prepared(tmp_path, two(tmp_path)).train, 0.5)])
    assert len(list(mixture.once(0))) in (2 * length, 2 * length + 1)


def test_a_stage_says_how_much_there_was_to_read():
    stage = stages.stage(tiny.model(), count=5)
    assert sum(len(batch["input_ids"]) for batch in stage.batches(3)) == 3
    assert stage.notes == []
    for _ in range(2):
        assert sum(len(batch["input_ids"]) for batch in stage.batches(10_000)) == 5
    assert stage.notes == ["'d1' has 5 rows, fewer than the 10,000 that a method would read; it reads all."]
