"""Names and paths."""

from __future__ import annotations

import json

from cli_project import Outcome, Project
from mistakes import Case, both, domain, file, general, group, recipe, run

# -- Paths -------------------------------------------------------------------------------------------------------------


VALIDATE = ("validate", "recipe.yaml", "--json")
LONG = "y/" * 2500
RUN = ("run", "recipe.yaml")


def loop(project: Project) -> None:
    (project.folder / "loop").symlink_to("loop")


def lock_in_the_way(project: Project) -> None:
    (project.run_folder / ".lock").unlink(missing_ok=True)
    (project.run_folder / ".lock").mkdir()


def nowhere(project: Project) -> None:
    (project.folder / "link").symlink_to("unmounted/disk")


def found(name: str) -> object:
    """A check of `validate` by its name, and what it must say."""

    def check(project: Project, outcome: Outcome) -> None:
        checks = {each["name"]: each for each in json.loads(outcome.out)["checks"]}
        assert checks["run folder"]["detail"] == f"{project.home}/{name} is free"

    return check


def read_at_home(project: Project, outcome: Outcome) -> None:
    assert str(project.home / "corpus.jsonl") in outcome.out


def corpus_at_home(project: Project) -> None:
    (project.home / "corpus.jsonl").write_bytes((project.folder / "a.jsonl").read_bytes())


CASES = [
    Case(
        "names a run's folder ~/x",
        group("run", folder="~/x"),
        VALIDATE,
        code=0,
        works="the folder in the home folder",
        check=found("x"),
    ),
    Case(
        "names a corpus in ~",
        both(corpus_at_home, domain(path="~/corpus.jsonl")),
        VALIDATE,
        code=0,
        works="it is read there",
        check=read_at_home,
    ),
    Case(
        "names a run's folder in a home that is not there",
        group("run", folder="~nouser/x"),
        says=("`run.folder`", "~nouser/x", "no user 'nouser'"),
    ),
    Case(
        "names general text in a home that is not there",
        command=(*RUN, "general=~nouser"),
        says=("`general.path`", "~nouser", "no user 'nouser'"),
    ),
    Case(
        "names a corpus in a home that is not there",
        domain(path="~nouser/a.jsonl"),
        says=("`domains.0.path`", "no user 'nouser'"),
    ),
    Case(
        "names a model in a home that is not there",
        recipe("model", "~nouser/model"),
        says=("`model.path`", "no user 'nouser'"),
    ),
    Case(
        "keeps the cache in a home that is not there",
        group("data", cache="~nouser/cache"),
        says=("`data.cache`", "no user 'nouser'"),
    ),
    Case(
        "names a corpus by a path of 5,000 characters", domain(path=LONG), says=("`domains.0.path`", "5,000 characters")
    ),
    Case("names a corpus of 300 letters", domain(path="y" * 300), says=("`domains.0.path`", "300 characters", "255")),
    Case(
        "names a model by a path of 5,000 characters", recipe("model", LONG), says=("`model.path`", "5,000 characters")
    ),
    Case(
        "names a run's folder by a path of 5,000 characters",
        group("run", folder=LONG),
        says=("`run.folder`", "5,000 characters"),
    ),
    Case("names a recipe by a path of 5,000 characters", command=("run", LONG), says=("`RECIPE`", "4,999 characters")),
    Case("names a run by a path of 5,000 characters", command=("resume", LONG), says=("File name too long",)),
    Case("puts a null byte into a path", domain(path="a\0.jsonl"), says=("domains.0.path", "x00")),
    Case("puts a lone surrogate into a path", domain(path="a\ud800.jsonl"), says=("domains.0.path", "ud800")),
    Case("names null as a path", domain(path=None), says=("domains.0", "path")),
    Case("names a number as a path", domain(path=5), says=("domains.0.path", "in quotes")),
    Case("names a list of paths", domain(path=["a.jsonl"]), says=("domains.0.path", "must be text")),
    Case(
        "names a folder without text",
        both(file("texts/notes.docx", "x"), domain(path="texts")),
        says=("texts", "known format"),
    ),
    Case(
        "names a file of no known format", both(file("a.docx", "x"), domain(path="a.docx")), says=("a.docx", "format")
    ),
    Case("names a pattern that matches nothing", domain(path="x*.jsonl"), says=("x*.jsonl", "matches no file")),
    Case("names a link to itself", both(loop, domain(path="loop")), says=("loop",)),
    Case("names held-out text that is not there", domain(validation="held.jsonl"), says=("held.jsonl", "no such file")),
    Case("names a device as a corpus", domain(path="/dev/zero"), says=("/dev/zero",)),
    Case("names general text that is not there", general(path="generl.jsonl"), says=("generl.jsonl", "general.jsonl")),
    Case(
        "names an end task's file that is not there",
        recipe("end_tasks", [{"name": "t", "train": "trian.jsonl", "test": "test.jsonl"}]),
        says=("trian.jsonl", "train.jsonl"),
    ),
    Case(
        "names a file of a suite that is not there", domain(path="suite:dosc/sympy/train.jsonl"), says=("dosc", "docs")
    ),
    Case("names a suite without a file", domain(path="suite:"), says=("suite",)),
    Case(
        "names a file as the run's folder", group("run", folder="a.jsonl"), says=("`run.folder` is 'a.jsonl'", "a file")
    ),
    Case(
        "names a run's folder below a file", group("run", folder="a.jsonl/x"), says=("`run.folder`", "Not a directory")
    ),
    Case("has a file where the runs go", file("runs", "mine"), says=("runs", "Not a directory")),
    Case("names a run's folder in /proc", group("run", folder="/proc/x"), says=("`run.folder`", "/proc")),
    Case("names a run's folder in /sys", group("run", folder="/sys/x"), says=("`run.folder`", "/sys")),
    Case(
        "names a run's folder below /dev/null",
        group("run", folder="/dev/null/x"),
        says=("`run.folder`", "/dev/null", "Not a directory"),
    ),
    Case(
        "names a run's folder behind a link that leads nowhere",
        both(nowhere, group("run", folder="link/x")),
        says=("`run.folder`", "link/x"),
    ),
    Case("names no folder for the run", group("run", folder=""), says=("`run.folder` is empty",)),
    Case(
        "keeps the cache in a file",
        group("data", cache="a.jsonl"),
        says=("`data.cache`", "a.jsonl", "must be a folder"),
    ),
    Case("keeps the cache in /proc", group("data", cache="/proc/cache"), says=("`data.cache`", "/proc/cache")),
    Case("resumes a file", command=("resume", "a.jsonl"), says=("a.jsonl", "not a run folder")),
    Case(
        "resumes a folder that holds no run",
        file("runs/mine/x", ""),
        ("resume", "runs/mine"),
        says=("runs/mine", "not a run folder"),
    ),
    Case("reports a file", command=("report", "a.jsonl"), says=("a.jsonl",)),
    Case(
        "analyses a folder that holds no run",
        file("runs/mine/x", ""),
        ("analyse", "runs/mine"),
        says=("runs/mine", "not a run folder"),
    ),
    Case(
        "writes an analysis into /proc",
        run,
        ("analyse", "runs/first", "-o", "/proc/x.html"),
        says=("`--output`", "/proc"),
    ),
    Case(
        "has a folder in the place of the lock",
        both(run, lock_in_the_way),
        ("learn", "runs/first", "--domain", "c=c.jsonl"),
        says=(".lock",),
    ),
]


# -- Names -------------------------------------------------------------------------------------------------------------


SLUG = "letters, digits, '.', '-' and '_'"
NO_PATH = "not a path"


def in_its_own_folder(project: Project, outcome: Outcome) -> None:
    assert "runs/2024 is free" in outcome.out


CASES_NAMES = [
    Case("calls two domains the same", domain(1, name="a"), says=("domains", "'a'")),
    Case("calls two domains a and A", domain(1, name="A"), says=("`domains`", "'a'", "'A'", "case")),
    Case("puts a slash into a domain's name", domain(name="a/b"), says=("domains.0.name", "a/b")),
    Case("puts a space into a domain's name", domain(name="a b"), says=("domains.0.name", SLUG)),
    Case("ends a domain's name with a space", domain(name="a "), says=("domains.0.name", SLUG)),
    Case("calls a domain ..", domain(name=".."), says=("domains.0.name", SLUG)),
    Case("calls a domain nothing", domain(name=""), says=("domains.0.name", SLUG)),
    Case("calls a domain in Japanese", domain(name="日本語"), says=("domains.0.name", SLUG)),
    Case("writes é as two characters", domain(name="cafe\u0301"), says=("domains.0.name", SLUG)),
    Case("calls a domain by a number", domain(name=2024), says=("domains.0.name", "2024", "in quotes")),
    Case("calls a domain no, as Norway", domain(name=False), says=("domains.0.name", "no", "in quotes")),
    Case("calls a domain null", domain(name=None), says=("domains.0.name", "must be text")),
    Case("puts a control character into a domain's name", domain(name="a\x1b[31m"), says=("domains.0.name", "x1b")),
    Case(
        "gives a domain a name of 240 letters", domain(name="x" * 240), says=("domains.0.name", "100 characters", "240")
    ),
    Case("calls a domain as the row of the base model", domain(name="base"), says=("'base' is taken",)),
    Case(
        "calls the general text as the column of means is called",
        recipe("general", {"name": "mean", "path": "a.jsonl"}),
        says=("'mean' is taken", "choose another"),
    ),
    Case(
        "calls a domain as the general text",
        both(general(), domain(name="general")),
        says=("'general'", "general.name"),
    ),
    Case("calls a run ../../up", group("run", name="../../up"), says=("`run.name`", "../../up", NO_PATH, "run.folder")),
    Case("calls a run ..", group("run", name=".."), says=("`run.name`", "dot", NO_PATH)),
    Case("calls a run .", group("run", name="."), says=("`run.name`", "dot", NO_PATH)),
    Case("calls a run by a whole path", group("run", name="/tmp/up"), says=("`run.name`", "/tmp/up", NO_PATH)),
    Case("puts a slash into a run's name", group("run", name="a/b"), says=("`run.name`", "a/b", NO_PATH)),
    Case("puts a backslash into a run's name", group("run", name="a\\b"), says=("`run.name`", NO_PATH)),
    Case("calls a run nothing", group("run", name=""), says=("`run.name`", "empty")),
    Case("calls a run a space", group("run", name=" "), says=("`run.name`", "spaces")),
    Case("ends a run's name with a space", group("run", name="first "), says=("`run.name`", "spaces")),
    Case("puts a line end into a run's name", group("run", name="a\nb"), says=("`run.name`", "holds", "\\n")),
    Case("puts a null byte into a run's name", group("run", name="a\0b"), says=("run.name", "x00")),
    Case("gives a run a name of 300 letters", group("run", name="x" * 300), says=("`run.name`", "300 characters")),
    Case(
        "calls a run by a number in the file",
        group("run", name=2024),
        says=("run.name", "2024", "in quotes"),
    ),
    Case(
        "calls a run by a number on the command line",
        command=("validate", "recipe.yaml", "run.name=2024", "--json"),
        code=0,
        works="the run is called 2024",
        check=in_its_own_folder,
    ),
    Case("gives a run's name in braces", command=("run", "recipe.yaml", "run.name={{x}}"), says=("run.name", "YAML")),
]
CASES += CASES_NAMES
