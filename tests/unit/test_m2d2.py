"""The suite `m2d2`: what names say, how corpora are read, and which documents repeat others."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from everlearn.config import addresses
from everlearn.config.recipe import Recipe, load, parse
from everlearn.errors import DataError, RecipeError
from everlearn.evaluation import make_task
from everlearn.files import read_json
from everlearn.grid.grid import Grid
from everlearn.run.measurement_plan import wanted_tasks
from everlearn_bench import suites
from everlearn_bench.suites import SUITES, Overlay, overlay_of
from everlearn_bench.suites.m2d2 import builtin_corpus, corpus_folders, domain_names, ordering, stream
from everlearn_bench.suites.m2d2.domain_names import Branch, branch_of
from everlearn_bench.suites.m2d2.options import StreamOptions
from everlearn_bench.suites.m2d2.suite import VARIABLE

SUITE = SUITES["m2d2"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


def lines(seed: int, count: int = 12, word: str = "") -> list[str]:
    """Texts of thirty words, with a word of their own here and there."""
    found = tiny.texts(count, seed, words=30)
    drawn = random.Random(seed)
    return [
        " ".join(w for each in text.split() for w in (each, *([word] if drawn.random() < 0.2 else [])))
        for text in found
    ]


def write_parts(folder: Path, seed: int, train: int = 30, word: str = "") -> None:
    folder.mkdir(parents=True)
    for offset, (part, count) in enumerate((("train", train), ("valid", 6), ("test", 6))):
        text = "\n".join(lines(1000 * seed + offset, count, word)) + "\n"
        (folder / f"{part}.txt").write_text(text, encoding="utf-8")


def tarred(folder: Path, name: str) -> None:
    """A folder of a domain as M2D2's own tarball."""
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as tar:
        for part in ("test", "train", "valid"):
            content = (folder / name / f"{part}.txt").read_bytes()
            info = tarfile.TarInfo(f"./{name}/{part}.txt")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    for file in (folder / name).iterdir():
        file.unlink()
    (folder / name).rmdir()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eight of M2D2's domains, two of them aliases of two others, one L1, a junk file, tarballs and folders."""
    folder = tmp_path / "m2d2"
    wiki = ("Health_and_fitness", "Health_and_fitness__Exercise", "Philosophy_and_thinking__Thinking")
    for seed, name in enumerate((*wiki, "cs.CL", "cs.NA", "math.NA", "hep-ph", "eval_sets"), 1):
        write_parts(folder / name, seed, word=name[:6])
    for name in ("cs.CL", "Health_and_fitness__Exercise"):
        tarred(folder, name)
    return folder


def settings(**keys: object) -> Overlay:
    return overlay_of({"model": "m", "train": {"max_steps": 2}, "suite": keys})


def recipe(data: Path | None, order: object = None, own: Overlay | None = None) -> Recipe:
    suite = SUITE.on(own or settings(), data)
    names = suite.first if order is None else order
    return parse(suite.recipe(names, method=[{"name": "sequential"}], seed=0, name="x", folder=Path("x")))  # type: ignore[arg-type]


def _bound(own: Overlay, data: Path) -> Any:
    return SUITE.on(own, data).stream_data


# -- names ------------------------------------------------------------------------------------------------------------


def test_the_taxonomy_has_the_parts_that_the_data_set_lists() -> None:
    """236 of 239 names: 13 + 38 of Wikipedia, 11 L1, 146 with a dot and 28 without of S2ORC; 22 groups."""
    found = list(domain_names.NAMES)
    wiki = [name for name in found if branch_of(name).super_domain == domain_names.WIKI]
    assert (len(wiki), sum("__" in name for name in wiki)) == (51, 38)
    papers = [name for name in found if name not in wiki]
    kinds = [name.endswith("_l1") for name in papers].count(True), ["." in name for name in papers].count(True)
    assert (*kinds, len(papers)) == (11, 146, 185)
    with_parts = {branch_of(name).group for name in found if branch_of(name).level == 2}
    assert len(with_parts) == 22
    assert {branch_of(name).group for name in found} - with_parts == {"Art", "Philosophy"}
    assert branch_of("General_referece__Reference_works") == Branch("wiki", "General_referece", 2)
    assert branch_of("cmp-lg").group == "cs"
    assert all(alias in found and name in found for alias, name in domain_names.ALIASES.items())
    with pytest.raises(DataError, match=r"'cs.CLL' is no domain of M2D2. Did you mean 'cs.CL'"):
        branch_of("cs.CLL")


# -- layouts ----------------------------------------------------------------------------------------------------------


def test_m2d2s_own_layout_is_read_from_tarballs_and_folders(data: Path) -> None:
    (data / ".partial.cs.AI.tar.gz").write_bytes(b"half of what is being fetched")
    made = recipe(data)
    assert [domain.name for domain in made.domains] == [
        "Health_and_fitness__Exercise", "Philosophy_and_thinking__Thinking", "cs.CL", "math.NA", "hep-ph",
    ]  # fmt: skip
    assert [domain.group for domain in made.domains] == ["wiki", "wiki", "S2ORC", "S2ORC", "S2ORC"]
    assert made.data.isolate_documents is False
    texts = [json.loads(line)["text"] for line in Path(made.domains[2].path).read_text().splitlines()]
    assert texts == lines(4000, 30, "cs.CL")  # the lines stay in their order
    assert str(made.domains[2].validation).endswith("test.jsonl")
    assert any("second names of a category: cs.NA (math.NA)" in note for note in made.run.notes)
    (data / "hep-ph" / "valid.txt").unlink()
    with pytest.raises(DataError, match=r"lacks 'valid.txt'"):
        corpus_folders.read_folder(data)


def test_levels_never_mix_and_aliases_can_be_kept(data: Path) -> None:
    assert [d.name for d in recipe(data, own=settings(level=1)).domains] == ["Health_and_fitness"]
    assert {"cs.NA", "math.NA"} <= {d.name for d in recipe(data, own=settings(aliases="keep")).domains}
    chosen = recipe(data, own=settings(domains=["wiki", "cs.NA", "physics"], aliases="keep"))
    assert [d.name for d in chosen.domains][-2:] == ["cs.NA", "hep-ph"]
    with pytest.raises(RecipeError, match=r"`suite.domains` names 'hep-pf'.*Did you mean 'hep-ph'"):
        recipe(data, own=settings(domains=["hep-pf"]))
    with pytest.raises(RecipeError, match=r"names 'Health_and_fitness__Exercise'.* It is of level 2"):
        recipe(data, own=settings(level=1, domains=["Health_and_fitness__Exercise"]))
    assert [d.name for d in recipe(data, own=settings(domains=["cs"])).domains] == ["cs.CL", "cs.NA"]
    with pytest.raises(RecipeError, match="no domain of level 1"):
        stream.choose(corpus_folders.Taxonomy(corpus_folders.read_folder(data).leaves[1:]), StreamOptions(level=1))


def test_folders_of_ones_own_say_super_domain_and_group(tmp_path: Path) -> None:
    for seed, place in enumerate(("law/cases", "law/statutes", "health/clinic/notes", "health/clinic/letters"), 1):
        write_parts(tmp_path / "own" / place, seed)
    write_parts(tmp_path / "own" / "general", 9)
    made = recipe(tmp_path / "own")
    assert [(d.name, d.group) for d in made.domains] == [
        ("letters", "health"), ("notes", "health"), ("cases", "law"), ("statutes", "law"),
    ]  # fmt: skip
    assert made.general is not None
    assert made.general.path.endswith("general/train.txt")
    assert [leaf.branch.group for leaf in corpus_folders.read_folder(tmp_path / "own").leaves] == [
        "clinic",
        "clinic",
        "law",
        "law",
    ]
    write_parts(tmp_path / "own" / "health/law/cases", 7)
    with pytest.raises(DataError, match="two domains called 'cases'"):
        corpus_folders.read_folder(tmp_path / "own")
    with pytest.raises(DataError, match="holds no domain"):
        corpus_folders.read_folder(tmp_path / "own/law/cases/none")


def test_damaged_tarballs_are_a_sentence(data: Path) -> None:
    (data / "cs.CL.tar.gz").write_bytes(gzip.compress(b"no tarball"))
    with pytest.raises(DataError, match=r"cs.CL.tar.gz' (cannot be read|holds no 'cs.CL/)"):
        recipe(data)


@pytest.mark.parametrize("linked", ["/etc/hostname", "valid.txt", "../nowhere"])
def test_links_in_a_tarball_are_no_text(tmp_path: Path, linked: str) -> None:
    """What a link leads to may be outside, itself, or nowhere; absolute names and steps upwards are names only."""
    with tarfile.open(tmp_path / "cs.CL.tar.gz", "w:gz") as tar:
        for name in ("/away/cs.CL/train.txt", "../../cs.CL/test.txt"):
            content = "\n".join(lines(len(name))).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("cs.CL/valid.txt")
        link.type, link.linkname = tarfile.SYMTYPE, linked
        tar.addfile(link)
    leaf = corpus_folders.read_folder(tmp_path).leaves[0]
    assert list(leaf.texts["test"]()) == lines(len("../../cs.CL/test.txt"))
    with pytest.raises(DataError, match=r"holds no 'cs.CL/valid.txt'"):
        list(leaf.texts["valid"]())


def test_a_tarball_whose_bytes_were_changed_is_a_sentence(tmp_path: Path) -> None:
    write_parts(tmp_path / "cs.CL", 1, train=200)
    tarred(tmp_path, "cs.CL")
    whole = bytearray((tmp_path / "cs.CL.tar.gz").read_bytes())
    for place in range(len(whole) // 2, len(whole) // 2 + 40):
        whole[place] = 255
    (tmp_path / "cs.CL.tar.gz").write_bytes(whole)
    with pytest.raises(DataError, match=r"cs.CL.tar.gz' cannot be read"):
        list(corpus_folders.read_folder(tmp_path).leaves[0].texts["train"]())


def test_folders_that_are_no_layout_are_a_sentence(tmp_path: Path) -> None:
    write_parts(tmp_path / "m2d2/data/cs.CL", 1)
    with pytest.raises(DataError, match=r"'.*cs.CL' is a domain itself"):
        corpus_folders.read_folder(tmp_path / "m2d2/data/cs.CL")
    tarred(tmp_path / "m2d2/data", "cs.CL")  # as the data set is fetched with its own folder
    with pytest.raises(DataError, match=r"lie directly in the folder that is named: name '.*m2d2/data'"):
        corpus_folders.read_folder(tmp_path / "m2d2")
    (tmp_path / "m2d2/data/.tar.gz").touch()
    assert [leaf.name for leaf in corpus_folders.read_folder(tmp_path / "m2d2/data").leaves] == ["cs.CL"]
    write_parts(tmp_path / "own/law/general", 2)
    with pytest.raises(DataError, match=r"is called 'general', as general text is"):
        corpus_folders.read_folder(tmp_path / "own")


def test_domains_behind_links_are_read(tmp_path: Path) -> None:
    write_parts(tmp_path / "elsewhere/cases", 1)
    write_parts(tmp_path / "own/law/statutes", 2)
    (tmp_path / "own/law/cases").symlink_to(tmp_path / "elsewhere/cases")
    (tmp_path / "own/law/statutes/up").symlink_to(tmp_path / "own")  # a circle
    assert [leaf.name for leaf in corpus_folders.read_folder(tmp_path / "own").leaves] == ["cases", "statutes"]


def test_an_empty_part_is_called_empty(tmp_path: Path) -> None:
    write_parts(tmp_path / "own/one/a", 1)
    (tmp_path / "own/one/a/valid.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"'valid' of the domain 'a' is empty"):
        recipe(tmp_path / "own")


# -- the built-in domains ---------------------------------------------------------------------------------------------


def keep(folder: Path, corpus: str, rows: list[dict[str, str]]) -> None:
    place = folder / "domains" / corpus
    place.mkdir(parents=True)
    for part, chosen in (("train", rows[:-16]), ("validation", rows[-16:-8]), ("test", rows[-8:])):
        text = "".join(json.dumps(row) + "\n" for row in chosen)
        (place / f"{part}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two corpora of the data folder; no library is read."""
    monkeypatch.setattr(builtin_corpus, "LIBRARIES", {})
    monkeypatch.setattr(builtin_corpus, "_general", lambda folder: None)
    folder = tmp_path / "data"
    keep(folder, "yelp_restaurants", [{"text": text} for text in lines(1, 40)])
    venues = ["nips2018", "aaai2019", "iclr2020", "aistats2021"] * 12
    keep(folder, "ai_papers", [{"text": t, "venue": v} for t, v in zip(lines(2, 48), venues, strict=True)])
    return folder


def test_built_in_domains_are_rows_of_the_data_folder(kept: Path) -> None:
    made = recipe(kept)
    assert [(d.name, d.group) for d in made.domains] == [
        ("yelp", "reviews"), ("machine_learning", "papers"), ("artificial_intelligence", "papers"),
        ("statistical_learning", "papers"),
    ]  # fmt: skip
    assert made.data.isolate_documents is None
    texts = {json.loads(line)["text"] for line in Path(made.domains[1].path).read_text().splitlines()}
    assert texts == set(lines(2, 48)[:32:2])
    assert any(note.startswith("Built-in domains that are left out") for note in made.run.notes)
    assert any(note.startswith("Order") for note in made.run.notes)
    assert recipe(kept, order=("yelp",)).run.notes == made.run.notes[1:], "one domain has no order"
    assert len(builtin_corpus.names()) >= 28  # without the libraries, which are taken out here


def test_without_a_folder_the_domains_are_those_of_installed_libraries() -> None:
    found = builtin_corpus.names()
    assert {"docs_sympy", "code_python", "amazon_books", "robotics"} <= set(found)
    assert len(found) == len(set(found)) == 40
    code = 'def f(\n    a,\n):\n    """Says.\n\n    More.\n    """\n    return a\n'
    assert builtin_corpus.without_docstring(code) == "def f(\n    a,\n):\n    return a\n"


# -- duplicates -------------------------------------------------------------------------------------------------------


def repeated(tmp_path: Path) -> Path:
    """b holds two documents of a in its training text, one nearly; a's training text holds one of its own test part."""
    folder = tmp_path / "own"
    for seed, place in enumerate(("one/a", "two/b"), 1):
        write_parts(folder / place, seed, word=place[-1])
    a, b = folder / "one/a", folder / "two/b"
    first = max((a / "train.txt").read_text().splitlines(), key=len)
    long = " ".join(f"word{number}" for number in range(200))
    with (a / "train.txt").open("a") as file:
        file.write(max((a / "test.txt").read_text().splitlines(), key=len) + "\n" + long + "\n")
    with (b / "train.txt").open("a") as file:
        file.write(f"{first}!\n{long} but nearly\n")
    return folder


def test_repeated_documents_are_taken_out_of_training_and_reported(tmp_path: Path) -> None:
    folder = repeated(tmp_path)
    made = recipe(folder)
    texts = {d.name: [json.loads(line)["text"] for line in Path(d.path).read_text().splitlines()] for d in made.domains}
    assert {name: len(rows) for name, rows in texts.items()} == {"a": 31, "b": 30}
    report = read_json(_bound(settings(), folder).locate("report.json"))
    assert {(e["domain"], e["part"], e["of"], e["of_part"], e["kind"], e["documents"]) for e in report["repeated"]} == {
        ("a", "train", "a", "test", "exact", 1), ("b", "train", "a", "train", "exact", 1),
        ("b", "train", "a", "train", "near", 1),
    }  # fmt: skip
    assert report["held_out_in_train"] == {"a": 1}
    note = next(note for note in made.run.notes if "repeat one of another domain" in note)
    assert note.startswith("Of 88 documents, 2 repeat one of another domain and 1 one of their own")
    only = recipe(folder, own=settings(duplicates="report"))
    assert len(Path(only.domains[0].path).read_text().splitlines()) == 32
    assert any("they were left in" in note for note in only.run.notes)
    exact = recipe(folder, own=settings(near=1))
    assert len(Path(exact.domains[1].path).read_text().splitlines()) == 31


def test_what_two_held_out_parts_share_is_not_called_training_text(tmp_path: Path) -> None:
    write_parts(tmp_path / "own/one/a", 1)
    long = max((tmp_path / "own/one/a/test.txt").read_text().splitlines(), key=len)
    with (tmp_path / "own/one/a/valid.txt").open("a") as file:
        file.write(long + "\n")
    made = recipe(tmp_path / "own")
    report = read_json(_bound(settings(), tmp_path / "own").locate("report.json"))
    assert [(e["part"], e["of_part"]) for e in report["repeated"]] == [("valid", "test")]
    assert report["held_out_in_train"] == {}
    assert not any("in the training text" in note for note in made.run.notes)


def test_a_held_out_part_that_is_training_text_is_refused(tmp_path: Path) -> None:
    write_parts(tmp_path / "own/one/a", 1, train=60)
    test = lines(77, 30)
    (tmp_path / "own/one/a/test.txt").write_text("\n".join(test))
    (tmp_path / "own/one/a/train.txt").write_text("\n".join(test[:20] + lines(78, 30)))
    with pytest.raises(DataError, match=r"67 % of the documents of 'test' of the domain 'a' are in its training"):
        recipe(tmp_path / "own")


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_caps_and_balance(data: Path) -> None:
    def sizes(**keys: object) -> list[int]:
        made = recipe(data, own=settings(**keys))
        return [sum(len(json.loads(x)["text"]) for x in Path(d.path).read_text().splitlines()) for d in made.domains]

    whole, cut, even = sizes(), sizes(domain_bytes=2000), sizes(balanced=True)
    assert all(1500 < size <= 2000 for size in cut)
    assert all(0.9 * min(whole) < size <= min(whole) for size in even)
    assert len(set(whole)) > 1


def test_what_is_kept_does_not_depend_on_the_order_of_the_documents() -> None:
    texts = lines(5, 40)
    whole = stream.first_by_hash(texts, None, False)
    cut = stream.first_by_hash(texts, 1500, False)
    assert whole[: len(cut)] == cut
    assert stream.first_by_hash(texts[::-1], 1500, False) == cut
    assert stream.first_by_hash(texts, 1500, True) == [text for text in texts if text in cut]


def test_a_document_that_is_longer_than_a_domain_may_be_pushes_out_no_other() -> None:
    texts = lines(5, 40)
    cut = stream.first_by_hash(texts, 1500, False)
    for number in range(30):  # wherever it stands in the order of the hashes
        assert stream.first_by_hash([*texts, f"{number} " + "long " * 400], 1500, False) == cut
    longer = [f"{number} " + "long " * 400 for number in range(5)]
    assert stream.first_by_hash(longer, 1500, False) == stream.first_by_hash(longer, None, False)[:1]


def test_the_report_is_that_of_the_settings(data: Path) -> None:
    kept = []
    for most in (2000, 4000):
        own = settings(domain_bytes=most)
        report = SUITES["m2d2"].on(own, data).report
        kept.append(read_json(report)["kept"])
        assert report.parent == Path(recipe(data, own=own).domains[0].path).parents[1]
    assert all(kept[0][name]["train"][1] <= 2000 < kept[1][name]["train"][1] for name in kept[0])
    assert SUITES["m2d2"].report is None


# -- orders -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_order_and_its_note(data: Path, tmp_path: Path) -> None:
    listed = tmp_path / "mine.txt"
    five = SUITE.on(settings(), data).first
    listed.write_text("# mine\n" + "\n".join(reversed(five)) + "\n")
    own = settings(order=str(listed))
    suite = SUITE.on(own, data)
    similar, turned, from_file, *chance = (suite.orders[n] for n in (0, 1, 2, 11, 12, 13))
    assert set(similar) == set(five)
    assert [branch_of(name).super_domain for name in similar] == ["wiki"] * 2 + ["S2ORC"] * 3
    assert turned == (*similar[2:], *similar[:2])
    assert from_file == tuple(reversed(five))
    assert len({*chance}) == 3
    assert chance[0] == SUITE.on(settings(), data).orders[11] == ordering.shuffled(five[::-1], 1)
    plain = SUITE.on(settings(), data).orders
    assert 2 not in plain
    assert plain[0] == similar
    assert (
        recipe(data, similar)
        .run.notes[0]
        .startswith(f"Order `similar`, by hashed TF-IDF of 1,000 documents a domain: {similar[0]} → ")
    )
    assert recipe(data, chance[1], own).run.notes[0].startswith("Order `random-2`: ")
    written = read_json(_bound(settings(), data).locate("order.json"))
    assert (tuple(written["domains"]), written["by"]) == (similar, "hashed TF-IDF")
    (tmp_path / "results.json").write_text(json.dumps({"domains": list(similar)}))
    assert ordering.from_file(tmp_path / "results.json", five) == similar
    for text, why in (("cs.CL\n" * 2, "must name every domain of the stream once"), ("cs.CLL", "Did you mean 'cs.CL'")):
        listed.write_text(text)
        with pytest.raises(RecipeError, match=why):
            ordering.from_file(listed, five)
    for text, why in (('{"domains": [1,', "is no JSON"), ('["cs.CL"]', "has no list `domains`"), ("{}", "no list")):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(RecipeError, match=why):
            ordering.from_file(tmp_path / "results.json", five)


# -- as other suites --------------------------------------------------------------------------------------------------


def test_an_order_without_its_file_is_refused_by_its_name(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"names 2 \(file\); `m2d2` has 0 \(similar\), 1 \(swapped\), 11"):
        Grid(SUITE.on(settings(), data), (), (2,), (0,), tmp_path / "results", tmp_path / "runs")


def test_settings_that_mean_nothing_are_refused(data: Path) -> None:
    for key in ("end_tasks", "domains"):
        with pytest.raises(RecipeError, match=rf"`{key}.none` in the settings: the suite has "):
            recipe(data, own=overlay_of({"model": "m", key: {"none": {"path": "a"}}}))
    with pytest.raises(RecipeError, match="base model"):
        recipe(data, own=overlay_of({}))
    with pytest.raises(RecipeError, match=r"Unknown key `suite.domains` in the settings"):
        SUITES["docs"].on(settings(domains=["cs"]))
    with pytest.raises(RecipeError, match=r"no domain 'cs.CLL'. Did you mean 'cs.CL'"):
        recipe(data, ["cs.CLL"])
    with pytest.raises(RecipeError, match=r"no order 2; it has 0 \(similar\), 1 \(swapped\), 11"):
        recipe(data, 2)


def test_addresses(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(data))
    found = suites.locate("m2d2/cs.CL/test.jsonl")
    assert [json.loads(line)["text"] for line in found.read_text().splitlines()] == lines(4002, 6, "cs.CL")
    with pytest.raises(RecipeError, match=r"Did you mean 'cs.CL/test.jsonl'"):
        suites.locate("m2d2/cs.CL/tset.jsonl")
    monkeypatch.setenv(VARIABLE, str(data / "none"))
    with pytest.raises(DataError, match=VARIABLE):
        suites.locate("m2d2/cs.CL/test.jsonl")


def test_a_folder_says_which_of_its_domains_belong_together(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe names single files: what else lies there is none of its business, if the folder says so."""
    monkeypatch.setenv(VARIABLE, str(data))
    write_parts(data / "hep-th", 77)
    (data / "hep-th" / "valid.txt").write_text("\n")
    with pytest.raises(DataError, match=r"'valid' of the domain 'hep-th' is empty.*`domains` in a file `stream.json`"):
        suites.locate("m2d2/cs.CL/test.jsonl")
    settled = data / "stream.json"
    settled.write_text('{"domains": ["cs.CL"], "held_out_bytes": 400}')
    found = suites.locate("m2d2/cs.CL/test.jsonl")
    assert [each.name for each in found.parents[1].iterdir() if each.is_dir()] == ["cs.CL"]
    assert 0 < sum(len(json.loads(line)["text"]) for line in found.read_text().splitlines()) <= 400
    assert _bound(settings(), data).names != ("cs.CL",), "a grid has settings of its own"
    for text, sentence in (
        ('{"domain": ["cs.CL"]}', r"Unknown key `domain` in '.*stream\.json'\. Did you mean 'domains'"),
        ('{"near": 2}', r"`near` in '.*stream\.json' must be 1.0 or less"),
        ("domains: [cs.CL]", r"stream\.json' is no JSON: Expecting value"),
        ('{"domains": ["cs.CLL"]}', r"`suite\.domains` names 'cs\.CLL'.*Did you mean 'cs\.CL'"),
    ):
        settled.write_text(text)
        with pytest.raises(RecipeError, match=sentence):
            suites.locate("m2d2/cs.CL/test.jsonl")


def test_only_the_chosen_tarballs_are_wanted() -> None:
    def wanted(**keys: object) -> list[str]:
        return [source.path for source in SUITE.selected_sources(StreamOptions(**keys))]  # type: ignore[arg-type]

    assert len(SUITE.sources) == 236
    assert len(wanted()) == 212 - 6
    assert len(wanted(level=1)) == 24
    assert wanted(domains=["econ"]) == ["econ.EM.tar.gz", "econ.GN.tar.gz", "econ.TH.tar.gz"]
    with pytest.raises(RecipeError, match=r"`suite.domains` names 'cs.CLL'.* Did you mean 'cs.CL'"):
        wanted(domains=["cs.CLL"])
    address = next(source for source in SUITE.sources if source.path == "cs.CL.tar.gz").address
    assert address == "https://huggingface.co/datasets/machelreid/m2d2/resolve/main/data/cs.CL.tar.gz"
    assert replace(SUITE.sources[0], path="x").licence.startswith("CC-BY-NC-4.0")


RECIPES = sorted((ROOT / "recipes" / "m2d2").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_shipped_recipes_load(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the data: every address is one of the suite's."""
    asked: list[str] = []
    monkeypatch.setattr(addresses, "locate", lambda inside: asked.append(inside) or Path("/") / inside)
    made = load(path)
    known = set(builtin_corpus.names()) | set(domain_names.NAMES)
    assert {address.split("/")[1] for address in asked} - {"general"} <= known
    assert all(domain.group for domain in made.domains)
    assert f"everlearn run recipes/m2d2/{path.name}" in path.read_text(encoding="utf-8")
    assert path.name in (ROOT / "docs" / "m2d2.md").read_text(encoding="utf-8")


# -- the tasks of BIG-bench -------------------------------------------------------------------------------------------


def asked_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Write three questions for each task of BIG-bench into a data folder, and return them by file."""
    numbers = {"choices": ["1", "2", "3"], "gold": 1}
    balanced = {"context": "Determine whether it is matched.\nValid/Invalid?"}
    rows: dict[str, list[dict[str, Any]]] = {
        "basic_skills_arithmetic": [{"question": f"{n} + 1 =", **numbers} for n in range(3)],
        "basic_skills_common_knowledge": [{"question": "A day after one is", **numbers}] * 3,
        "mmlu": [
            {"subject": subject, "split": split, "query": "How fast?", **numbers}
            for subject, split in (("conceptual_physics", "test"), ("conceptual_physics", "dev"), ("law", "test"))
        ],
        "bigbench_cs_algorithms": [
            {**balanced, "continuation": "Valid"},
            {**balanced, "continuation": "Invalid"},
            {"context": "Given two strings, how long?\nLength:", "continuation": "3"},
            {"context": "Given two strings, how long?\nLength:", "continuation": "0"},
        ],
        "bigbench_conlang_translation": [{"context": "ADNA: Ndab.\nENGLISH:", "continuation": " 'He grows.'"}] * 3,
    }
    (folder / "eval").mkdir()
    for name, own in rows.items():
        text = "".join(json.dumps(row) + "\n" for row in own)
        (folder / "eval" / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return rows


def test_the_tasks_of_big_bench_are_asked_between_super_domains(kept: Path) -> None:
    asked_of(kept)
    made = recipe(kept, own=settings(big_bench=2))
    tasks = {task.name: make_task(task) for task in made.end_tasks}
    assert list(tasks) == ["arithmetic", "general_knowledge", "physics", "cs_algorithms", "few_shot_nlg"]
    assert [len(wanted_tasks(made, row)) for row in range(5)] == [5, 5, 0, 0, 5], "reviews, then papers"
    shown = {name: task.shown for name, task in tasks.items()}  # type: ignore[attr-defined]
    assert len(shown["arithmetic"]) == 2
    assert {(e.prompt, e.options, e.targets) for e in shown["physics"]} == {
        ("\nQ: How fast?\nA: ", ("1", "2", "3"), ("2",))
    }
    assert [(e.options, e.targets) for e in shown["cs_algorithms"]] == [
        (("0", "3"), ("3",)),
        (("0", "3"), ("0",)),
        (("Invalid", "Valid"), ("Valid",)),
        (("Invalid", "Valid"), ("Invalid",)),
    ]
    assert [(e.prompt, e.targets) for e in shown["few_shot_nlg"]] == [("ADNA: Ndab.\nENGLISH:", ("He grows.",))] * 2
    assert not recipe(kept).end_tasks, "they are asked where the settings say so"


def test_a_clone_of_big_bench_comes_before_what_stands_for_it(kept: Path) -> None:
    asked_of(kept)
    own = kept / "BIG-bench/bigbench/benchmark_tasks"
    own.mkdir(parents=True)
    tests = [task.test for task in recipe(kept, own=settings(big_bench=2)).end_tasks]  # type: ignore[attr-defined]
    assert tests == [
        str(own / name) for name in ("arithmetic", "general_knowledge", "physics", "cs_algorithms", "few_shot_nlg")
    ]


def test_questions_that_are_missing_are_named(kept: Path) -> None:
    asked_of(kept)
    (kept / "eval/mmlu.jsonl.gz").unlink()
    with pytest.raises(DataError, match=r"`suite\.big_bench` needs .*: there is no mmlu\.jsonl\.gz \("):
        recipe(kept, own=settings(big_bench=2))
