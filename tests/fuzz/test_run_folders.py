"""Damaged run folders: each command ends with the same result as on the undamaged one, or names the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from everlearn.config.recipe import Recipe
from everlearn.learner import ContinualLearner
from everlearn.run.trainer import StageTrainer
from fuzz.harness import command, fuzz
from integration.small_runs import Killed, corpus, elsewhere, labelled, recipe

pytestmark = pytest.mark.usefixtures("no_report")


class Runs(NamedTuple):
    """What is damaged: a finished run, one that was killed inside its second stage, and what each command makes of them
    undamaged."""

    recipe: Recipe
    finished: Path
    broken: Path
    wanted: dict[str, Any]


# -- harms ---------------------------------------------------------------------------------------------------------


def flip(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"x")
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, generator: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: generator.randrange(len(content) + 1)])


def grow(path: Path, generator: random.Random) -> None:
    path.write_bytes(path.read_bytes() + generator.randbytes(9))


def delete(path: Path, generator: random.Random) -> None:
    path.unlink()


def to_folder(path: Path, generator: random.Random) -> None:
    path.unlink()
    path.mkdir()


def to_link(path: Path, generator: random.Random) -> None:
    path.unlink()
    path.symlink_to(generator.choice(["nowhere", path.name, "/"]))


def to_other(path: Path, generator: random.Random) -> None:
    other = generator.choice([b"", b"[]", b"null", b"3", b'"x"', b"{}", b'{"a": [1]}', b"\xff\xfe\x00", b"[" * 99999])
    path.write_bytes(other)


HARMS: list[Callable[[Path, random.Random], None]] = [
    flip, flip, flip, truncate, grow, delete, to_folder, to_link, to_other, to_other,
]  # fmt: skip


# -- commands ------------------------------------------------------------------------------------------------------


def measured(results: dict[str, Any]) -> dict[str, Any]:
    """What must not change: everything but names and times."""
    kept = {key: value for key, value in results.items() if key not in ("cost", "run", "notes")}
    spent = [(stage["steps"], stage["tokens"], stage["final_loss"]) for stage in results["cost"]["stages"]]
    return kept | {"cost": spent}


def resume(run: Path, place: Path) -> tuple[list[object], Callable[[str], Any]]:
    return ["resume", run], lambda out: measured(json.loads((run / "results.json").read_text()))


def learn(run: Path, place: Path) -> tuple[list[object], Callable[[str], Any]]:
    third = ["learn", run, "--domain", f"third={corpus(place, 'third')}"]
    return third, lambda out: measured(json.loads((run / "results.json").read_text()))


def report(run: Path, place: Path) -> tuple[list[object], Callable[[str], Any]]:
    return ["report", run, "--json"], lambda out: json.loads(out.replace(str(run), "RUN"))


def analyse(run: Path, place: Path) -> tuple[list[object], Callable[[str], Any]]:
    return ["analyse", run, "--json"], json.loads


def evaluate(run: Path, place: Path) -> tuple[list[object], Callable[[str], Any]]:
    asked = ["evaluate", run, "--on", run / "recipe.yaml", "--no-end-tasks", "-o", place / "measured", "--json"]
    return asked, lambda out: json.loads(out)["matrices"]


COMMANDS: dict[str, Callable[[Path, Path], tuple[list[Any], Callable[[str], Any]]]] = {
    "resume": resume, "learn": learn, "report": report, "analyse": analyse, "evaluate": evaluate,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, no_report: None) -> Runs:
    place = tmp_path_factory.mktemp("runs")
    task = {"name": "word", "train": str(labelled(place, "train", 16)), "test": str(labelled(place, "test", 8))}
    made = recipe(
        place,
        method={"name": "das", "samples": 8},
        end_tasks=[task | {"domain": "first", "epochs": 1}],
        train={"max_steps": 3},
        optimizer="carry",
        evaluation={"alone": True, "end_task_seeds": 1},
    )
    finished = elsewhere(made, place / "finished" / "run")
    ContinualLearner(finished).run()
    broken = elsewhere(made, place / "broken" / "run")
    with pytest.MonkeyPatch.context() as patch:
        saved = StageTrainer._save_checkpoint

        def save(self: StageTrainer, *arguments: Any) -> None:
            saved(self, *arguments)
            if self.stage.index == 2:
                raise Killed

        patch.setattr(StageTrainer, "_save_checkpoint", save)
        with pytest.raises(Killed):
            ContinualLearner(broken).run()
    return Runs(made, finished.folder(), broken.folder(), {})


def copied(of: Path, place: Path) -> Path:
    """The run in another place, which its recipe does not name."""
    return Path(shutil.copytree(of, place / "run", symlinks=True))


def test_damaged_run_folders(
    runs: Runs, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    def outcome(kind: str, verb: str, harm: Callable[[Path], object]) -> tuple[Any, str, Path]:
        place = tmp_path_factory.mktemp("damaged")
        run = copied(runs.finished if kind == "finished" else runs.broken, place)
        harm(run)
        arguments, read = COMMANDS[verb](run, place)
        found = command(capfd, *arguments)
        assert found.code in (0, 2), found
        shutil.rmtree(place) if found.code else None
        return (read(found.out) if found.code == 0 else None), found.sentence, place

    def case(generator: random.Random) -> None:
        kind, verb = generator.choice(["finished", "broken"]), generator.choice(list(COMMANDS))
        if (kind, verb) in (("broken", "report"), ("broken", "learn")):
            verb = "resume"
        of = runs.finished if kind == "finished" else runs.broken
        names = sorted(path.relative_to(of).as_posix() for path in of.rglob("*") if path.is_file())
        name, harm = generator.choice(names), generator.choice(HARMS)
        if (key := f"{kind} {verb}") not in runs.wanted:
            runs.wanted[key], sentence, place = outcome(kind, verb, lambda run: None)
            assert not sentence, sentence
            shutil.rmtree(place)
        why = f"{harm.__name__} of {name}, then {verb} of the {kind} run"
        try:
            got, sentence, place = outcome(kind, verb, lambda run: harm(run / name, generator))
        except Exception as error:
            raise type(error)(f"{why}: {error}") from error
        if sentence:
            parts = [part for part in Path(name).parts if part not in ("evaluation", "memory")]
            assert any(part in sentence for part in parts), f"{why}: {sentence}"
        else:
            shutil.rmtree(place, ignore_errors=True)
            assert got == runs.wanted[key], f"{why}: another result"

    fuzz("run folders", 8, case)
