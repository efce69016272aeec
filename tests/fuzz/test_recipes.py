"""Whatever a recipe and the words behind it are: it works, or one sentence says what to change."""

from __future__ import annotations

import random
import shutil

import pytest

from cli_project import Project
from everlearn.config.recipe import load
from everlearn.errors import EverlearnError
from fuzz.harness import command, fuzz
from fuzz.recipes import good, mutated, overrides, text_of


@pytest.fixture
def project(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    (everlearn.folder / "home").mkdir()
    monkeypatch.setenv("HOME", str(everlearn.folder / "home"))
    return everlearn


def written(project: Project, chance: random.Random) -> list[str]:
    """Write a recipe that is probably wrong, and say what is typed behind it."""
    content = text_of(mutated(good(project.models, chance), chance), chance)
    (project.folder / "recipe.yaml").write_bytes(content)
    return overrides(chance)


def test_reading(project: Project) -> None:
    """What is read is a recipe that is saved and read the same, or a sentence."""

    def case(chance: random.Random) -> None:
        words = written(project, chance)
        said, recipe = "a recipe", None
        try:
            recipe = load("recipe.yaml", words)
        except EverlearnError as error:
            said = str(error)
        assert said.isprintable(), f"no plain sentence: {said!a}"
        if recipe is None:
            return
        (project.folder / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
        assert load("again.yaml") == recipe, "saved, it is another recipe"

    fuzz("reading recipes", 150, case)


@pytest.mark.parametrize(("verb", "few"), [("validate", 12), ("run", 4)])
def test_using(project: Project, capfd: pytest.CaptureFixture[str], verb: str, few: int) -> None:
    def case(chance: random.Random) -> None:
        words = written(project, chance)
        outcome = command(capfd, verb, "recipe.yaml", "train.max_steps=1" if verb == "run" else "run.seed=2", *words)
        assert outcome.code in (0, 2), outcome
        if outcome.code == 2 and verb == "run":
            assert outcome.sentence, outcome
        assert "Traceback" not in outcome.err
        for place in ("runs", "cache"):
            shutil.rmtree(project.folder / place, ignore_errors=True)
        there = {path.name for path in project.folder.iterdir()}
        assert not {"~", "up"} & there

    fuzz(f"{verb} of recipes", few, case)
