"""The recipe as a file."""

from __future__ import annotations

import os

from cli_project import Outcome, Project
from mistakes import Case, file, text

BROKEN = "'recipe.yaml' is not valid YAML"


def pipe(project: Project) -> None:
    os.mkfifo(project.folder / "pipe.yaml")


def loop(project: Project) -> None:
    (project.folder / "loop.yaml").symlink_to("loop.yaml")


def passed(project: Project, outcome: Outcome) -> None:
    assert '"ok": true' in outcome.out


VALIDATE = ("validate", "recipe.yaml", "--json")
CASES = [
    Case("leaves a bracket of the YAML open", text(lambda old: "model: [a"), says=(BROKEN, "line 1", "',' or ']'")),
    Case("leaves a brace of the YAML open", text(lambda old: "model: {a: 1"), says=(BROKEN, "line 1")),
    Case(
        "leaves a quote of the YAML open",
        text(lambda old: old + 'objective: "causal\n'),
        says=(BROKEN, "unexpected end"),
    ),
    Case("forgets a colon", text(lambda old: old + "objective causal\n"), says=(BROKEN, "line")),
    Case(
        "indents with a tab",
        text(lambda old: "run:\n\tname: x\n" + old),
        says=(BROKEN, "line 2", "a tab; indent with spaces"),
    ),
    Case(
        "indents a key too far",
        text(lambda old: old + "objective: causal\n  optimizer: carry\n"),
        says=(BROKEN, "line"),
    ),
    Case(
        "writes a group twice",
        text(lambda old: old + "train:\n  max_steps: 9\n"),
        says=(BROKEN, "`train`", "second time"),
    ),
    Case(
        "writes a key of a group twice",
        text(lambda old: old.replace("max_steps: 4", "max_steps: 4\n  max_steps: 9")),
        says=(BROKEN, "`max_steps`", "second time"),
    ),
    Case("writes two documents", text(lambda old: f"{old}---\n{old}"), says=(BROKEN, "second document")),
    Case("writes an empty file", text(lambda old: "# nothing yet\n"), says=("recipe.yaml", "is empty")),
    Case("writes a list at the top", text(lambda old: "- model: a\n"), says=("recipe.yaml", "mapping")),
    Case("writes one word", text(lambda old: "roberta\n"), says=("recipe.yaml", "mapping")),
    Case("writes a number as a key", text(lambda old: old + "1: 2\n"), says=(BROKEN, "`1` is no key")),
    Case("writes on as a key", text(lambda old: old + "on: 2\n"), says=(BROKEN, "`on` is no key")),
    Case("writes a list as a key", text(lambda old: old + "? [a]\n: 2\n"), says=(BROKEN, "is no key")),
    Case("takes an alias that is not there", text(lambda old: old + "objective: *kind\n"), says=(BROKEN, "kind")),
    Case("writes an alias into itself", text(lambda old: old + "train2: &a [*a]\n"), says=(BROKEN, "levels deep")),
    Case(
        "writes aliases that unfold to millions of values",
        text(
            lambda old: (
                old
                + "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n"
                + "".join(f"x{n + 1}: &x{n + 1} [{', '.join([f'*x{n}'] * 10)}]\n" for n in range(8))
            )
        ),
        says=(BROKEN, "unfolds to more than"),
    ),
    Case("nests 60 lists", text(lambda old: f"{old}objective: {'[' * 60}{']' * 60}\n"), says=(BROKEN, "levels deep")),
    Case(
        "nests 2,000 lists",
        text(lambda old: f"{old}objective: {'[' * 2000}{']' * 2000}\n"),
        says=(BROKEN, "levels deep"),
    ),
    Case(
        "asks YAML to make a Python object",
        text(lambda old: old + "run2: !!python/object/apply:os.system [ls]\n"),
        says=(BROKEN, "tag"),
    ),
    Case(
        "asks YAML for a set", text(lambda old: old.replace("name: first", "name: !!set {a}")), says=(BROKEN, "!!set")
    ),
    Case(
        "writes a number of 5,000 digits",
        text(lambda old: old.replace("max_steps: 4", f"max_steps: {'9' * 5000}")),
        says=(BROKEN, "number"),
    ),
    Case(
        "writes a hexadecimal number of 4,000 digits",
        text(lambda old: old.replace("max_steps: 4", f"max_steps: 0x{'f' * 4000}")),
        says=(BROKEN, "number of 4,002 characters", "0xfff"),
    ),
    Case(
        "writes a number of 30 digits",
        text(lambda old: old.replace("max_steps: 4", f"max_steps: {'9' * 30}")),
        says=("train.max_steps", "2,147,483,647"),
    ),
    Case(
        "saves the recipe in Latin-1",
        text(lambda old: ("# für später\n" + old).encode("latin-1")),
        says=(BROKEN, "not text"),
    ),
    Case("gives a binary file as the recipe", text(lambda old: bytes(range(256))), says=(BROKEN, "not text")),
    Case("gives a corpus as the recipe", command=("run", "a.jsonl"), says=("a.jsonl", "not valid YAML")),
    Case(
        "gives a file of 2 MB as the recipe",
        file("big.yaml", b"# x\n" * 2**19),
        command=("run", "big.yaml"),
        says=("big.yaml", "too many for a recipe"),
    ),
    Case(
        "gives a folder as the recipe",
        file("data/a.txt", ""),
        command=("run", "data"),
        says=("'data'", "is a folder"),
    ),
    Case("gives a pipe as the recipe", pipe, command=("run", "pipe.yaml"), says=("pipe.yaml", "a pipe or a device")),
    Case("gives a device as the recipe", command=("run", "/dev/zero"), says=("/dev/zero", "a pipe or a device")),
    Case("gives a link to itself as the recipe", loop, command=("run", "loop.yaml"), says=("loop.yaml",)),
    Case("looks for the recipe below a file", command=("run", "a.jsonl/recipe.yaml"), says=("a.jsonl/recipe.yaml",)),
    Case(
        "saves the recipe in UTF-16",
        text(lambda old: old.encode("utf-16")),
        VALIDATE,
        code=0,
        works="it is read",
        check=passed,
    ),
    Case(
        "saves the recipe with a byte order mark",
        text(lambda old: old.encode("utf-8-sig")),
        VALIDATE,
        code=0,
        works="it is read",
        check=passed,
    ),
    Case(
        "writes 1e-4, which YAML 1.1 reads as a word",
        text(lambda old: old.replace("max_steps: 4", "max_steps: 4\n  learning_rate: 1e-4\n  weight_decay: 1E-2")),
        VALIDATE,
        code=0,
        works="it is a number",
        check=passed,
    ),
]
