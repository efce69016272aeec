"""What every registered suite promises; templates and the parts of recipes laid over them; the suite `docs`."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

import tiny
from everlearn.config import addresses
from everlearn.config.recipe import Recipe, parse
from everlearn.data.corpus import Domain
from everlearn.data.leaks import check_leaks
from everlearn.errors import DataError, EverlearnError, MethodError, ModelError, RecipeError
from everlearn.methods import build, names
from everlearn_bench.suites import SUITES, Suite, docs, find_suite, overlay_of, read_overlay, register_suite
from everlearn_bench.suites.docs import DOMAINS, GENERAL, base_path, cache_folder, corpus, documents, reading, tasks
from everlearn_bench.suites.docs import build as build_docs
from everlearn_bench.suites.docs.base_model import train_tokenizer
from everlearn_bench.suites.docs.reading import Doc
from everlearn_bench.suites.overlay import lay_over
from everlearn_bench.suites.template import expanded, with_samples, with_shares


@pytest.mark.parametrize("name", sorted(SUITES))
def test_a_suite_is_whole(name: str) -> None:
    suite = find_suite(name)
    assert suite.name == name
    domains = set(suite.first)
    whole = all(set(order) == domains for order in suite.orders.values())
    assert whole or all(len(order) == 1 for order in suite.orders.values()), (
        "all domains in every order, or one in each"
    )
    assert {domain for order in suite.orders.values() for domain in order} == domains
    assert all(len(set(order)) == len(order) for order in suite.orders.values())
    raw = suite.template()
    assert {task["domain"] for task in raw["end_tasks"] if "domain" in task} <= domains == set(suite.domains)
    assert {item["name"] for item in raw["domains"]} in (set(), domains)
    assert type(suite).locate is not Suite.locate
    assert type(suite).recipe is Suite.recipe
    if suite.published is not None:
        assert {len(row) for row in suite.published.rows.values()} == {len(suite.published.columns)}


def test_a_new_suite_registers_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(SUITES, "own", None)  # taken out afterwards
    del SUITES["own"]

    @register_suite
    class Own(Suite):
        name = "own"
        orders = {0: ("a",)}  # noqa: RUF012 - see Suite

        def locate(self, inside: str) -> Path:
            return tmp_path / inside

    assert SUITES["own"].locate("a") == tmp_path / "a"
    assert addresses.locate("own/a.txt") == tmp_path / "a.txt"
    with pytest.raises(RecipeError, match=r"no suite 'owm'.*Did you mean 'own'"):
        find_suite("owm")


def test_samples_are_rows_for_importance_and_no_others() -> None:
    """Others have an option of this name, too: rows kept, written, learnt from, or that models are tried on."""
    with_option = {name for name in names() if "samples" in type(build({"name": name}).config).model_fields}
    reached = {name for name in names() if with_samples(name, 7) == [{"name": name, "samples": 7}]}
    declared = {name for name in names() if build({"name": name}).importance_samples}
    assert {"das", "dga", "ewc_separate", "mas"} <= reached == declared <= with_option
    assert {"lfpt5", "sapt_lora", "demix", "corda", "selective_init", "side_tuning"} <= with_option - reached
    assert with_samples([{"name": "ewc", "samples": 3}, "lfpt5"], 7) == [
        {"name": "ewc", "samples": 3},
        {"name": "lfpt5"},
    ]
    assert with_samples("das", None) == [{"name": "das"}]


def docs_recipe(monkeypatch: pytest.MonkeyPatch, order: Any = 0, **changes: Any) -> tuple[Recipe, list[str]]:
    asked: list[str] = []
    docs = find_suite("docs").on(overlay_of(changes, tokens=16 * 128 * 5))
    monkeypatch.setattr(type(docs), "locate", lambda self, inside: asked.append(inside) or Path("/") / inside)
    return parse(docs.recipe(order, method=[{"name": "das"}], seed=3, name="x", folder=Path("x"))), asked


def test_docs_needs_nothing_but_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = docs_recipe(monkeypatch, grid={"importance_samples": 8})
    names = [domain.name for domain in made.domains]
    assert names == list(find_suite("docs").orders[0])
    assert (made.train["max_steps"], made.train["warmup_steps"], made.run.seed) == (5, 1, 3)
    assert made.method[0]["samples"] == 8
    assert {task.name: task.domain for task in made.end_tasks} == {f"{name}-part": name for name in names}
    assert {"base", "sympy/train.jsonl", "general/validation.jsonl"} <= set(asked)
    assert "tasks/torch_test.jsonl" in asked


def test_an_objective_that_does_not_fit_the_model_is_refused_before_text_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Building the text of a suite takes minutes: it must not come before a mistake that is known without it."""
    tiny.model("llama").save_pretrained(tmp_path)
    built: list[str] = []
    monkeypatch.setattr(docs, "build", lambda **_: built.append("text") or {})
    message = "Objective 'masked' needs a model of kind encoder, but 'LlamaForCausalLM' is of kind decoder"
    suite = find_suite("docs").on(overlay_of({"model": str(tmp_path)}))
    with pytest.raises(ModelError, match=message):
        suite.recipe(0, method=[{"name": "ewc"}], seed=0, name="x", folder=Path("x"))
    own = {"model": str(tmp_path), "objective": "masked", "method": "ewc"}
    with pytest.raises(ModelError, match=message):
        parse(own | {"domains": [{"name": "sympy", "path": "suite:docs/sympy/train.jsonl"}]})
    assert not built


def test_a_suite_says_that_it_prepares_text(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(addresses, "LISTENERS", [said.append])

    def build(progress: Any) -> dict[str, Path]:
        for done in range(3):
            progress("sympy", done, 2)
        return {"sympy/train": Path("train.jsonl")}

    monkeypatch.setattr(docs, "build", build)
    find_suite("docs").locate("sympy/train.jsonl")
    assert len(said) == 1
    assert said[0].startswith("Preparing the text of the suite `docs`")


def test_docs_takes_keys_of_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("text\n")
    own = {"pandas": {"path": str(tmp_path / "own.txt")}}
    made, _ = docs_recipe(monkeypatch, ("pandas",), domains=own, end_tasks={"*": {"max_test": 5}})
    assert made.domains[0].path == str(tmp_path / "own.txt")
    assert made.end_tasks[0].max_test == 5
    with pytest.raises(RecipeError, match=r"Unknown key `suite.answers` in the settings"):
        docs_recipe(monkeypatch, suite={"answers": "head"})
    with pytest.raises(RecipeError, match=r"no domain 'panda'.*Did you mean 'pandas'"):
        docs_recipe(monkeypatch, ("panda",))


def test_a_settings_file_is_a_part_of_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    (tmp_path / "base").mkdir()
    file.write_text("model: base\ntrain: {max_steps: 5}\ngrid: {methods: {ewc: {strength: 3}}}\nsuite: {a: 1}\n")
    found = read_overlay(file, ["end_tasks.*.max_test=9", "train.bf16=true", "suite.b=x"], tokens=400)
    assert found.recipe == {
        "model": str(tmp_path / "base"),
        "train": {"max_steps": 5, "bf16": True},
        "end_tasks": {"*": {"max_test": 9}},
    }
    assert (found.suite, found.tokens) == ({"a": 1, "b": "x"}, 400)
    assert found.grid.spec("ewc") == {"name": "ewc", "strength": 3}
    file.write_text("model: {path: base, revision: a}")
    assert read_overlay(file).recipe["model"] == {"path": str(tmp_path / "base"), "revision": "a"}
    assert read_overlay(file, model="owner/name").recipe["model"] == "owner/name"
    assert read_overlay(None, ["model.revision=b"], model=None).recipe == {"model": {"revision": "b"}}


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("grid: {row: {}}", RecipeError, r"Unknown key `grid.row` in the settings. Did you mean 'rows'"),
        ("grid: {importance_samples: 0}", RecipeError, r"`grid.importance_samples`.*got 0"),
        ("grid: {methods: {ewcc: {}}}", MethodError, r"'ewcc', no method.*'ewc'"),
        ("grid: {methods: {ewc: {strenght: 1}}}", MethodError, r"no option 'strenght'"),
        ("method: ewc", RecipeError, r"`method` cannot be set for a grid: name the methods in `--methods`"),
        ("run: {seed: 1}", RecipeError, r"`run` cannot be set for a grid: `--seeds`"),
        ("suite: 3", RecipeError, r"`suite` in the settings must be a mapping"),
        ("[1]", RecipeError, "mapping"),
        ("a: [", RecipeError, "not valid YAML"),
    ],
)
def test_mistakes_are_sentences(text: str, kind: type[EverlearnError], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(text)
    with pytest.raises(kind, match=sentence):
        read_overlay(tmp_path / "small.yaml")


def test_a_missing_file_and_a_wrong_override(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="There is no settings file"):
        read_overlay(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="'steps' is no override: write key=value"):
        read_overlay(None, ["steps"])


TEMPLATE = {
    "domains": {"each": "orders", "path": "suite:{suite}/{name}.txt", "validation": "held.txt"},
    "end_tasks": [{"name": "a-part", "domain": "a", "test": "{name}.jsonl"}],
}


def test_each_makes_an_item_a_name() -> None:
    made = expanded(TEMPLATE, "own", {"orders": ("a", "b")})
    assert made["domains"] == [
        {"name": name, "path": f"suite:own/{name}.txt", "validation": "held.txt"} for name in ("a", "b")
    ]
    assert made["end_tasks"] == [{"name": "a-part", "domain": "a", "test": "a-part.jsonl"}]
    tasks = {"end_tasks": {"each": "domains", "name": "{name}-part", "domain": "{name}"}}
    assert expanded(TEMPLATE | tasks, "own", {"orders": ("b",)})["end_tasks"] == [{"name": "b-part", "domain": "b"}]
    with pytest.raises(RecipeError, match=r"`domains.each` must be a list of names, or one of orders \(got 'order'\)"):
        expanded({"domains": {"each": "order"}}, "own", {"orders": ("a",)})


def test_a_share_is_one_of_the_steps_rounded() -> None:
    assert with_shares({"max_steps": 64, "warmup_steps": "10%"}) == {"max_steps": 64, "warmup_steps": 6}
    assert with_shares({"max_steps": 5, "num_train_epochs": 1}) == {"max_steps": 5}, "steps count, not epochs"
    assert with_shares({"num_train_epochs": 1}) == {"num_train_epochs": 1}
    with pytest.raises(RecipeError, match=r"`train.warmup_steps` is 10% of `train.max_steps`, which is not set"):
        with_shares({"warmup_steps": "10%"})


def laid(**overlay: Any) -> dict[str, Any]:
    raw = expanded(TEMPLATE, "own", {"orders": ("a", "b")}) | {"general": {"path": "g.txt", "max_documents": 9}}
    lay_over(raw, overlay)
    return raw


def test_what_is_said_of_one_counts_more_than_what_is_said_of_all() -> None:
    a, b = laid(domains={"a": {"keep_last": 1}, "*": {"keep_last": 2, "train": {"x": 1}}})["domains"]
    assert (a["keep_last"], b["keep_last"]) == (1, 2)
    assert a["path"] == "suite:own/a.txt"


def test_own_text_replaces_the_files_of_the_suite() -> None:
    a, b = laid(domains={"a": {"path": "mine.txt"}})["domains"]
    assert a == {"name": "a", "path": "mine.txt"}, "held-out text of the suite is no held-out text of it"
    assert b["validation"] == "held.txt"
    assert laid(general="other.txt")["general"] == {"path": "other.txt", "max_documents": 9}


def test_null_leaves_out() -> None:
    assert laid(end_tasks=None)["end_tasks"] == laid(end_tasks={"a-part": None})["end_tasks"] == []
    assert laid(general=None)["general"] is None


@pytest.mark.parametrize(
    ("overlay", "sentence"),
    [
        ({"domains": {"c": {}}}, r"`domains.c` in the settings: the suite has a, b, or `domains.\*` for all"),
        ({"end_tasks": {"a-prat": {}}}, "Did you mean 'a-part'"),
        ({"end_tasks": {"max_test": 3}}, r"`end_tasks.max_test` in the settings: .* `end_tasks.\*` for all"),
        ({"domains": {"a": 3}}, r"`domains.a` in the settings must be a mapping of keys \(got 3\)"),
        ({"domains": [1]}, r"`domains` in the settings must be a mapping of names"),
    ],
)
def test_names_that_are_not_there(overlay: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        laid(**overlay)


class Weather(Suite):
    """A suite of a template and nothing else."""

    name = "weather"

    class Config(Suite.Config):
        """Keys of its own."""

        size: int = 3

    def template(self) -> dict[str, Any]:
        return {
            "domains": [{"name": name, "path": f"suite:weather/{name}.txt"} for name in ("rain", "sun")],
            "end_tasks": [{"name": "any", "test": "x"}, {"name": "one", "domain": "sun", "test": "y"}],
            "train": {"max_steps": 20, "warmup_steps": "15%"},
        }

    def locate(self, inside: str) -> Path:
        return Path("/", str(self.config.size), str(self.data), inside)


def made(order: Any = 0, place: Path | None = None, tokens: int | None = None, **changes: Any) -> dict[str, Any]:
    suite = Weather().on(overlay_of({"model": "m", **changes}, tokens), place)
    return suite.recipe(order, method=["ewc"], seed=3, name="x", folder=Path("x"))


def test_a_recipe_is_the_template_with_the_users_keys_and_an_order() -> None:
    raw = made(suite={"size": 4}, place=Path("d"), grid={"importance_samples": 5})
    assert [item["path"] for item in raw["domains"]] == ["/4/d/rain.txt", "/4/d/sun.txt"]
    assert [item["name"] for item in raw["end_tasks"]] == ["one", "any"], "those of no domain at the end"
    assert raw["method"] == [{"name": "ewc", "samples": 5}]
    assert raw["train"] == {"max_steps": 20, "warmup_steps": 3}
    assert raw["run"] == {"name": "x", "seed": 3, "folder": "x"}
    assert [item["name"] for item in made(("rain",))["end_tasks"]] == ["any"]
    assert Weather().orders == {0: ("rain", "sun")}, "that of the template"


def test_a_number_of_tokens_is_one_of_steps() -> None:
    assert made(tokens=2 * 8 * 32 + 5, data={"block_size": 32})["train"]["max_steps"] == 2
    with pytest.raises(RecipeError, match="`--budget` is 9, less than one step of 8 rows of 32 tokens"):
        made(tokens=9, data={"block_size": 32})
    with pytest.raises(RecipeError, match=r"`--budget` needs `data.block_size`"):
        made(tokens=9)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (7, r"The suite `weather` has no order 7; it has 0"),
        (("snow",), "has no domain 'snow'"),
        (("sun", "sun"), r"each once \(got sun, sun\)"),
        ((), r"each once \(got none\)"),
    ],
)
def test_orders_that_are_not_there(order: Any, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        made(order)


def test_what_a_suite_refuses() -> None:
    with pytest.raises(RecipeError, match=r"Unknown key `suite.sise` in the settings. Did you mean 'size'"):
        made(suite={"sise": 3})
    with pytest.raises(RecipeError, match="needs a base model: `--model`"):
        made(model=None)
    with pytest.raises(RecipeError, match="`--run-code`: no end task of the suite `weather` has programs"):
        Weather().programs()


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
    paths = build_docs(tmp_path / "docs", progress=lambda *step: seen.append(step))
    assert not {"alpha", "beta", "gamma"} & set(sys.modules)
    assert seen[0] == ("alpha", 0, 3)
    assert seen[-1] == ("done", 3, 3)
    texts = {name: [row["text"] for row in rows(path)] for name, path in paths.items() if "tasks" not in name}
    for domain in ("alpha", "beta", "general"):
        assert set(texts.pop(f"{domain}/apart")) <= set(texts[f"{domain}/validation"])
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


def test_text_that_stands_apart_has_no_copies_in_the_training_text(tmp_path):
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
    first, second = build_docs(tmp_path / "one"), build_docs(tmp_path / "two")
    assert [path.read_bytes() for path in first.values()] == [path.read_bytes() for path in second.values()]
    made = (tmp_path / "one" / "seal.json").stat().st_mtime_ns
    build_docs(tmp_path / "one")
    assert (tmp_path / "one" / "seal.json").stat().st_mtime_ns == made
    libraries["gamma"] = "2.0"
    build_docs(tmp_path / "one")
    assert json.loads((tmp_path / "one" / "fingerprint.json").read_text())["gamma"] == "2.0"
    first["alpha/test"].write_text("damaged")
    build_docs(tmp_path / "one")
    assert first["alpha/test"].read_bytes() == second["alpha/test"].read_bytes()


def test_mistakes_with_docs_are_sentences(libraries, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="Did you mean 'alpha'"):
        documents("alpa")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    with pytest.raises(DataError, match="holds something else"):
        build_docs(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "keep me"
    monkeypatch.setattr(corpus, "DOMAINS", ("alpha", "missing_library"))
    with pytest.raises(DataError, match="pip install missing_library"):
        build_docs(tmp_path / "docs")
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
    name = cache_folder().name
    assert re.fullmatch(r"docs-[0-9a-f]{12}", name)
    assert cache_folder() == tmp_path / "xdg" / "everlearn" / name
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "everlearn" / name
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / name


def test_environments_with_other_versions_do_not_replace_each_others_files(monkeypatch):
    """Two of them shared one folder, which vanished for a moment whenever the other began a run."""
    here = cache_folder()
    monkeypatch.setattr(reading, "version", lambda library: "0.0")
    assert cache_folder() != here


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
