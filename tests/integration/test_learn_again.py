"""A domain that is learnt again: more steps, or more text, and scores on the held-out text that there was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe

import tiny
from everlearn.cli import main
from everlearn.config.recipe import Recipe, parse, save
from everlearn.data.corpus import document_key, is_held_out
from everlearn.data.documents import read_documents
from everlearn.errors import DataError, RecipeError
from everlearn.learner import ContinualLearner
from everlearn.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("no_report")


def changed(built: Recipe, **keys: Any) -> Recipe:
    """The recipe with a third stage that goes on with its first domain."""
    first = built.domains[0].name
    more = {"name": f"{first}-2", "continues": first, **keys}
    return built.changed(domains=[*(domain.model_dump(mode="json") for domain in built.domains), more])


@pytest.mark.parametrize("columns", ["all", "seen", "own"])
def test_more_steps_are_scored_on_the_domains_own_text(tmp_path: Path, columns: str) -> None:
    built = recipe(tmp_path, "gpt2", dropout=0.0)
    evaluation = built.evaluation.model_dump(mode="json") | {"columns": columns}
    built = changed(built.changed(evaluation=evaluation))
    results = ContinualLearner(built).run()
    first, second, again = (domain.name for domain in built.domains)
    scores = results.matrices["bits_per_byte"].estimates()
    assert {column for _, column in scores} == {first, second}
    assert scores[again, first].value < scores["base", first].value
    forgotten = results.summary["bits_per_byte"].forgotten
    assert results.summary["bits_per_byte"].learnt["mean"].value is not None, "domains count once"
    assert not [note for note in results.notes if "same file" in note or "share text" in note]
    assert forgotten[first].value == pytest.approx(scores[again, first].value - scores[first, first].value)


def test_what_was_held_out_is_not_learnt(tmp_path: Path) -> None:
    built = recipe(tmp_path, "gpt2", dropout=0.0)
    texts = tiny.texts(300, seed=9)
    old, grown = tmp_path / "old.jsonl", tmp_path / "grown.jsonl"
    for path, own in ((old, texts[:200]), (grown, texts)):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in own), encoding="utf-8")
    first = {"name": "news", "path": str(old), "validation": 0.2, "train": {"max_steps": 2}}
    built = built.changed(domains=[first, {"name": "news-2", "continues": "news", "path": str(grown)}])
    learner = ContinualLearner(built)
    kept = {document_key(document) for document, _ in read_documents(built.domains[0]) if is_held_out(document, 0.2)}
    train = learner.prepared("news-2")
    more = [document for document, _ in read_documents(built.domains[1])]
    assert kept
    assert train.documents == sum(not is_held_out(document, 0.2) for document in more)
    assert kept.isdisjoint(document_key(document) for document in more if not is_held_out(document, 0.2))
    assert "train" not in built.model_dump(exclude_unset=True)["domains"][1]


def test_one_long_text_that_has_grown_is_refused(tmp_path: Path) -> None:
    built = recipe(tmp_path, "gpt2", dropout=0.0)
    old, grown = tmp_path / "old.txt", tmp_path / "grown.txt"
    old.write_text(" ".join(tiny.texts(60, seed=1)))
    grown.write_text(" ".join(tiny.texts(120, seed=1)))
    first = {"name": "news", "path": str(old), "validation": 0.2}
    again = {"name": "news-2", "continues": "news"}
    assert ContinualLearner(built.changed(domains=[first, again])).prepared("news-2").end_held_out
    with pytest.raises(DataError, match=r"what 'news' held out would be learnt\. Learn the new text alone"):
        ContinualLearner(built.changed(domains=[first, again | {"path": str(grown)}])).prepared("news-2")
    copy = tmp_path / "copy.txt"
    copy.write_text(old.read_text())
    assert ContinualLearner(built.changed(domains=[first, again | {"path": str(copy)}])).prepared("news-2")


@pytest.mark.parametrize("lines", [False, True], ids=["one document", "now many documents"])
def test_text_that_has_grown_in_place_is_refused_where_its_end_was_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: bool
) -> None:
    text = tmp_path / "news.txt"
    text.write_text(" ".join(tiny.texts(60, seed=1)) + "\n")
    built = recipe(tmp_path, "gpt2", dropout=0.0)
    built = built.changed(domains=[{"name": "news", "path": str(text), "validation": 0.2, "train": {"max_steps": 2}}])
    ContinualLearner(built).run()
    call = ["learn", str(built.folder()), "--more", "news", "train.max_steps=2"]
    assert main(call) == 0, "the same text may be learnt again"
    before = text.read_text()
    text.write_text(before + ("\n" if lines else " ").join(tiny.texts(400 if lines else 60, seed=2)))
    capsys.readouterr()
    assert main(call) == 2
    assert "what 'news' held out would be learnt" in capsys.readouterr().err
    assert len(ContinualLearner.open(built.folder()).recipe.domains) == 2


def test_where_the_text_is_is_not_taken_over_by_other_text() -> None:
    first = {"name": "a", "path": "owner/data", "subset": "en", "split": "dev", "revision": "1", "max_documents": 5}
    again = {"name": "a-2", "continues": "a"}
    columns = {"text_column": "body", "validation": 0.2}
    for text in ({"path": "new.jsonl"}, {"sources": [{"path": "b.jsonl"}, {"path": "c.jsonl", "weight": 2}]}):
        _, more = parse({"model": "x", "domains": [first | columns, again | text]}).domains
        assert (more.subset, more.split, more.revision, more.max_documents) == (None, "train", None, None)
        assert (more.text_column, more.validation) == ("body", 0.2)
    _, same = parse({"model": "x", "domains": [first | columns, again]}).domains
    assert (same.path, same.subset, same.split, same.max_documents) == ("owner/data", "en", "dev", 5)


def test_a_look_at_the_data_of_a_domain_that_is_learnt_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = changed(recipe(tmp_path, "gpt2"))
    save(built, tmp_path / "recipe.yaml")
    assert main(["data", str(tmp_path / "recipe.yaml")]) == 0
    assert "first-2" in capsys.readouterr().out


def test_a_finished_run_learns_more_of_a_domain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = recipe(tmp_path, "gpt2", dropout=0.0)
    ContinualLearner(built).run()
    first = built.domains[0].name
    url = f"file://{Path(built.domains[0].path).resolve()}"
    for number, more in enumerate((first, f"{first}-2={url}"), 2):
        assert main(["learn", str(built.folder()), "--more", more, "train.max_steps=2", "--json"]) == 0
        assert ContinualLearner.open(built.folder()).recipe.domains[-1].name == f"{first}-{number}"
    whole = ContinualLearner.open(built.folder()).recipe
    assert whole.domains[-1].path == url
    assert main(["learn", str(built.folder()), "--domain", f"{first}={url}"]) == 2
    assert f"`everlearn learn {built.folder()} --more {first}`" in capsys.readouterr().err
    assert main(["learn", str(built.folder()), "--more", f"{first}x"]) == 2
    assert re.search(
        rf"`--more {first}x`: .* has no domain '{first}x'. Did you mean '{first}'\?$", capsys.readouterr().err.strip()
    )
    assert [domain.learns for domain in whole.domains] == [*(each.name for each in built.domains), first, first]
    folder = RunFolder(built.folder())
    assert all(folder.finished(number, domain.name) for number, domain in enumerate(whole.domains, 1))


@pytest.mark.parametrize(
    ("domain", "method", "words"),
    [
        ({"name": "b", "continues": "c"}, "sequential", "continues 'c', which is no domain before it"),
        ({"name": "b", "continues": "nws"}, "sequential", "Did you mean 'news'"),
        ({"name": "b", "continues": "news", "validation": 0.5}, "sequential", "remove its `validation`"),
        ({"name": "b", "continues": "news"}, "dap_adapter", "method 'dap_adapter' evaluates a text with parameters of"),
    ],
)
def test_what_cannot_be_learnt_again_is_refused(domain: dict[str, Any], method: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse({"model": "x", "domains": [{"name": "news", "path": "a.txt"}, domain], "method": method})


def test_what_continues_is_not_continued_itself() -> None:
    domains = [{"name": "news", "path": "a.txt"}, {"name": "b", "continues": "news"}, {"name": "c", "continues": "b"}]
    with pytest.raises(RecipeError, match="which continues 'news' itself: write `continues: news`"):
        parse({"model": "x", "domains": domains})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Give --domain NAME=PATH"),
        (["--domain", "a=b.txt", "--more", "a"], "Give --domain NAME=PATH"),
        (["--more", "a", "--into", "x"], "Leave --into out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["learn", str(tmp_path), *options]) == 2
    assert words in capsys.readouterr().err
