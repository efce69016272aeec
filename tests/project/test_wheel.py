"""Wheel and source archive: built from a copy of the checkout without a network, and used where no checkout is.

The environment in which the wheel is used borrows nothing but what the wheel declares (:mod:`installed`): links to
those distributions, so nothing is downloaded; or with `EVERLEARN_VERSIONS` (`make wheel`) what pip installs of them, in
the lowest, the pinned or the newest versions. `EVERLEARN_DIST` names a folder of archives that are built already.
"""

from __future__ import annotations

import email
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.metadata import Metadata

import everlearn
import tiny
from installed import ROOT, VERSIONS, call, environment_of_links, environment_of_pip
from plugin_package import files_of_example

NOT_SOURCE = {".git", ".venv", ".cache", "build", "dist", "runs", "site", "bench"}
EVERYTHING = """
import contextlib, importlib, io, pathlib, pkgutil, sys

import everlearn

place = pathlib.Path(everlearn.__file__).resolve()
assert place.is_relative_to(pathlib.Path(sys.prefix).resolve()), place
for name in everlearn.__all__:
    assert getattr(everlearn, name) is not None
for package in (everlearn, importlib.import_module("everlearn_bench")):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            found = pathlib.Path(importlib.import_module(module.name).__file__)
            assert found.is_relative_to(place.parents[1]), module.name

from everlearn.cli import COMMANDS, main

for verb in (*COMMANDS, "bench", "demo"):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([verb, "--help"]) == 0, verb
    assert f"everlearn {verb}" in out.getvalue(), verb
"""
LOOKS = (
    ("methods",),
    ("methods", "corda"),
    ("schema",),
    ("env",),
    ("init", "recipe.yaml"),
    ("validate", "small.yaml"),
    ("run", "small.yaml", "--quiet"),
)
"""What a user tries first: after the imports in one process, which imports the libraries once; in processes of their
own with `make wheel`."""
IN_ONE = """
import json

for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
"""
FINDS = """
from everlearn.cli import main
from everlearn_bench.suites import SUITES

assert main(["methods", "near_base"]) == main(["analyse", "--help"]) == 0
print(sorted(SUITES))
"""
DEMO = ("demo", "train.max_steps=1", "evaluation.blocks=2")


class Built(NamedTuple):
    wheel: Path
    archive: Path
    said: str


def source_files(*folders: str) -> Iterator[str]:
    """Files of the checkout below these folders, as Git would have them."""
    bases = Path("benchmarks/bases")
    fetched = {bases / name for name in json.loads((ROOT / bases / "history.json").read_text())["sha256"]}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT)
            if inside in fetched:
                continue
            if path.is_file() and not any(part == "__pycache__" or part.endswith(".egg-info") for part in inside.parts):
                yield inside.as_posix()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    said = ""
    if "EVERLEARN_DIST" in os.environ:
        dist = ROOT / os.environ["EVERLEARN_DIST"]
    else:
        copy, dist = tmp_path_factory.mktemp("copy") / "everlearn", tmp_path_factory.mktemp("dist")

        def leave_out(folder: str, names: list[str]) -> set[str]:
            unwanted = {name for name in names if name == "__pycache__" or name.endswith((".egg-info", "_cache"))}
            return unwanted | (NOT_SOURCE & set(names) if Path(folder) == ROOT else set())

        shutil.copytree(ROOT, copy, ignore=leave_out)
        # First the archive, then the wheel from the archive: what the archive lacks the wheel lacks too.
        said = call(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, cwd=copy)
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return Built(wheel, archive, said)


def test_the_build_warns_of_nothing(built: Built) -> None:
    for line in built.said.lower().splitlines():
        assert "deprecat" not in line, line
        # That there is nothing to leave out is no trouble; that a rule of MANIFEST.in finds nothing to take is.
        assert not line.startswith("warning:") or "no previously-included files" in line, line


def test_the_wheel_holds_both_packages_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"everlearn-{everlearn.__version__}.dist-info/METADATA")
    package = {name.removeprefix("src/") for name in source_files("src")}
    assert {name.partition("/")[0] for name in package} == {"everlearn", "everlearn_bench"}
    assert {
        "everlearn_bench/suites/docs/base/model.safetensors",
        "everlearn_bench/demo/demo.yaml",
        "everlearn/py.typed",
    } <= package
    assert {name for name in names if ".dist-info/" not in name} == package
    assert any(name.endswith("licenses/LICENSE") for name in names)
    checked = Metadata.from_email(metadata, validate=True)  # the rules that PyPI checks
    assert str(checked.version) == everlearn.__version__
    assert checked.description_content_type == "text/markdown"
    assert checked.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"dev", "docs"} <= set(checked.provides_extra or ())
    assert not email.message_from_bytes(metadata).defects


def test_the_source_archive_holds_what_the_checkout_does(built: Built) -> None:
    with tarfile.open(built.archive) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = set(
        source_files("src", "tests", "recipes", "docs", "benchmarks", "notebooks", "examples", ".github", ".ci")
    )
    files = {"constraints.txt", "Makefile", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"}
    assert {"tests/project/test_wheel.py", "docs/conf.py", "recipes/ewc.yaml", ".ci/run"} <= wanted
    assert sorted((wanted | files) - inside) == []


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel and what it declares."""
    folder, versions = tmp_path_factory.mktemp("environment"), os.environ.get("EVERLEARN_VERSIONS")
    if versions is None:
        return environment_of_links(folder, built.wheel)
    return environment_of_pip(folder, built.wheel, VERSIONS[versions]())


def test_the_environment_borrows_nothing(programs: Path, tmp_path: Path) -> None:
    """What holds the wheel must be able to fail: the development packages are not there."""
    code = "import importlib.util as u; print([n for n in ('pytest', 'trl', 'build') if u.find_spec(n)])"
    assert call(programs / "python", "-c", code, cwd=tmp_path) == "[]\n"


def test_the_wheel_works_where_no_checkout_is(programs: Path, tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(tiny.texts(60, number)))
    small = {
        "model": "suite:docs/base",  # weights that the wheel brings
        "domains": [{"name": name, "path": f"{name}.txt", "validation": 0.3} for name in "ab"],
        "method": {"name": "ewc", "samples": 2},
        "data": {"block_size": 16, "cache": "cache"},
        "train": {"max_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True},
        "evaluation": {"blocks": 2},
        "run": {"name": "small"},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    if "EVERLEARN_VERSIONS" in os.environ:
        call(programs / "python", "-c", EVERYTHING, cwd=tmp_path)
        # The demo is tested elsewhere with this environment's packages; it takes minutes.
        shown = "".join([call(programs / "everlearn", *words, cwd=tmp_path) for words in (*LOOKS, DEMO)])
    else:
        shown = call(programs / "python", "-c", EVERYTHING + IN_ONE, json.dumps(LOOKS), cwd=tmp_path)
    assert "2302.03241" in shown
    assert "Report: " in shown
    assert call(programs / "everlearn", "--version", cwd=tmp_path) == f"everlearn {everlearn.__version__}\n"
    for file in ("recipe.yaml", "runs/small/results.json", "runs/small/report.html", "runs/small/stage-02-b/seal.json"):
        assert (tmp_path / file).is_file(), file


def test_a_package_of_another_is_found_where_no_checkout_is(programs: Path, tmp_path: Path) -> None:
    """The guides' package, by pip."""
    source = tmp_path / "source"
    for name, content in files_of_example().items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content, encoding="utf-8")
    offline = ("--quiet", "--no-deps", "--no-index")
    pip = (sys.executable, "-m", "pip")
    call(*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    call(*pip, "--python", programs / "python", "install", *offline, wheel, cwd=tmp_path)
    assert call(programs / "everlearn", "hello", cwd=tmp_path) == "Hello, everlearn.\n"
    said = call(programs / "python", "-c", FINDS, cwd=tmp_path)
    assert "penalises moving away from the base model" in said
    assert "Show the norm of all weights" in said
    assert "'weather'" in said
