"""A run that is killed at any operation of its first moments, and at a sample of the later ones, is taken on."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from everlearn import files
from everlearn.config.recipe import Recipe
from everlearn.learner import ContinualLearner
from everlearn.run.folder import RunFolder
from fuzz.disk import watched
from fuzz.harness import command, fuzz
from integration.small_runs import Killed, assert_same, elsewhere, recipe

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, no_report: None) -> tuple[Recipe, list[str]]:
    """A run of one domain, what it did to its folder, and how much of that to claim the folder."""
    few = {"train": {"max_steps": 2, "save_steps": 1}, "evaluation": {"samples": 1}}
    made = recipe(tmp_path_factory.mktemp("whole"), domains=("first",), method="das", **few)
    with watched(made.folder()) as disk:
        ContinualLearner(made).run()
    return made, disk.done


def taken_on(of: Recipe) -> None:
    """`run` where there is no run yet, `resume` where there is one."""
    started = RunFolder(of.folder()).recipe_file.is_file()
    (ContinualLearner.open(of.folder()).resume if started else ContinualLearner(of).run)()


def killed(of: Recipe, at: int) -> None:
    """Let a run die at an operation."""
    with watched(of.folder(), at, Killed()), pytest.raises(Killed):
        ContinualLearner(of).run()


def claim(folder: RunFolder, of: Recipe) -> None:
    """What a run does first."""
    folder.create(of)
    with folder.lock():
        raise Killed


def test_killed_while_the_folder_is_claimed(whole: tuple[Recipe, list[str]], tmp_path: Path) -> None:
    claimed = next(number for number, done in enumerate(whole[1]) if done == "open .lock")
    assert claimed > 8
    for at in range(1, claimed + 2):
        made = elsewhere(whole[0], tmp_path / str(at))
        folder = RunFolder(made.folder())
        with watched(made.folder(), at, Killed()), pytest.raises(Killed):
            claim(folder, made)
        if not folder.recipe_file.is_file():
            folder.create(made)  # refuses a folder that is not a run folder
        assert folder.recipe().model_dump() == made.model_dump()
        with folder.lock():
            folder.clean_up()
            folder.complete()
        assert {path.name for path in made.folder().iterdir()} == {
            ".lock", "recipe.yaml", "environment.json", "seal.json",
        }  # fmt: skip


def test_killed_at_any_operation(whole: tuple[Recipe, list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    def case(generator: random.Random) -> None:
        made = elsewhere(whole[0], tmp_path_factory.mktemp("killed") / "run")
        killed(made, generator.randint(1, len(whole[1])))
        taken_on(made)
        assert_same(made.folder(), whole[0].folder())
        assert (made.folder() / "environment.json").is_file()

    fuzz("kill points", 4, case)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOENT])
def test_a_folder_that_cannot_be_written(
    whole: tuple[Recipe, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    code: int,
) -> None:
    def case(generator: random.Random) -> None:
        place = tmp_path_factory.mktemp("refused")
        made = elsewhere(whole[0], place / "run")
        files.write_text(place / "recipe.yaml", made.to_yaml())
        with watched(made.folder(), generator.randint(1, len(whole[1])), OSError(code, os.strerror(code))):
            found = command(capfd, "run", place / "recipe.yaml")
        assert found.code == 2, found
        assert os.strerror(code) in found.sentence
        assert str(made.folder()) in found.sentence
        taken_on(made)
        assert_same(made.folder(), whole[0].folder())

    fuzz(f"refused {code}", 1, case)
