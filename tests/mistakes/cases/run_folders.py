"""Run folders, damaged ones too."""

import json
from pathlib import Path
from typing import Any

from cli_project import Project, Spoil
from mistakes import Case, both, file, recipe, run

RESUME, REPORT = ("resume", "runs/first"), ("report", "runs/first")
ONCE_MORE = ("runs/first/*",)


def flipped(name: str) -> Spoil:
    """One bit of a file of the run is another one."""

    def spoil(project: Project) -> None:
        path = project.run_folder / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return spoil


def content(name: str, text: str) -> Spoil:
    """A file of the run holds something else."""
    return lambda project: (project.run_folder / name).write_text(text, encoding="utf-8")


def gone(name: str) -> Spoil:
    """A file of the run is not there."""
    return lambda project: (project.run_folder / name).unlink()


def results(change: Any) -> Spoil:
    """Somebody has edited the results, and taken them from the seal."""

    def spoil(project: Project) -> None:
        path = project.run_folder / "results.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        change(raw)
        path.write_text(json.dumps(raw), encoding="utf-8")
        (path.parent / "seal.json").unlink(missing_ok=True)

    return spoil


def a_folder(name: str) -> Spoil:
    """A folder stands where a file of the run was."""

    def spoil(project: Project) -> None:
        (project.run_folder / name).unlink()
        (project.run_folder / name).mkdir()

    return spoil


def linked_lock(project: Project) -> None:
    """The lock leads to a file of the user's."""
    (project.folder / "mine.txt").write_text("mine", encoding="utf-8")
    (project.run_folder / ".lock").unlink(missing_ok=True)
    (project.run_folder / ".lock").symlink_to(project.folder / "mine.txt")


def half_started(project: Project) -> None:
    """What a kill during the very first write leaves."""
    project.run_folder.mkdir(parents=True)
    (project.run_folder / ".partial.recipe.yaml.0123").write_text("model: gp", encoding="utf-8")


def same_scores(project: Any, outcome: Any) -> None:
    """The results are those of the run that nothing happened to."""
    found = [json.loads((place / "results.json").read_text()) for place in (project.run_folder, _whole(project))]
    assert [found[0][key] for key in ("matrices", "summary")] == [found[1][key] for key in ("matrices", "summary")]


def _whole(project: Any) -> Path:
    return Path(project.finished_folder) / "runs" / "first"


def with_environment(project: Any, outcome: Any) -> None:
    """It is there again, and the scores are the same."""
    assert (project.run_folder / "environment.json").is_file()
    same_scores(project, outcome)


def finished(project: Any, outcome: Any) -> None:
    """The run has been made."""
    assert (project.run_folder / "results.json").is_file()


CASES = [
    Case("resumes a run that is not there", command=("resume", "runs/none"), says=("runs/none", "recipe.yaml")),
    Case("reports a run that is not there", command=("report", "runs/none"), says=("runs/none",)),
    Case("runs a recipe twice", run, says=("already", "everlearn resume", "run.name")),
    Case(
        "runs another recipe into the same folder",
        both(run, recipe("run.seed", 1)),
        says=("another recipe", "run.name"),
    ),
    Case(
        "runs into a folder of other files",
        file("runs/first/precious.txt", "mine"),
        says=("runs/first", "not a run folder"),
    ),
    Case(
        "learns a domain without saying from what",
        command=("learn", "runs/none", "--domain", "c"),
        says=("--domain", "'c'", "="),
    ),
    Case(
        "learns with half an end task",
        command=("learn", "runs/none", "--domain", "c=c.jsonl", "--end-task", "t=train.jsonl"),
        says=("--end-task", "t=train.jsonl"),
    ),
    Case(
        "learns a domain with a slash in its name",
        command=("learn", "runs/none", "--domain", "c/d=c.jsonl"),
        says=("name", "c/d"),
    ),
    Case(
        "learns a domain twice",
        run,
        command=("learn", "runs/first", "--domain", "a=c.jsonl"),
        says=("'a'", "already", "another name"),
    ),
    Case(
        "learns from a corpus that is not there",
        run,
        command=("learn", "runs/first", "--domain", "c=d.jsonl"),
        says=("d.jsonl",),
    ),
    Case(
        "has a score with one bit flipped, and resumes",
        both(run, flipped("evaluation/stage-01/a.safetensors")),
        RESUME,
        says=("evaluation/stage-01/a.safetensors is damaged", "measured again"),
        code=0,
        works="it is named and measured again, with the same result",
        check=same_scores,
        writes=ONCE_MORE,
    ),
    Case(
        "has results with one bit flipped, and reports them",
        both(run, flipped("results.json")),
        REPORT,
        says=("results.json is damaged", "not what was saved"),
    ),
    Case(
        "has a recipe with one bit flipped, and resumes",
        both(run, flipped("recipe.yaml")),
        RESUME,
        says=("recipe.yaml is damaged", "seal.json"),
    ),
    Case(
        "has a stage with one bit flipped, and resumes",
        both(run, flipped("stage-01-a/model.safetensors")),
        RESUME,
        says=("stage-01-a/model.safetensors is damaged", "delete stage-01-a"),
    ),
    Case(
        "has the facts of a stage with one bit flipped, and resumes",
        both(run, flipped("stage-01-a/stage.json")),
        RESUME,
        says=("stage-01-a/stage.json is damaged",),
    ),
    Case("has a seal that is a list", both(run, content("seal.json", "[]")), RESUME, says=("seal.json is damaged",)),
    Case(
        "has the seal of a stage that is null",
        both(run, content("stage-01-a/seal.json", "null")),
        RESUME,
        says=("stage-01-a/seal.json is damaged",),
    ),
    Case(
        "has a time that is a list",
        both(run, content("evaluation/stage-01/_time.json", "[]"), content("results.json", "{}")),
        RESUME,
        says=("_time.json is damaged",),
    ),
    Case(
        "has a string where a table of scores belongs",
        both(run, results(lambda raw: raw["matrices"].update(loss="none"))),
        REPORT,
        says=("results.json cannot be used", "`matrices.loss`", "'none'"),
    ),
    Case(
        "has a number where the domains belong",
        both(run, results(lambda raw: raw.update(domains=3))),
        REPORT,
        says=("results.json cannot be used", "`domains`", "3"),
    ),
    Case(
        "has a score that is a word",
        both(run, results(lambda raw: raw["matrices"]["loss"]["cells"][0].__setitem__(2, "low"))),
        REPORT,
        says=("results.json cannot be used", "`matrices.loss.cells.0.2`", "'low'"),
    ),
    Case(
        "has a folder where the environment was, and resumes",
        both(run, a_folder("environment.json")),
        RESUME,
        says=("environment.json",),
    ),
    Case("has a lock that is a link", both(run, linked_lock), RESUME, says=(".lock is a link", "Remove it")),
    Case(
        "has lost the environment to a kill, and resumes",
        both(run, gone("environment.json")),
        RESUME,
        code=0,
        works="it is written again",
        check=with_environment,
        writes=ONCE_MORE,
    ),
    Case(
        "has a folder in which a run was killed at its first write, and runs",
        half_started,
        ("run", "recipe.yaml", "train.max_steps=1"),
        code=0,
        works="the run is made there",
        check=finished,
        writes=ONCE_MORE,
    ),
]
