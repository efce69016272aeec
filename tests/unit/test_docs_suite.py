"""The suite `docs`: reading without importing, splitting without leaks, a tokenizer that stands alone."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

import tiny
from everlearn.data.corpus import Domain
from everlearn.data.leaks import check_leaks
from everlearn.errors import DataError
from everlearn_bench.suites.docs import (
    DOMAINS,
    GENERAL,
    base_path,
    build,
    cache_folder,
    corpus,
    documents,
    reading,
    tasks,
)
from everlearn_bench.suites.docs.document import Doc
from everlearn_bench.suites.docs.tokenizer import train_tokenizer


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """Two invented domains and one general library; importing any of them would fail."""
    root = tmp_path / "site"
    for library, subpackages, count, seed in (("alpha", "abc", 90, 1), ("beta", "ab", 90, 2), ("gamma", "z", 200, 3)):
        texts = iter(tiny.texts(3 * count, seed=seed, words=80))
        for subpackage in subpackages:
            folder = root / library / f"sub{subpackage}"
            folder.mkdir(parents=True)
            functions = [
                f'def f{i}():\n    """Invented {library} {i}: {next(texts)}\n\n    {"x" * 80}"""' for i in range(count)
            ]
            (folder / "code.py").write_text('raise RuntimeError("imported")\n' + "\n".join(functions))
        (root / library / "__init__.py").write_text("raise RuntimeError('imported')\n")
    everywhere = " ".join(["shared", *tiny.texts(1, seed=9, words=80), "x" * 120])
    for library in ("alpha", "beta", "gamma"):
        with (root / library / "shared.py").open("w") as file:
            file.write(
                f'"""{everywhere}"""\n\nclass A:\n    """Only in {library}: {"y" * 100}\n\n    {everywhere}\n    """\n'
            )
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setattr(corpus, "DOMAINS", ("alpha", "beta"))
    monkeypatch.setattr(corpus, "GENERAL", ("gamma", "absent"))
    versions = {"alpha": "1.0", "beta": "1.0", "gamma": "1.0"}
    monkeypatch.setattr(reading, "version", versions.get)
    return versions


@pytest.mark.parametrize("library", ["networkx", "peft"])
def test_reads_what_a_syntax_tree_holds(library):
    same = 0
    for path in list(reading._files(reading.place(library)))[:40]:
        source = path.read_text(encoding="utf-8")
        lines, expected = source.split("\n"), set()
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                literal = lines[node.lineno - 1].lstrip()
                if re.match(r"""[rRuU]?("{3}|'{3})""", literal):
                    expected.add(reading.clean(node.value.value))
        found = {reading.clean(text) for text, is_docstring in reading._texts(source, everywhere=False) if is_docstring}
        # The cut for length is made before cleaning, so that it differs a little between the two.
        expected, found = ({text for text in texts if len(text) >= 120} for texts in (expected, found))
        assert found == expected, path.name
        same += len(found)
    assert same > 50


def test_pieces_of_a_file():
    long = "Says something that is long enough to be a document, in words which a reader can follow. " * 2
    comment = "\n".join(f"    # This line of a comment explains number {i}" for i in range(5))
    source = f'''# Copyright: {long}
# {long}
# {long}
"""Module: {long}"""
value = """{long}"""
print("""{long}""", """{long}""")
single = "# not a comment"
it = 'quoted \\' """ here'
class A:
    size: int = 3
    r"""Attribute with \\alpha: {long}"""
    def f(self):
        """Function with \\\\beta and \\"quotes\\": {long}"""
{comment}
        # x = [1, 2, 3]; y = f(x)[0]
'''
    found = list(reading._texts(source, everywhere=False))
    docstrings = [text for text, is_docstring in found if is_docstring]
    assert [text.split(":")[0] for text in docstrings] == [
        "Module", "Attribute with \\alpha", 'Function with \\beta and "quotes"',
    ]  # fmt: skip
    (explained,) = [text for text, is_docstring in found if not is_docstring]
    assert explained.lstrip().startswith("This line of a comment explains number 0")
    assert len([text for text, _ in reading._texts(source, everywhere=True)]) == len(found) + 3


def test_clean_keeps_structure():
    text = reading.clean("  Title\n  =====================\n\n\n\n  end\n    indented   \n")
    assert text == "Title\n========\n\nend\n  indented"


def test_nothing_is_imported_and_splits_are_disjoint(libraries, tmp_path):
    seen = []
    paths = build(tmp_path / "docs", progress=lambda *step: seen.append(step))
    assert not {"alpha", "beta", "gamma"} & set(sys.modules)
    assert seen[0] == ("alpha", 0, 3)
    assert seen[-1] == ("done", 3, 3)
    texts = {name: [row["text"] for row in rows(path)] for name, path in paths.items() if "tasks" not in name}
    assert set(texts.pop("general/apart")) <= set(texts["general/validation"])
    every = [letters(text) for part in texts.values() for text in part]
    assert len(every) == len(set(every))
    paragraphs = [letters(p) for part in texts.values() for text in part for p in text.split("\n\n")]
    assert max(Counter(p for p in paragraphs if len(p) >= 120).values()) == 1
    for domain in ("alpha", "beta"):
        sizes = {split: len(texts[f"{domain}/{split}"]) for split in ("train", "validation", "test")}
        assert sizes["train"] > 0.6 * sum(sizes.values())
        assert min(sizes.values()) > 0
        train = {letters(text) for text in texts[f"{domain}/train"]}
        test = {letters(row["text"]) for row in rows(paths[f"tasks/{domain}_test"])}
        assert test
        assert not any(candidate in text for candidate in test for text in train)
    assert {"general/train", "general/validation"} < set(texts)


def test_general_text_that_stands_apart_has_no_copies_in_the_training_text(tmp_path):
    learnt, new = tiny.texts(40, seed=4, words=80), tiny.texts(20, seed=5, words=80)
    learnt, new = ([text for text in texts if len(text.split()) > 20] for texts in (learnt, new))
    copies = [f"Another beginning. {text}" for text in learnt[:5]]
    docs = [Doc(text, "", "train", "0") for text in learnt] + [
        Doc(text, "", "validation", "1") for text in new + copies
    ]
    assert corpus._texts(docs, "validation") == new + copies
    assert corpus._texts(docs, "apart") == new
    files = {}
    for part in ("train", "apart"):
        files[part] = tmp_path / f"{part}.jsonl"
        files[part].write_text("".join(json.dumps({"text": text}) + "\n" for text in corpus._texts(docs, part)))
    general = Domain(name="general", path=str(files["train"]), validation=str(files["apart"]))
    assert check_leaks([general], {}, tmp_path / "cache").leaks == []


def test_same_versions_same_bytes_and_rebuilt_only_when_they_change(libraries, tmp_path):
    first, second = build(tmp_path / "one"), build(tmp_path / "two")
    assert [path.read_bytes() for path in first.values()] == [path.read_bytes() for path in second.values()]
    made = (tmp_path / "one" / "seal.json").stat().st_mtime_ns
    build(tmp_path / "one")
    assert (tmp_path / "one" / "seal.json").stat().st_mtime_ns == made
    libraries["gamma"] = "2.0"
    build(tmp_path / "one")
    assert json.loads((tmp_path / "one" / "fingerprint.json").read_text())["gamma"] == "2.0"
    first["alpha/test"].write_text("damaged")
    build(tmp_path / "one")
    assert first["alpha/test"].read_bytes() == second["alpha/test"].read_bytes()


def test_mistakes_are_sentences(libraries, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="Did you mean 'alpha'"):
        documents("alpa")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    with pytest.raises(DataError, match="holds something else"):
        build(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "keep me"
    monkeypatch.setattr(corpus, "DOMAINS", ("alpha", "missing_library"))
    with pytest.raises(DataError, match="pip install missing_library"):
        build(tmp_path / "docs")
    assert not (tmp_path / "docs").exists()
    with pytest.raises(DataError, match="build the suite"):
        train_tokenizer(tmp_path / "none.jsonl", tmp_path)


def test_cap_keeps_the_first_documents(monkeypatch):
    docs = [Doc("t" * 100, "a", "train", f"{i:024x}") for i in (3, 1, 2)]
    monkeypatch.setattr(corpus, "MOST_CHARACTERS", 250)
    assert [doc.key[-1] for doc in corpus._capped(docs)] == ["1", "2"]


def test_crowded_subpackages_are_divided():
    modules = [("core", "frame")] * 50 + [("core", "series", "x")] * 20 + [("io", "csv")] * 30
    name = corpus._namer(modules)
    assert [name(module) for module in (("core", "frame"), ("core", "series", "x"), ("io", "csv"), ("core",), ())] == [
        "core.frame", "core.series", "io", "core", "",
    ]  # fmt: skip


def test_classes_are_frequent_and_at_most_eight():
    sizes = {"rare": 59, "": 500} | {f"c{i}": 60 + i for i in range(9)}
    docs = [Doc("text", name, "train", "0") for name, size in sizes.items() for _ in range(size)]
    assert tasks.classes(docs) == [f"c{i}" for i in range(1, 9)]


def test_examples_come_from_their_split_and_hide_the_answer():
    text = "Uses lib.stats.norm. >>> from lib import stats >>> stats.rvs() The stats of lib.core.stats.x are lib.stats"
    docs = [Doc(text, "stats", split, "0") for split in ("train", "validation", "test") for _ in range(40)]
    train, test = (tasks.examples("lib", docs, part) for part in ("train", "test"))
    assert (len(train), len(test)) == (40, 30)
    assert train[0]["text"] == "Uses lib.norm. >>> from lib import  >>> rvs() The stats of lib.core.x are lib"


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("EVERLEARN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "everlearn" / "docs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "everlearn" / "docs"
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "docs"


def test_tokenizer_is_deterministic_and_loads_alone(tmp_path):
    source = tmp_path / "general.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in tiny.texts(100)))
    train_tokenizer(source, tmp_path / "one", vocabulary=400)
    train_tokenizer(source, tmp_path / "two", vocabulary=400)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert len(AutoTokenizer.from_pretrained(tmp_path / "one")) <= 400


def test_shipped_tokenizer_and_configuration():
    tokenizer = AutoTokenizer.from_pretrained(base_path())
    assert tokenizer.is_fast
    assert len(tokenizer) == 8192
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    pair = tokenizer("one", "two").input_ids
    assert pair[0] == 0
    assert pair.count(2) == 3
    text = "Zażółć\n    indented  twice <x> \U0001f600"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in tokenizer(text).input_ids
    assert (base_path() / "tokenizer.json").stat().st_size < 700_000
    config = AutoConfig.from_pretrained(base_path())
    assert config.vocab_size == len(tokenizer)
    assert config.max_position_embeddings == tokenizer.model_max_length + config.pad_token_id + 1
    assert config.hidden_size // config.num_attention_heads == 64
    model = AutoModelForMaskedLM.from_config(config)
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 12e6


def test_names_are_known_once():
    assert len(set(DOMAINS + GENERAL)) == len(DOMAINS) + len(GENERAL)
