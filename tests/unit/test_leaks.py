"""Text that is both measured on and learnt, and what `everlearn data` finds: planted duplicates, and nothing else."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import tiny
from cli_project import Project
from everlearn.cli.data import shortened
from everlearn.commands import data_report
from everlearn.config import recipe as recipes
from everlearn.data import leaks, near_duplicates
from everlearn.data.corpus import Domain
from everlearn.data.leaks import check_leaks
from everlearn.data.near_duplicates import NearDuplicates, Probes, Sketch
from everlearn.data.shingles import words_of
from everlearn.report.html import with_code
from everlearn.tasks.held_out import HeldOut


@pytest.fixture
def corpora(tmp_path: Path) -> list[Domain]:
    """A domain of which 3 held-out documents are near-duplicates of training text, and one that shares nothing."""
    a, b = texts(60, "a"), texts(40, "b")
    near = [" ".join([*text.split()[:55], *words(5, text).split()]) for text in a[:3]]
    held_out = write(tmp_path / "held.jsonl", [*texts(9, "h"), *near, "too short"])
    return [
        Domain(name="a", path=write(tmp_path / "a.jsonl", a), validation=held_out),
        Domain(name="b", path=write(tmp_path / "b.jsonl", b), validation=None),
    ]


def test_near_duplicates_are_found_though_no_document_is_identical(corpora, tmp_path):
    check = check_leaks(corpora, {"test examples of 't'": [*texts(6, "b")[:2], *texts(8, "t")]}, tmp_path / "cache")
    assert [(leak.texts, leak.corpus, leak.own, leak.count, leak.identical, leak.of) for leak in check.leaks] == [
        ("held-out documents of 'a'", "a", True, 3, 0, 12),
        ("test examples of 't'", "b", False, 2, 2, 10),
    ]
    assert check.looked_for == {"held-out documents of 'a'": 12, "test examples of 't'": 10}
    assert check.partial == []


def test_the_outcome_is_kept_and_made_again_where_the_text_changes(corpora, tmp_path, monkeypatch):
    told: list[list[int]] = []

    @contextlib.contextmanager
    def phase(text, total):
        told.append([])
        yield told[-1].append

    first = check_leaks(corpora, {}, tmp_path / "cache", phase)
    assert told[0][-1] == 100
    assert check_leaks(corpora[::-1], {}, tmp_path / "cache", phase).leaks == first.leaks
    assert len(told) == 1
    (kept,) = (tmp_path / "cache" / "leaks").iterdir()
    kept.write_text("{")
    assert check_leaks(corpora, {}, tmp_path / "cache", phase) == first
    assert len(told) == 2
    write(tmp_path / "held.jsonl", texts(9, "h"))
    assert check_leaks(corpora, {}, tmp_path / "cache", phase).leaks == []


def test_of_much_text_a_part_is_looked_at_and_the_rest_is_named(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, "LOOKED_FOR", 2000)
    monkeypatch.setattr(leaks, "SEARCHED", 5000)
    monkeypatch.setattr(leaks, "STREAMED", 3000)
    streamed = [corpora[0], corpora[1].model_copy(update={"streaming": True})]
    check = check_leaks(streamed, {}, tmp_path / "cache")
    assert 3 <= check.looked_for["held-out documents of 'a'"] <= 6
    assert [note.partition(" were")[0] for note in check.partial[:1]] == [
        f"Of the 13 held-out documents of 'a', {check.looked_for[leaks.held_out_of('a')]:,}"
    ]
    assert "'a' alone" in check.partial[1]
    assert "'b' alone" in check.partial[2]
    assert check.notes()[-3:] == check.partial


def test_a_template_that_all_prompts_share_is_no_leak(tmp_path):
    template = "What is the topic of the following text from the news? Options are world, sports, business or science. "

    def prompts(count: int, name: str) -> list[str]:
        return [template + text for text in texts(count, name, 15)]

    corpus = Domain(name="a", path=write(tmp_path / "a.jsonl", prompts(200, "a")), validation=None)
    tests = {"test examples of 't'": [*prompts(93, "t"), *prompts(7, "a")]}
    (leak,) = check_leaks([corpus], tests, tmp_path / "cache").leaks
    assert (leak.count, leak.of) == (7, 100)


# -- all three commands ---------------------------------------------------------------------------------------


def said_by_all(everlearn) -> dict[str, list[str]]:
    """What `data`, `validate` and `run` (its report in JSON, its page and its data.json) say about the text."""
    data = json.loads(everlearn("data", "recipe.yaml", "--json").out)["findings"]
    checked = json.loads(everlearn("validate", "recipe.yaml", "--json").out)
    assert checked["ok"], checked
    ran = everlearn("run", "recipe.yaml")
    assert ran.code == 0, ran.err
    shown = everlearn("validate", "recipe.yaml", "run.name=second")
    for note in checked["notes"]:
        assert note.split(":")[0] in " ".join(shown.out.split())
    folder = everlearn.run_folder
    page = (folder / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    markdown = everlearn("report", "runs/first", "--format", "markdown").out
    kept = json.loads((folder / "data.json").read_text())["notes"]
    for note in kept:
        assert str(with_code(note)).replace("&#39;", "'") in page
        assert note.partition("`")[0] in markdown.replace("\\", "")
    report = json.loads(everlearn("report", "runs/first", "--json").out)["notes"]
    return {"data": data, "validate": checked["notes"], "run": kept, "report": report}


def by_all(said: dict[str, list[str]], *parts: str) -> None:
    """Check that each command has one sentence with these parts, and the same one."""
    sentences = [[note for note in notes if all(part in note for part in parts)] for notes in said.values()]
    assert [len(each) for each in sentences] == [1] * len(said), said
    assert len({each[0] for each in sentences}) == 1


def test_a_leak_is_said_by_data_validate_and_run(everlearn):
    a = texts(60, "a")
    near = [" ".join([*text.split()[:55], *words(5, text).split()]) for text in a[:3]]
    write(everlearn.folder / "a.jsonl", a)
    write(everlearn.folder / "held.jsonl", [*texts(9, "h"), *near])
    everlearn.recipe["domains"][0]["validation"] = "held.jsonl"
    everlearn.recipe["train"]["max_steps"] = 1
    said = said_by_all(everlearn)
    by_all(said, "3 of the 12 held-out documents of 'a' occur in its own training text (25.0 %)", "`validation`")
    results = json.loads((everlearn.run_folder / "results.json").read_text())
    assert results["leaked"] == {"a": 0.25}
    verdict = json.loads(everlearn("report", "runs/first", "--json").out)["verdict"]
    assert "Some held-out text also occurs in training text (25 % of 'a')" in " ".join(verdict)
    everlearn.recipe["data"]["max_leaked"] = 0.2
    everlearn.recipe["run"]["name"] = "third"
    everlearn.fails("run", "recipe.yaml", says=("3 of the 12 held-out", "20.0 % (`data.max_leaked`)"))


def test_the_sentence_of_one_leak_is_in_the_singular():
    said = str(leaks.Leak("held-out documents of 'a'", corpus="a", own=True, count=1, identical=0, of=8))
    assert "1 of the 8 held-out documents of 'a' occurs in" in said
    assert "it is scored" in said


def test_examples_that_are_cut_are_counted_by_data_validate_and_run(everlearn):
    rows = [{"text": words(3 + number, number), "answer": words(2, number)} for number in range(30)]
    (everlearn.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "target_column": "answer", "validation": 0.2}]
    everlearn.recipe["model"] = str(everlearn.models / "llama")
    everlearn.recipe["train"]["max_steps"] = 1
    said = said_by_all(everlearn)
    tokenizer = tiny.tokenizer()
    lengths = [len(tokenizer(row["text"] + row["answer"])["input_ids"]) for row in rows]
    assert sum(length > 40 for length in lengths) > 15
    by_all(said, "of the 30 examples of 'a' are longer than a row and cut in their prompt", "`data.block_size`")


def test_a_huge_held_out_row_is_mended_alike(everlearn):
    huge = " ".join(texts(100, "huge"))
    write(everlearn.folder / "a.jsonl", [*texts(3, "a", 5), huge])
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "validation": 0.3}]
    everlearn.recipe["train"]["max_steps"] = 1
    said = said_by_all(everlearn)
    by_all(said, "'a' has too few documents, or too unequal ones", "the end of its text")


def test_a_share_that_is_far_off_is_said_by_all(everlearn):
    rows = [{"text": words(4, number), "answer": words(1 if number < 9 else 400, number)} for number in range(10)]
    (everlearn.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "target_column": "answer", "validation": 0.1}]
    everlearn.recipe["model"] = str(everlearn.models / "llama")
    everlearn.recipe["train"]["max_steps"] = 1
    by_all(said_by_all(everlearn), "'a' holds out 9", "`validation: 0.1` asks for 10.0 %")


@pytest.mark.parametrize("streaming", [False, True])
def test_text_shorter_than_a_row_is_refused_before_training(everlearn, streaming):
    write(everlearn.folder / "a.jsonl", ["one two", "three four"])
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "validation": None, "streaming": streaming}]
    said = ("'a' has ", "tokens to learn from, fewer than one block (`data.block_size: 32`)")
    everlearn.fails("run", "recipe.yaml", says=said)
    assert not everlearn.run_folder.exists()
    checks = json.loads(everlearn("validate", "recipe.yaml", "--json").out)["checks"]
    (sentence,) = (check["detail"] for check in checks if check["ok"] is False)
    assert all(part in sentence for part in said)
    assert json.loads(everlearn("data", "recipe.yaml", "--json").out)["findings"][0] == sentence


def test_what_an_earlier_domain_held_out_is_looked_for_in_a_new_one(everlearn, finished_run):
    shutil.copytree(finished_run, everlearn.run_folder)
    rows = HeldOut.load(everlearn.run_folder / "evaluation/sets/a.safetensors").blocks
    old = [tiny.tokenizer().decode(row["input_ids"], skip_special_tokens=True) for row in rows.take(range(4))]
    with (everlearn.folder / "c.jsonl").open("a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in old)
    learnt = everlearn("learn", "runs/first", "--domain", "c=c.jsonl", "train.max_steps=1", "-q")
    assert learnt.code == 0, learnt.err
    notes = json.loads((everlearn.run_folder / "data.json").read_text())["notes"]
    assert [note for note in notes if "held-out rows of 'a' occur in the training text of 'c'" in note]


@pytest.mark.parametrize(
    ("leak", "says"),
    [
        (
            ("a", True, 1, 1, 4),
            "1 of the 4 held-out documents of 'a' occurs in its own training text, verbatim (2",
        ),
        (
            ("b", False, 1, 0, 1),
            "The only held-out document of 'a' occurs in the training text of 'b' (100.0 %): it is ",
        ),
        (
            ("a", True, 2, 1, 4),
            "2 of the 4 held-out documents of 'a' occur in its own training text, 1 of them verbatim",
        ),
    ],
)
def test_a_sentence_has_the_number_of_its_noun(leak, says):
    assert str(leaks.Leak("held-out documents of 'a'", *leak)).startswith(says)


def test_what_was_looked_for_is_told_in_singular_and_plural_and_nothing_as_nothing():
    looked_for = {"held-out documents of 'a of b'": 1, "test examples of 't'": 2, "held-out rows of 'c'": 0}
    assert leaks.LeakCheck(looked_for=looked_for, characters=12).scope() == (
        "looked for 1 held-out document of 'a of b', 2 test examples of 't' in 12 B of training text"
    )
    assert leaks.LeakCheck(characters=12).scope() == "no held-out text to look for"


def words(count: int, seed: object) -> str:
    chance = random.Random(str(seed))
    return " ".join(
        "".join(chance.choice("bcdfghklm") + chance.choice("aeiou") for _ in range(3)) for _ in range(count)
    )


def texts(count: int, name: str, length: int = 60) -> list[str]:
    return [words(length, (name, number)) for number in range(count)]


def write(path: Path, documents: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return str(path)


# -- runs of words --------------------------------------------------------------------------------------------


def plain_words(text: str) -> list[str]:
    """The slow way: what stands between other characters, in lower case."""
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()


@pytest.mark.parametrize("length", [1, 2, 5])
def test_runs_are_the_same_exactly_where_the_words_are(length):
    documents = ["The cat, the CAT: the\ncat!", "", "a", "où est le chat – où?", "x “the cat” y", words(300, 1)]
    found = words_of(documents)
    slow = [plain_words(text) for text in documents]
    assert found.counts().tolist() == [len(each) for each in slow]
    expected = [
        (number, tuple(each[i : i + length])) for number, each in enumerate(slow) for i in range(len(each) - length + 1)
    ]
    hashes, document = found.runs(length)
    assert document.tolist() == [number for number, _ in expected]
    by_words = {}
    for hash_, (_, run) in zip(hashes.tolist(), expected, strict=True):
        assert by_words.setdefault(run, hash_) == hash_
    assert len(set(by_words.values())) == len(by_words)


def test_writing_without_blanks_has_a_word_for_each_character():
    assert words_of(["这是一只猫。", "ねこ"]).counts().tolist() == [6, 2]


def test_long_documents_are_worked_on_in_pieces(monkeypatch):
    from everlearn.data import shingles

    text = words(500, 2)
    whole = set(words_of([text, "b"]).runs(3)[0].tolist())
    monkeypatch.setattr(shingles, "PIECE", 700)
    parts = words_of([text, "b"])
    assert parts.documents == 2
    found = parts.runs(3)[0].tolist()
    assert len(whole & set(found)) > 0.97 * len(whole)


def test_near_duplicates_are_counted_and_others_are_not():
    documents = texts(300, "n", 200)
    near = []
    for number, text in enumerate(documents[:40]):
        changed = text.split()
        changed[17 * number % 200] = "changed"
        near.append(" ".join(changed))  # shares 190 of 202 runs of five words
    found = NearDuplicates()
    found.add(words_of(documents))
    assert found.count() == 0
    found.add(words_of([*near, "", "too short"]))
    assert found.count() == 40


def test_a_sketch_says_what_share_stands_in_another(monkeypatch):
    documents = texts(100, "s")
    one, other = Sketch(), Sketch()
    one.add(words_of(documents))
    other.add(words_of(documents[:25]))
    assert (one.share_in(other), other.share_in(one), one.sampled) == (0.25, 1.0, 1)
    monkeypatch.setattr(near_duplicates, "KEPT", 500)  # of 4,800 runs
    small = Sketch()
    for start in range(0, 100, 10):
        small.add(words_of(documents[start : start + 10]))
    assert small.sampled in (8, 16)
    assert len(small.runs) <= 1000
    assert small.share_in(other) == pytest.approx(0.25, abs=0.08)
    assert Sketch().share_in(one) == 0


def test_a_text_stands_in_a_corpus_where_half_of_its_runs_do():
    corpus = texts(20, "c")
    first, second = corpus[0].split(), corpus[1].split()
    cases = {
        corpus[0]: True,
        corpus[0].upper().replace(" ", ", "): True,
        " ".join(first[:40] + words(10, "x").split()): True,
        " ".join(first[:20] + words(40, "y").split()): False,
        " ".join(second[5:12]): True,  # seven words, one run
        words(7, "z"): False,
    }
    for text, expected in cases.items():
        probes = Probes()
        probes.add("it", words_of([text]))
        search = probes.search()
        search.add(words_of(corpus))
        assert search.contained() == {"it": (int(expected), 0)}, text
    probes = Probes()
    probes.add("few", words_of(["only four words here"]))
    assert probes.counts == {"few": 0}


# -- the whole ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(everlearn: Project) -> Project:
    """Two domains with planted faults, general text, and an end task."""
    a, b, general = texts(100, "a"), texts(80, "b"), texts(50, "g")
    write(everlearn.folder / "a.jsonl", [*a, a[7], a[7], a[9]])
    (everlearn.folder / "a.jsonl").open("a").write('{"text": null}\n{"id": 3}\n')
    write(everlearn.folder / "held.jsonl", [*texts(30, "held"), *a[:3], a[10] + " " + words(20, "tail")])
    write(everlearn.folder / "b.jsonl", [*b, *a[90:]])
    write(everlearn.folder / "general.jsonl", general)
    long = [words(200, ("long", number)) for number in range(5)]
    near = [" ".join(["new", *text.split()[1:]]) for text in long]
    write(everlearn.folder / "c.jsonl", [*texts(60, "c"), *long, *near])
    leaked = [b[0], " ".join(b[1].split()[:20])]
    for name, rows in (("train", tiny.texts(20, 50)), ("test", [*tiny.texts(10, 51), *leaked])):
        labelled = [{"text": text, "label": "xy"[number % 2]} for number, text in enumerate(rows)]
        (everlearn.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    everlearn.recipe |= {
        "domains": [
            {"name": "a", "path": "a.jsonl", "validation": "held.jsonl"},
            {"name": "b", "path": "b.jsonl", "validation": None},
            {"name": "c", "path": "c.jsonl", "validation": None},
        ],
        "general": {"path": "general.jsonl", "validation": None},
        "end_tasks": [{"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}],
    }
    return everlearn


def test_planted_faults_are_found_in_exact_numbers(project):
    outcome = project("data", "recipe.yaml", "--json")
    assert outcome.code == 0, outcome
    found = json.loads(outcome.out)
    corpora = {corpus["name"]: corpus for corpus in found["corpora"]}
    assert [corpora[name]["documents"] for name in ("a", "b", "c", "general")] == [103, 90, 70, 50]
    assert [corpora[name]["duplicates"] for name in ("a", "b", "c", "general")] == [3, 0, 0, 0]
    assert [corpora[name]["near_duplicates"] for name in ("a", "b", "c", "general")] == [0, 0, 5, 0]
    assert [corpora[name]["skipped"] for name in ("a", "b")] == [2, 0]
    assert corpora["a"]["held_out"] == 34
    rows = [json.loads(line).get("text") for line in (project.folder / "a.jsonl").read_text().splitlines()]
    assert corpora["a"]["bytes"] == sum(len(text.encode()) for text in rows if text)
    tokenizer = tiny.tokenizer()
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in rows if text]
    assert corpora["a"]["tokens"] == sum(lengths)
    assert corpora["a"]["lengths"] == [int(x) for x in np.quantile(lengths, data_report.QUANTILES, method="nearest")]
    assert sum(count for _, count in corpora["a"]["histogram"]) == 103
    assert corpora["a"]["longer"] == sum(length > 32 for length in lengths)
    assert not corpora["a"]["about"]
    assert found["findings"] == [
        "2 rows of 'a' hold no text (null or blank) and were skipped.",
        "4 of the 34 held-out documents of 'a' occur in its own training text, 3 of them verbatim (11.8 %): they "
        "are scored as text that was learnt. Remove the duplicates from the corpus, or name a file of other text in "
        "`validation`.",
        "2 of the 12 test examples of 'topics' occur in the training text of 'b', 1 of them verbatim (16.7 %): "
        "they are scored as text that was learnt. Remove them from one of the two.",
        "'a' and 'b' share text: 10 identical documents, 10.0 % of the runs of 13 words of the first and "
        "11.1 % of the second.",
    ]
    assert "held-out text not in training text note" in " ".join(project("validate", "recipe.yaml").out.split())
    checked = json.loads(project("validate", "recipe.yaml", "--json").out)
    assert (checked["ok"], sorted(checked["notes"])) == (True, sorted(found["findings"]))
    shares = {(one, other): share for one, other, share in found["shared"]}
    assert shares["a", "b"] == pytest.approx(0.1)
    assert shares["general", "a"] == shares["c", "b"] == 0


def test_for_people_it_is_all_there(project):
    outcome = project("data", "recipe.yaml")
    assert outcome.code == 0, outcome
    for part in ("103 documents", "3 are the same as an earlier one", "2 rows without text", "longer than a row of 32"):
        assert part in outcome.out
    assert "To look at" in outcome.out
    assert "4 of the 34 held-out" in outcome.out
    assert not project.run_folder.exists()


def test_where_nothing_is_wrong_it_says_so(everlearn):
    for name in "ab":
        write(everlearn.folder / f"{name}.jsonl", texts(80, name))
    outcome = everlearn("data", "recipe.yaml")
    assert outcome.code == 0, outcome
    assert "No evaluation text was found in training text, and no two corpora share text." in outcome.out


def test_of_much_text_it_looks_at_a_part_and_says_so(project, monkeypatch):
    monkeypatch.setattr(data_report, "MOST", 60)
    monkeypatch.setattr(data_report, "TOKENISED", 20)
    project.write()
    monkeypatch.chdir(project.folder)
    found = data_report.survey(recipes.load("recipe.yaml")).corpora[0]
    assert (found.documents, found.whole, found.about) == (60, False, True)
    exact = sum(len(tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]) for text in texts(60, "a"))
    assert found.tokens == pytest.approx(exact, rel=0.05)


def test_wrapped_lines_are_noticed(everlearn):
    prose = " ".join(texts(40, "prose"))
    (everlearn.folder / "a.txt").write_text("\n".join(prose[at : at + 70] for at in range(0, len(prose), 70)))
    everlearn.recipe["domains"][0]["path"] = "a.txt"
    for command in ("data", "validate"):
        outcome = everlearn(command, "recipe.yaml")
        assert " ".join((outcome.out + outcome.err).split()).count("lines of 'a' look like parts of") == 1, outcome


def test_samples_show_their_white_space():
    assert shortened("a\tb\r\nc\n\x07") == "a→b⏎c⏎�"
    assert shortened("x" * 500) == "x" * 200 + "…"


@pytest.mark.parametrize("validation", ["held.jsonl", 0.01])
def test_held_out_text_shorter_than_a_row_is_found_as_validate_finds_it(everlearn, validation):
    for name in "ab":
        write(everlearn.folder / f"{name}.jsonl", texts(20, name, 10) if name == "a" else texts(80, name))
    write(everlearn.folder / "held.jsonl", ["a few words"])
    everlearn.recipe["domains"][0]["validation"] = validation
    checked = everlearn("validate", "recipe.yaml")
    assert checked.code == 2, checked
    findings = json.loads(everlearn("data", "recipe.yaml", "--json").out)["findings"]
    (sentence,) = [each for each in findings if each.startswith("The held-out text of 'a'")]
    assert f"{validation}`) has" in sentence
    assert "fewer than one block (`data.block_size: 32`)" in sentence
    told = sentence[sentence.index("`) has") :]  # a long path is broken over lines
    assert "".join(told.split()) in "".join((checked.err + checked.out).split())


def test_a_corpus_of_one_document_is_told_in_the_singular(everlearn):
    for name in "ab":
        write(everlearn.folder / f"{name}.jsonl", texts(1 if name == "a" else 80, name, 400))
        everlearn.recipe["domains"]["ab".index(name)]["validation"] = None
    outcome = everlearn("data", "recipe.yaml")
    assert outcome.code == 0, outcome
    for part in ("1 document, 2.8 kB", "1 (100.0 %) is longer than a row", "No held-out text to look for."):
        assert part in outcome.out, outcome.out
    checked = " ".join(everlearn("validate", "recipe.yaml").out.split())
    assert "no held-out text to look for" in checked
    assert "looked for nothing" not in checked
