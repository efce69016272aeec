"""Names."""

from __future__ import annotations

from cli_project import Outcome, Project
from mistakes import Case, both, domain, general, group, recipe

SLUG = "letters, digits, '.', '-' and '_'"
NO_PATH = "not a path"


def in_its_own_folder(project: Project, outcome: Outcome) -> None:
    assert "runs/2024 is free" in outcome.out


CASES = [
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
