"""Damaged folders of runs and models, mutated results and logs: the same result, or one sentence."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import tiny
from everlearn.commands.inspect_model import inspect
from everlearn.commands.model_probe import ModelProbe
from everlearn.config.recipe import Recipe
from everlearn.errors import EverlearnError, RunError
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.report import compare, tables
from everlearn.report.html import page
from everlearn.run.trainer import StageTrainer
from fuzz.harness import command, fuzz
from integration.small_runs import Killed, corpus, elsewhere, labelled, recipe
from unit import report_fixture

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
        train={"max_steps": 3, "save_steps": 2},
        optimizer="carry",
        evaluation={"alone": True, "end_task_seeds": 1, "samples": 1},
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


CONFIG_VALUES: list[Any] = [None, True, 0, -1, 3, 5, 1.5, "", "x", "3", [], [1], {}, {"a": 1}, float("nan")]
ARCHITECTURES = ("roberta", "gpt2", "llama", "t5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    for architecture in ARCHITECTURES:
        tiny.model(architecture).save_pretrained(place / architecture)
        tiny.tokenizer().save_pretrained(place / architecture)
    return [place / architecture for architecture in ARCHITECTURES]


def test_mutated_model_folders(folders: list[Path]) -> None:
    def case(generator: random.Random) -> None:
        folder = generator.choice(folders)
        name = generator.choice(["config.json", "config.json", "config.json", "tokenizer.json"])
        before = (folder / name).read_text(encoding="utf-8")
        content = json.loads(before)
        for _ in range(generator.choice([1, 1, 2])):
            change(content if name == "config.json" else content["model"]["vocab"], generator)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
        try:
            for look in (inspect, ModelProbe):
                with contextlib.suppress(EverlearnError):
                    look(str(folder))
        finally:
            (folder / name).write_text(before, encoding="utf-8")

    fuzz("model folders", 40, case)


def change(content: dict[str, Any], generator: random.Random) -> None:
    """Change one value, or remove it."""
    key = generator.choice(sorted(content))
    if generator.random() < 0.2:
        del content[key]
    else:
        content[key] = copy.deepcopy(generator.choice(CONFIG_VALUES))


VALUES: list[Any] = [
    None, True, 0, -1, 3, 1e308, 10**400, "", "x", "\ud800", "\u202e<b>", "3", [], [[]], [None], [1, 2], {}, {"a": 1},
    {"": []}, {"value": "x"}, ["base", "a", 1, None, None], float("nan"), float("inf"),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and position of a JSON value; of long lists the first ones."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in inside:
        found += places(item, (*path, key))
    return found


def mutated(value: Any, generator: random.Random) -> None:
    """Change one place of it."""
    *parents, last = generator.choice(places(value))
    for key in parents:
        value = value[key]
    kind = generator.choice(["value", "value", "value", "remove", "repeat", "rename"])
    if kind == "remove":
        del value[last]
    elif kind == "repeat" and isinstance(value, list):
        value.append(copy.deepcopy(value[last]))
    elif kind == "rename" and isinstance(value, dict):
        value[generator.choice(["", "x", "mean", "base", "\u202e", "a" * 300])] = value.pop(last)
    else:
        value[last] = copy.deepcopy(generator.choice(VALUES))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of two runs: as the report's tests make them, and with every key."""
    names = ["first", "second", "third"]
    found = report_fixture.results("plain", "Plain", 0.2, names)
    complete = Results.model_validate(found).model_dump(mode="json")
    return [found, complete]


@contextmanager
def refused_with(name: str) -> Iterator[None]:
    """What is inside may end in a sentence that has the name."""
    said = ""
    try:
        yield
    except RunError as error:
        said = str(error)
    assert name in (said or name), said


def test_mutated_results(files: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("results")
    whole, run = (report_fixture.write_run(place / name, files[0], steps=1) for name in ("whole", "run"))

    def case(generator: random.Random) -> None:
        raw = copy.deepcopy(generator.choice(files))
        for _ in range(generator.choice([1, 1, 2, 4])):
            mutated(raw, generator)
        (run / "results.json").write_text(json.dumps(raw), encoding="utf-8")
        with refused_with("results.json"):
            comparison = compare(generator.choice([[run], [run, whole], [whole, run]]))
            for write in (tables.markdown, tables.latex, tables.csv, tables.json):
                write(comparison)
            tables.terminal(comparison)
            if generator.random() < 0.3:
                page(comparison)

    fuzz("results files", 25, case)


def test_mutated_logs_environments_and_recipes(
    files: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a page shows beside the results; nothing of it may end a report but for a file that is no JSON."""
    place = tmp_path_factory.mktemp("beside")
    whole, run = (report_fixture.write_run(place / name, files[0], steps=3) for name in ("whole", "run"))

    def case(generator: random.Random) -> None:
        name = generator.choice(["metrics.jsonl", "metrics.jsonl", "environment.json", "recipe.yaml"])
        before = (run / name).read_text(encoding="utf-8")
        lines = before.splitlines() if name == "metrics.jsonl" else [before]
        for _ in range(generator.choice([1, 1, 3])):
            number = generator.randrange(len(lines))
            value = {"": yaml.safe_load(lines[number])}
            mutated(value, generator)
            lines[number] = json.dumps(next(iter(value.values()), None))
        (run / name).write_text("\n".join(lines), encoding="utf-8")
        try:
            with refused_with(name):
                comparison = compare(generator.choice([[run], [run, whole]]))
                tables.terminal(comparison)
                page(comparison)
        finally:
            (run / name).write_text(before, encoding="utf-8")

    fuzz("beside the results", 8, case)
