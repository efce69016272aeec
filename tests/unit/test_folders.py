"""Folders of data as people have them, what `datasets` saves, and text of several columns."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import tiny
from cli_project import Project
from everlearn.commands.data_report import survey
from everlearn.config.recipe import load, parse
from everlearn.data.columns import text_corpus
from everlearn.data.corpus import Corpus, Domain
from everlearn.data.documents import corpus_fingerprint, local_files, read_documents
from everlearn.data.file_listing import files_of
from everlearn.data.folders import inside, split_of
from everlearn.data.notes import notes_of, unread_files
from everlearn.data.readers import format_of, read_rows
from everlearn.data.text_files import Limits
from everlearn.data.text_template import columns_in, filled
from everlearn.errors import DataError, EverlearnError
from everlearn.run import inputs


def rows(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def texts_of(corpus: Domain) -> list[str]:
    return [document.text for document, _ in read_documents(corpus)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A data set as `git clone` brings it from a hub."""
    folder = tmp_path / "clone"
    for split, seed in (("train", 1), ("validation", 2), ("test", 3)):
        rows(folder / f"{split}.jsonl", tiny.texts(5, seed))
    (folder / "README.md").write_text("# A data set\nIts card.\n")
    (folder / "LICENSE.txt").write_text("All rights.\n")
    (folder / "dataset_infos.json").write_text(json.dumps({"default": {"splits": {}}}, indent=1))
    (folder / ".gitattributes").write_text("*.jsonl filter=lfs\n")
    return folder


def test_of_a_clone_the_training_split_is_read_and_no_card(clone: Path) -> None:
    corpus = Domain(name="d", path=str(clone))
    assert texts_of(corpus) == tiny.texts(5, 1)
    (note,) = inside(clone, format_of).notes("d")
    assert "Of 'd' the split 'train' is read" in note
    assert "(test: test.jsonl; validation: validation.jsonl)" in note


def test_a_split_of_a_folder_is_held_out_by_its_name(clone: Path) -> None:
    corpus = Domain(name="d", path=str(clone), validation="validation")
    held_out = corpus.held_out_corpus
    assert held_out is not None
    assert local_files(held_out) == [clone / "validation.jsonl"]
    assert local_files(Domain(name="d", path=str(clone), split="test")) == [clone / "test.jsonl"]
    elsewhere = Domain(name="d", path="a.txt", validation=str(clone)).held_out_corpus
    assert elsewhere is not None
    assert local_files(elsewhere) == [clone / "validation.jsonl"]
    (clone / "validation.jsonl").unlink()
    with pytest.raises(DataError, match="holds the splits 'test', 'train', and none for 'validation'"):
        local_files(held_out)


def test_a_folder_of_that_name_is_held_out_before_a_split(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(clone.parent / "validation" / "own.jsonl", tiny.texts(2, 9))
    monkeypatch.chdir(clone.parent)
    held_out = Domain(name="d", path=str(clone), validation="validation").held_out_corpus
    assert held_out is not None
    assert local_files(held_out) == [Path("validation/own.jsonl")]


def test_a_recipe_names_a_split_of_a_folder(clone: Path) -> None:
    raw = {"model": "m", "domains": [{"name": "d", "path": str(clone), "validation": "validation"}]}
    held_out = parse(raw).domains[0].held_out_corpus
    assert held_out is not None
    assert local_files(held_out) == [clone / "validation.jsonl"]


def test_shards_and_folders_tell_splits(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        rows(tmp_path / "data" / f"{name}.jsonl", tiny.texts(2))
    assert [path.name[:11] for path in inside(tmp_path, format_of).read] == ["train-00000", "train-00001"]
    assert split_of(Path("en/dev/part1.jsonl")) == "validation"
    assert split_of(Path("training-set.csv")) == "train"
    for name in ("TrainSet.csv", "trainData.jsonl", "trn.txt", "TRAIN.json"):
        assert split_of(Path(name)) == "train", name
    for name in ("held_out.jsonl", "heldout.csv", "hold-out.txt", "HeldOut.json"):
        assert split_of(Path(name)) == "validation", name
    assert split_of(Path("tst2014.txt")) == split_of(Path("testData.jsonl")) == "test"
    for name in ("contest.jsonl", "trainer.csv", "latestData.jsonl"):
        assert split_of(Path(name)) is None, "a part of a word is no word"


def test_a_folder_of_prose_is_read_whole(tmp_path: Path) -> None:
    for name in ("README.md", "test-plan.md", "guide.md", "LICENSE.txt"):
        (tmp_path / name).write_text("words\n")
    found = inside(tmp_path, format_of)
    assert [path.name for path in found.read] == ["LICENSE.txt", "README.md", "guide.md", "test-plan.md"]
    assert not found.notes("d")


def test_a_file_without_a_split_does_not_make_the_test_split_training_text(clone: Path) -> None:
    rows(clone / "extra.jsonl", tiny.texts(5, 4))
    (clone / "metadata.jsonl").write_text('{"text": "about"}\n')
    (clone / "croissant.json").write_text('{"text": "about"}')
    corpus = Domain(name="d", path=str(clone))
    assert texts_of(corpus) == tiny.texts(5, 1)
    notes = inside(clone, format_of).notes("d")
    assert "1 file without a split in the name is not read, because others have one: extra.jsonl" in notes[1]
    uses = {(each.format, each.use): each.files for each in files_of(corpus)}
    assert uses[".jsonl", "no split in its name"] == 1
    assert uses[".jsonl", "about the data"] == uses[".json", "about the data"] - 1 == 1
    (clone / "train.jsonl").unlink()
    with pytest.raises(DataError, match="holds the splits 'test', 'validation', and none for 'train'"):
        texts_of(corpus)
    assert texts_of(Domain(name="d", path=f"{clone}/extra.jsonl")) == tiny.texts(5, 4), "the advice"


def test_splits_of_prose_are_read_without_the_cards(tmp_path: Path) -> None:
    for name in ("README.md", "LICENSE.txt", "train.txt", "test.txt"):
        (tmp_path / name).write_text(f"of {name}\n")
    assert texts_of(Domain(name="d", path=str(tmp_path))) == ["of train.txt"]
    assert texts_of(Domain(name="d", path=str(tmp_path), split="test")) == ["of test.txt"]
    (tmp_path / "notes.txt").write_text("of notes\n")
    assert texts_of(Domain(name="d", path=str(tmp_path))) == ["of train.txt"]
    assert len(inside(tmp_path, format_of).notes("d")) == 2


def test_files_that_are_left_out_are_named_with_their_folders(tmp_path: Path) -> None:
    """A DatasetDict has files of the same names in a folder for each split."""
    import datasets

    datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict({"text": tiny.texts(3, seed)})
            for seed, split in enumerate(("train", "test"))
        }
    ).save_to_disk(str(tmp_path / "dict"))
    (note,) = unread_files([Domain(name="d", path=str(tmp_path / "dict"))])
    assert "(test: test/data-00000-of-00001.arrow). Name a file to read it" in note
    (note,) = unread_files([Domain(name="d", path=f"{tmp_path}/dict/*/*.arrow")])
    assert "another split (test: test/data-00000-of-00001.arrow)" in note


def test_prose_whose_names_only_hold_a_word_of_splits_is_read_or_named(tmp_path: Path) -> None:
    """The words may mean something else; where all names have one, nobody can know, and the note says what to do."""
    names = ["the-test-of-time.txt", "train-journeys/by-night.txt"]
    for name in (*names, "other.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"of {name}\n")
    corpus = Domain(name="d", path=str(tmp_path))
    assert texts_of(corpus) == ["of other.txt", *(f"of {name}" for name in names)]
    assert not unread_files([corpus])
    assert {each.split for each in files_of(corpus)} == {""}
    (tmp_path / "other.txt").unlink()
    assert texts_of(corpus) == [f"of {names[1]}"]
    (note,) = unread_files([corpus])
    assert f"other splits are not (test: {names[0]})" in note
    assert note.endswith("If these names mean no splits, name all files by a pattern in `path`.")
    assert texts_of(Domain(name="d", path=f"{tmp_path}/**/*.txt")) == [f"of {name}" for name in names], "the advice"


def test_prose_in_folders_of_splits_is_no_training_text_for_a_file_beside_them(tmp_path: Path) -> None:
    for name in ("train/a.txt", "test/b.txt", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"of {name}\n")
    assert texts_of(Domain(name="d", path=str(tmp_path))) == ["of train/a.txt"]


def test_folders_on_training_and_testing_among_others_are_no_splits(tmp_path: Path) -> None:
    """As in the documentation of a library for machine learning."""
    names = ["guide/test/how.md", "guide/use.md", "intro.md", "test/run.md", "train/loop.md"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"of {name}\n")
    corpus = Domain(name="d", path=str(tmp_path))
    assert texts_of(corpus) == [f"of {name}" for name in names]
    (note,) = unread_files([corpus])
    assert "another split (test: guide/test/how.md, test/run.md). If they are for testing" in note


def test_documents_on_training_and_testing_are_no_splits(tmp_path: Path) -> None:
    for name in ("guide.md", "training.md", "evaluation.md", "test.md", "dev.md"):
        (tmp_path / name).write_text("words\n")
    assert len(inside(tmp_path, format_of).read) == 5


def test_metadata_alone_is_data(tmp_path: Path) -> None:
    rows(tmp_path / "metadata.jsonl", tiny.texts(3))
    (tmp_path / "1.png").write_bytes(b"")
    assert texts_of(Domain(name="d", path=str(tmp_path))) == tiny.texts(3)


def test_text_of_another_split_that_is_read_is_noted(clone: Path, tmp_path: Path) -> None:
    (note,) = unread_files([Domain(name="d", path=f"{clone}/*.jsonl")])
    assert "test: test.jsonl; validation: validation.jsonl" in note
    assert not unread_files([Domain(name="d", path=f"{clone}/t?st.jsonl")]), "the pattern names the split"
    rows(tmp_path / "only" / "test.jsonl", tiny.texts(3))
    (note,) = unread_files([Domain(name="d", path=str(tmp_path / "only"))])
    assert "another split (test: test.jsonl)" in note
    assert not unread_files([Domain(name="d", path=str(tmp_path / "only"), split="test")])


def test_a_split_that_is_held_out_is_not_called_unread(clone: Path) -> None:
    (note,) = unread_files([Domain(name="d", path=str(clone), validation="validation")])
    assert "other splits are not (test: test.jsonl). Name" in note
    (clone / "test.jsonl").unlink()
    assert not unread_files([Domain(name="d", path=str(clone), validation="validation")])


def test_text_to_measure_on_is_a_split_that_is_not_learnt(clone: Path) -> None:
    def read(*splits: str) -> list[str]:
        corpus = text_corpus(str(clone), "held_out", **({"splits": splits} if splits else {}))
        return [document.text for document, _ in read_documents(corpus)]

    assert read() == tiny.texts(5, 2)
    assert read("train") == tiny.texts(5, 1)
    (clone / "validation.jsonl").unlink()
    assert read() == tiny.texts(5, 3)
    (clone / "test.jsonl").unlink()
    assert read() == tiny.texts(5, 1)


def test_configurations_that_are_read_together_are_noted(tmp_path: Path) -> None:
    for folder, seed in (("main", 1), ("socratic", 2)):
        for split in ("train", "test"):
            rows(tmp_path / folder / f"{split}.jsonl", tiny.texts(3, seed))
    notes = unread_files([Domain(name="d", path=str(tmp_path))])
    assert "the folders main, socratic are read together" in notes[-1]
    assert len(unread_files([Domain(name="d", path=str(tmp_path / "main"))])) == 1, "the advice"


def test_the_note_is_with_the_others(clone: Path) -> None:
    corpus = Domain(name="d", path=str(clone))

    read = SimpleNamespace(counts={}, skipped=0, first_skipped="", undesired=0, end_held_out=False)
    assert notes_of([corpus], {"d": read}, 32)[:1] == inside(clone, format_of).notes("d")  # type: ignore[dict-item]


def test_data_says_what_of_a_folder_is_not_read(
    clone: Path, everlearn: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    everlearn.write()
    monkeypatch.chdir(everlearn.folder)
    recipe = load("recipe.yaml", [f"domains.0.path={clone}"])
    (note,) = inside(clone, format_of).notes(recipe.domains[0].name)
    assert note in survey(recipe).findings


def test_files_are_listed_by_format_split_and_use(clone: Path) -> None:
    (clone / "weights.bin").write_bytes(b"1234")
    corpus = Domain(name="d", path=str(clone), validation="validation")
    found = {(each.format, each.split, each.use): (each.files, each.rows) for each in files_of(corpus)}
    assert found == {
        (".jsonl", "train", "read"): (1, 5),
        (".jsonl", "validation", "held out"): (1, 5),
        (".jsonl", "test", "another split than 'train'"): (1, 5),
        (".md", "", "about the data"): (1, None),
        (".txt", "", "about the data"): (1, None),
        (".json", "", "about the data"): (1, None),
        (".bin", "", "format not known"): (1, None),
    }
    sizes = sum(path.stat().st_size for path in clone.iterdir() if not path.name.startswith("."))
    assert sum(each.bytes for each in files_of(corpus)) == sizes


def test_a_folder_tells_the_split_of_its_files_in_the_list(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        rows(tmp_path / "data" / split / "part.jsonl", tiny.texts(3))
    corpus = Domain(name="d", path=str(tmp_path / "data"), validation="validation")
    assert [(each.split, each.use) for each in files_of(corpus)] == [
        ("train", "read"),
        ("test", "another split than 'train'"),
        ("validation", "held out"),
    ]


@pytest.mark.parametrize("ending", ["parquet", "feather", "arrow"])
def test_stored_rows_are_counted_without_their_columns(tmp_path: Path, ending: str) -> None:
    table = pa.table({"text": tiny.texts(20)})
    path = tmp_path / f"a.{ending}"
    pq.write_table(table, path) if ending == "parquet" else feather.write_feather(table, str(path))
    (group,) = files_of(Domain(name="d", path=str(path)))
    assert (group.use, group.rows) == ("read", 20)


def test_data_and_validate_show_the_same_files(clone: Path, everlearn: Project) -> None:
    everlearn.write()
    name = load("recipe.yaml").domains[0].name
    place = f"domains.0.path={clone}"
    listed = json.loads(everlearn("validate", "recipe.yaml", place, "--json").out)["files"][name]
    surveyed = json.loads(everlearn("data", "recipe.yaml", place, "--json").out)["corpora"][0]["files"]
    assert listed == surveyed
    assert {"format": ".jsonl", "split": "train", "use": "read"}.items() <= listed[0].items()
    for command in ("data", "validate"):
        assert "another split than" in " ".join(everlearn(command, "recipe.yaml", place).out.split())
    missing = json.loads(everlearn("validate", "recipe.yaml", "domains.0.path=missing", "--json").out)
    assert missing["files"][name] == []


def test_an_object_over_many_lines_is_read_once_it_is_an_array(tmp_path: Path) -> None:
    """The advice of the message."""
    rows_of = [{"text": text} for text in tiny.texts(3, 1)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"data": rows_of}, indent=1), encoding="utf-8")
    with pytest.raises(DataError, match="goes on in the next line"):
        texts_of(Domain(name="d", path=str(path)))
    path.write_text(json.dumps(rows_of, indent=1), encoding="utf-8")
    assert texts_of(Domain(name="d", path=str(path))) == tiny.texts(3, 1)


@pytest.mark.parametrize("splits", [False, True])
def test_what_datasets_saves_is_read(tmp_path: Path, splits: bool) -> None:
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_dict({"text": tiny.texts(7, 1), "id": list(range(7))})
    saved = datasets.DatasetDict({"train": train, "test": train.select([0])}) if splits else train
    saved.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved" / "cache-0123.arrow").write_bytes(b"of a map, and no data")
    assert texts_of(Domain(name="d", path=str(tmp_path / "saved"))) == tiny.texts(7, 1)


@pytest.mark.parametrize("way", ["stream", "file", "feather"])
def test_arrow_files_are_read_from_any_row(tmp_path: Path, way: str) -> None:
    table = pa.table({"text": tiny.texts(20), "n": list(range(20))})
    path = tmp_path / ("a.feather" if way == "feather" else "a.arrow")
    if way == "feather":
        feather.write_feather(table, str(path), compression="zstd")
    else:
        make = pa.ipc.new_stream if way == "stream" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
    every = list(read_rows(path, ["text"]))
    assert [row.values["text"] for row in every] == tiny.texts(20)
    assert every[12].where == f"{path}, row 13"
    for start in (0, 5, 6, 13, 20):
        assert list(read_rows(path, ["text"], start, 0)) == every[start:]
    with pytest.raises(DataError, match="no column 'missing'; its columns are 'text', 'n'"):
        list(read_rows(path, ["missing"]))
    feather.write_feather(pa.table({"text": ["x" * 2000]}), str(tmp_path / "long.feather"))
    with pytest.raises(DataError, match="longer than 1,024 bytes"):
        list(read_rows(tmp_path / "long.feather", ["text"], limits=Limits(1024, 1e9)))


def test_a_damaged_arrow_file_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(b"no arrow at all" * 20)
    with pytest.raises(DataError, match=r"a\.arrow cannot be read as Arrow"):
        list(read_rows(path, ["text"]))


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.feather"
    feather.write_feather(pa.table({"text": ["a" * 1000] * 20_000}), str(path), compression="zstd")
    with pytest.raises(DataError, match="unpacks to more than 10 times"):
        list(read_rows(path, ["text"], limits=Limits(1024, 10)))


ROWS = [
    {"title": "First", "document": {"body": {"text": "one text"}, "year": 2024}},
    {"title": "Second", "document": {"body": {"text": "another text"}, "year": 2025}},
    {"title": None, "document": None},
]
BOTH = "{title} ({document.year})\n\n{document.body.text}"
TEXTS = ["First (2024)\n\none text", "Second (2025)\n\nanother text"]


def written(folder: Path, ending: str) -> Path:
    path = folder / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(("template", "texts"), [(BOTH, TEXTS), ("{document.body.text}", ["one text", "another text"])])
def test_values_inside_columns_are_read(tmp_path: Path, ending: str, template: str, texts: list[str]) -> None:
    corpus = Corpus(path=str(written(tmp_path, ending)), text_column=template)
    assert [document.text for document, _ in read_documents(corpus)] == texts


def test_answers_may_be_templates_too(tmp_path: Path) -> None:
    path = str(written(tmp_path, "jsonl"))
    corpus = Corpus(path=path, text_column="{title}: ", target_column="{document.body.text}")
    assert [(d.text, d.target) for d, _ in read_documents(corpus)] == [
        ("First: ", "one text"),
        ("Second: ", "another text"),
    ]


def test_a_name_without_braces_is_a_column_whatever_it_has_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"document.body": "text"}\n', encoding="utf-8")
    assert next(read_documents(Corpus(path=str(path), text_column="document.body")))[0].text == "text"


def test_braces_can_be_text() -> None:
    assert filled("{{{a}}}", {"a": "x"}, "here") == "{x}"
    assert columns_in("{a} {b.c} {a}") == ("a", "b")


@pytest.mark.parametrize(
    ("template", "values", "says"),
    [
        ("{a.b}", {"a": "text"}, "here: `{a.b}`: 'a' holds str ('text'), which has no 'b' in it"),
        ("{a}", {"a": [1]}, "here: `{a}` must be a text or a number; it is list"),
        ("{a}", {"a": True}, "must be a text or a number"),
    ],
)
def test_values_that_are_no_text_are_refused(template: str, values: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError) as error:
        filled(template, values, "here")
    assert says in str(error.value)


@pytest.mark.parametrize("template", ["{", "}", "{}", "{a!r}", "{a:>4}", "{{a}}", "{a..b}"])
def test_templates_that_are_none_are_refused(template: str) -> None:
    with pytest.raises((EverlearnError, ValueError), match=r"`\{column\}`"):
        Corpus(path="rows.jsonl", text_column=template)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("bare", ["document.body.text", "document"])
def test_braces_are_advised_for_a_value_inside_a_column(tmp_path: Path, ending: str, bare: str) -> None:
    """The advice of the message works."""
    path = str(written(tmp_path, ending))
    with pytest.raises(DataError, match="in braces") as raised:
        next(read_documents(Corpus(path=path, text_column=bare)))
    column = str(raised.value).split("`")[-2]
    assert column == "{document.body.text}"
    assert next(read_documents(Corpus(path=path, text_column=column)))[0].text == "one text"


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'titel'"):
        next(read_documents(Corpus(path=str(written(tmp_path, "jsonl")), text_column="{titel}")))


def test_texts_in_memory_keep_the_columns_of_a_template(tmp_path: Path) -> None:
    import datasets

    keys = {"text_column": BOTH}
    path = inputs.keep(datasets.Dataset.from_list(ROWS[:2]), "first", keys, str(tmp_path))
    assert [document.text for document, _ in read_documents(Corpus(path=str(path), **keys))] == TEXTS


def test_another_template_is_another_corpus(tmp_path: Path) -> None:
    path = str(written(tmp_path, "jsonl"))
    prints = {corpus_fingerprint(Corpus(path=path, text_column=each)) for each in (BOTH, "{title}")}
    assert len(prints) == 2
