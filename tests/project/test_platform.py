"""What the project promises of platforms, records and the notebook."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import yaml

from installed import VERSIONS
from long_files_first import LONG, pytest_collection_modifyitems

# -- What the hosting platform reads: forms, workflows, hooks. Nothing can be sent there from here, so the rules are ---


ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ALLOWED = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "multiple", "options", "default"},
    "checkboxes": {"label", "description", "options"},
}
"""Kind of a form's element → the attributes that it may have."""


def read(path: Path) -> dict[str, Any]:
    """YAML as the platform reads it: `on` is a word there, and a key that stands twice is an error."""

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            assert len(keys) == len(set(keys)), keys
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:bool" or first in "tfTF"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    text = path.read_text(encoding="utf-8")
    assert "\t" not in text
    value = yaml.load(text, Loader)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.name)
def test_issue_forms_follow_the_schema(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels", "title"}
    assert all(isinstance(label, str) for label in form["labels"])
    ids = [element["id"] for element in form["body"]]
    labels = [element["attributes"]["label"] for element in form["body"]]
    assert len(set(ids)) == len(ids)
    assert len(set(labels)) == len(labels)
    for element in form["body"]:
        assert set(element) <= {"type", "id", "attributes", "validations"}
        assert re.fullmatch(r"[\w-]+", element["id"])
        assert set(element["attributes"]) <= ALLOWED[element["type"]]
        assert set(element.get("validations", {})) <= {"required"}
        options = element["attributes"].get("options", [])
        assert bool(options) == (element["type"] in ("dropdown", "checkboxes"))
        if element["type"] == "dropdown":
            assert len(set(options)) == len(options)
            assert "None" not in options  # the platform's own word
        if element["type"] == "checkboxes":
            assert all(set(option) <= {"label", "required"} for option in options)
    assert any(element.get("validations", {}).get("required") for element in form["body"])


def test_there_are_the_forms_that_contributing_speaks_of() -> None:
    assert [path.name for path in FORMS] == ["bug.yml", "config.yml", "feature.yml", "method.yml"]
    assert "everlearn env" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    assert "method proposal" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert set(read(FORMS[1])) <= {"blank_issues_enabled", "contact_links"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_whole(path: Path) -> None:
    workflow = read(path)
    assert set(workflow) <= {"name", "on", "permissions", "concurrency", "env", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}  # a job that needs more says so itself
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for job in workflow["jobs"].values():
        for needed in [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []):
            assert needed in workflow["jobs"]
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            assert "workflow_call" in read(ROOT / job["uses"])["on"]
            continue
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 60
        matrix = job.get("strategy", {}).get("matrix", {})
        for key in re.findall(r"matrix\.(\w+)", str(job)):
            assert key in matrix
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step["uses"]), step
            for target in re.findall(r"^(?:sudo unshare --net )?make (.*?)(?:  #.*)?$", step.get("run", ""), re.M):
                assert {word for word in target.split() if "=" not in word} <= targets, step


def test_workflows_cover_what_is_promised() -> None:
    ci, release = (read(ROOT / ".github" / "workflows" / f"{name}.yml") for name in ("ci", "release"))
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert ci["jobs"]["versions"]["strategy"]["matrix"] == {
        "python": ["3.11", "3.12", "3.13"],
        "versions": [name for name in VERSIONS if name != "pinned"],
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "VERSIONS ?= pinned\n" in makefile
    assert "EVERLEARN_VERSIONS=$(VERSIONS)" in makefile
    runs = " ".join(step.get("run", "") for job in ci["jobs"].values() for step in job.get("steps", ()))
    assert all(f"make {target}" in runs for target in ("test", "site", "wheel"))
    assert release["on"] == {"push": {"tags": ["v*"]}}
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "clean"
    assert release["jobs"]["clean"]["needs"] == "check"
    # What is published is what was checked: archives are passed on, never built again.
    given = [step["with"]["name"] for step in ci["jobs"]["wheel"]["steps"] if "upload" in step.get("uses", "")]
    for job in ("clean", "publish"):
        steps = release["jobs"][job]["steps"]
        assert [step["with"]["name"] for step in steps if "download" in step.get("uses", "")] == given
        assert not any("checkout" in step.get("uses", "") for step in steps)
    assert "secrets" not in str(ci) + str(release)


def test_hooks_are_tools_of_the_environment() -> None:
    """No hook is fetched from anywhere; each is a tool that `make install` puts there, of a version that is pinned."""
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        tool = hook["entry"].split()[0]
        if tool != "git":
            assert tool.startswith(".venv/bin/")
            name = tool.removeprefix(".venv/bin/")
            assert any(each.startswith(name) for each in extras["dev"])
            assert re.search(rf"^{name}==", pinned, re.MULTILINE)
    assert [hook["id"] for hook in repository["hooks"]] == ["whitespace", "ruff-check", "ruff-format", "mypy"]


def test_everything_that_an_extra_names_is_pinned() -> None:
    """`make` installs with constraints.txt: what `dev` and `docs` ask for stands there, and within their ranges."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pins = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines)
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["dev"], *extras["docs"]]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(pins[wanted.name.lower()]), text


def test_no_file_of_tests_is_skipped_from_its_middle() -> None:
    """Outside of functions `importorskip` skips the complete file: it stands above all tests of a file of its own."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tested = False
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            tested = tested or isinstance(node, ast.FunctionDef)
            if tested and isinstance(node, ast.Assign | ast.Expr):
                assert not re.search(r"pytest\.(importorskip|skip)\(", ast.unparse(node)), f"{path}:{node.lineno}"


def test_files_are_clean() -> None:
    """What the first hook checks, for files that were committed without it."""
    kinds = ("*.py", "*.md", "*.yml", "*.yaml", "*.toml", "*.css", "*.js", "*.jinja", "Makefile")
    folders = ("src", "tests", "docs", "recipes", "benchmarks", ".github")
    files = [path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(kind)]
    files += [path for kind in kinds for path in ROOT.glob(kind)]
    assert len(files) > 300
    for path in files:
        text = path.read_bytes().decode("utf-8")
        assert "\r" not in text, path
        assert not text.strip() or (text.endswith("\n") and not text.endswith("\n\n")), path
        assert not re.search(r"[ \t]+$", text, re.MULTILINE), path
        assert not re.search(r"^(<<<<<<<|>>>>>>>) ", text, re.MULTILINE), path


# -- Records of commands in a new environment are their scripts'; what lies in the root was put there on purpose -------


README_RECORD = (ROOT / "docs" / "results" / "readme-commands.md").read_text(encoding="utf-8")


def test_the_record_has_the_commands_of_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme_commands

    *recorded, last = re.findall(r"^## `(.*)`$", README_RECORD, re.MULTILINE)
    assert last == "pip list"
    assert recorded == readme_commands.commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert README_RECORD.count("\nexit code 0, ") == len(recorded)
    assert f"{len(recorded)} ran to their end, 0 were\nleft out, 0 failed" in README_RECORD


def test_the_environment_had_no_development_packages_and_no_path_is_recorded() -> None:
    packages = re.findall(r"^([\w.-]+) +\d", README_RECORD.partition("## `pip list`")[2], re.MULTILINE)
    assert {"everlearn", "torch", "transformers"} <= set(packages)
    assert not {"pytest", "ruff", "mypy", "trl", "build", "sphinx", "hypothesis"} & {name.lower() for name in packages}
    assert not re.findall(r"/(?:home|root|tmp|work|opt)/", README_RECORD)


THIRD_PARTY_RECORD = (ROOT / "docs" / "results" / "third-party.md").read_text(encoding="utf-8")


def test_the_record_has_the_commands_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import third_party

    assert re.findall(r"^## `(.*)`$", THIRD_PARTY_RECORD, re.MULTILINE) == [
        command for command, _ in third_party.COMMANDS
    ]
    codes = list(map(int, re.findall(r": exit code (\d+), ", THIRD_PARTY_RECORD)))
    assert codes == [third_party.FAILS.get(place, 0) for place in range(len(codes))]
    assert third_party.RECIPE in THIRD_PARTY_RECORD
    assert all(THIRD_PARTY_RECORD.count(words) >= 2 for words in third_party.ON_PAGE), "asked for, and found"
    assert not re.findall(r"/(?:home|root|tmp|work|opt)/", THIRD_PARTY_RECORD)


def test_the_record_shows_every_group_of_plugins() -> None:
    project = tomllib.loads((ROOT / "examples/everlearn-example/pyproject.toml").read_text(encoding="utf-8"))["project"]
    from everlearn.plugins import GROUPS

    groups = {group.removeprefix("everlearn.") for group in project["entry-points"]}
    assert set(GROUPS) == groups
    for name in ("near_base", "norms", "phi", "weather", "hello"):
        assert re.search(rf"^## `.*\b{name}\b", THIRD_PARTY_RECORD, re.MULTILINE), name


def test_names_in_the_root_are_words():
    # A command to which `-` was no standard output once left a file of that name.
    assert [path.name for path in ROOT.iterdir() if not path.name.lstrip(".")[:1].isalpha()] == []


# -- The notebook: what is committed is of its source, light and of no machine; its cells run --------------------------


_SPEC = importlib.util.spec_from_file_location("make_notebook", ROOT / "notebooks/make.py")
assert _SPEC is not None
assert _SPEC.loader is not None
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)


def test_the_notebook_is_of_its_source() -> None:
    committed, made = nbformat.read(make.NOTEBOOK, as_version=4), make.written()
    nbformat.validate(committed)
    assert [(cell.cell_type, cell.source) for cell in committed.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ], "`make notebook` makes it anew"


def test_the_notebook_has_outputs_and_nothing_of_a_machine() -> None:
    text = make.NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 300_000
    outputs = [output for cell in nbformat.reads(text, 4).cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert sum("text/html" in output.get("data", {}) for output in outputs) == 3
    assert {output.output_type for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert "stderr" not in {output.get("name") for output in outputs}
    shown = re.sub(r'"image/png": "[^"]*"', "", text)
    assert re.findall(r"/(?:home|root|tmp|Users|work)/[^\s\"']*", shown) == []


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own, with two steps a domain."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = make.run(make.written(), tmp_path, timeout=300, STEPS=2, BLOCKS=2, SAMPLES=4)
    assert (tmp_path / "runs/notebook/protected/stage-03-pandas/model.safetensors").is_file()
    assert not (tmp_path / "runs/notebook/plain/stage-03-pandas").exists()
    assert any("image/png" in output.get("data", {}) for output in made.cells[-4].outputs)


# -- workers begin with the long files, one each, and all tests run ----------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_worker_begins_with_long_files_of_its_own(workers: int) -> None:
    counts = {"tests/cli/test_a.py": 50, **dict.fromkeys(LONG, 10), "tests/unit/test_b.py": 141}
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{name}::test_{i}") for name, count in counts.items() for i in range(count)
    ]
    ordered = list(items)
    config: Any = SimpleNamespace(workerinput={"workercount": workers})
    pytest_collection_modifyitems(config, ordered)
    assert sorted(map(id, ordered)) == sorted(map(id, items))
    begin = 0
    for worker in range(workers):  # as pytest-xdist parts them
        part = [
            item.nodeid.partition("::")[0]
            for item in ordered[begin : begin + (len(items) - begin) // (workers - worker)]
        ]
        own = list(LONG[worker::workers])
        assert list(dict.fromkeys(part))[: len(own)] == own
        assert set(part[10 * len(own) :]).isdisjoint(LONG)
        begin += len(part)
