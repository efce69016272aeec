"""What the hosting platform reads: forms, workflows, hooks. Nothing can be sent there from here, so the rules are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from installed import VERSIONS

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
