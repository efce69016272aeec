"""The recipe: its keys and values, and the file."""

from __future__ import annotations

import os

from cli_project import Outcome, Project
from mistakes import Case, both, domain, file, general, group, recipe, text, without

MAPPING = "must be a mapping of keys"
QUOTES = "write it in quotes"


BROKEN = "'recipe.yaml' is not valid YAML"


def pipe(project: Project) -> None:
    os.mkfifo(project.folder / "pipe.yaml")


def loop(project: Project) -> None:
    (project.folder / "loop.yaml").symlink_to("loop.yaml")


def passed(project: Project, outcome: Outcome) -> None:
    assert '"ok": true' in outcome.out


VALIDATE = ("validate", "recipe.yaml", "--json")


CASES = [
    Case("mistypes a key", group("evaluation", blokcs=3), says=("evaluation.blokcs", "blocks")),
    Case("mistypes a group", recipe("domain", []), says=("domain", "domains")),
    Case("mistypes a key of a domain", domain(txt_column="x"), says=("domains.0.txt_column", "text_column")),
    Case("writes a word for a number", group("data", block_size="many"), says=("data.block_size", "many")),
    Case("asks for no held-out rows", group("evaluation", blocks=0), says=("evaluation.blocks", "0")),
    Case("asks for less than no held-out rows", group("evaluation", blocks=-3), says=("evaluation.blocks", "-3")),
    Case("asks for half a held-out row", group("evaluation", blocks=8.5), says=("evaluation.blocks", "8.5")),
    Case(
        "answers true where a number is asked for", group("evaluation", blocks=True), says=("evaluation.blocks", "true")
    ),
    Case("gives a list for a number", group("evaluation", blocks=[8]), says=("evaluation.blocks", "whole number")),
    Case("scores no rows at a time", group("evaluation", batch_size=0), says=("evaluation.batch_size", "1 or more")),
    Case("asks for no fine-tuning", group("evaluation", end_task_seeds=0), says=("evaluation.end_task_seeds", "0")),
    Case(
        "mistypes when end tasks are asked",
        group("evaluation", end_tasks="evry"),
        says=("evaluation.end_tasks", "'every'"),
    ),
    Case(
        "mistypes which columns are scored", group("evaluation", columns="sene"), says=("evaluation.columns", "'seen'")
    ),
    Case(
        "scores inside a stage after every 0 steps",
        group("evaluation", every=0),
        says=("evaluation.every", "1 or more"),
    ),
    Case(
        "answers maybe where yes or no is asked for",
        group("evaluation", alone="maybe"),
        says=("evaluation.alone", "true or false"),
    ),
    Case("has rows of no tokens", group("data", block_size=0), says=("data.block_size", "8 or more")),
    Case("has rows of four tokens", group("data", block_size=4), says=("data.block_size", "8 or more")),
    Case("has rows of endless tokens", group("data", block_size=float("inf")), says=("data.block_size", "finite")),
    Case("masks everything", group("data", mask_probability=1), says=("data.mask_probability", "below 1")),
    Case("masks nothing", group("data", mask_probability=0), says=("data.mask_probability", "above 0")),
    Case(
        "masks what is not a number",
        group("data", mask_probability=float("nan")),
        says=("data.mask_probability", "finite"),
    ),
    Case("masks 15 instead of 0.15", group("data", mask_probability=15), says=("data.mask_probability", "15")),
    Case("takes a negative seed", group("run", seed=-1), says=("run.seed", "0 or more")),
    Case("takes a word as the seed", group("run", seed="lucky"), says=("run.seed", "whole number")),
    Case("takes half a seed", group("run", seed=0.5), says=("run.seed", "whole number")),
    Case("keeps no stages", group("run", keep_stages=0), says=("`run.keep_stages`", "or 1 or more (got 0)")),
    Case("keeps halves", group("run", stage_dtype="float16"), says=("run.stage_dtype", "float16", "bfloat16")),
    Case("keeps the first stages", group("run", keep_stages="first"), says=("run.keep_stages", "first")),
    Case("writes one note without a list", group("run", notes="mine"), says=("run.notes", "must be a list")),
    Case("writes a number as a note", group("run", notes=[5]), says=("run.notes.0", QUOTES)),
    Case("leaves the model out", without("model"), says=("The recipe needs `model`",)),
    Case("leaves the domains out", without("domains"), says=("The recipe needs `domains`",)),
    Case("leaves a domain's path out", without("domains.0.path"), says=("`domains.0`", "needs a `path`")),
    Case("leaves a domain's name out", without("domains.0.name"), says=("The recipe needs `domains.0.name`",)),
    Case("names no domains", recipe("domains", []), says=("domains",)),
    Case("writes null for the domains", recipe("domains", None), says=("domains", "must be a list")),
    Case(
        "writes one domain without a list",
        recipe("domains", {"name": "a", "path": "a.jsonl"}),
        says=("domains", "must be a list"),
    ),
    Case("lists paths as domains", recipe("domains", ["a.jsonl", "b.jsonl"]), says=("domains.0", MAPPING, "a.jsonl")),
    Case("leaves an item of the domains empty", recipe("domains.1", None), says=("domains.1", MAPPING)),
    Case("leaves a group empty", recipe("data", None), says=("`data`", MAPPING, "None")),
    Case("writes a list for a group", recipe("evaluation", [8]), says=("`evaluation`", MAPPING)),
    Case("leaves the training arguments empty", recipe("train", None), says=("`train`", MAPPING)),
    Case("writes the training arguments as a list", recipe("train", [{"max_steps": 4}]), says=("`train`", MAPPING)),
    Case("mistypes the objective", recipe("objective", "causl"), says=("objective", "'causal'")),
    Case("mistypes what an optimizer begins with", recipe("optimizer", "keep"), says=("optimizer", "'carry'")),
    Case("holds everything out", domain(validation=1.0), says=("domains.0.validation", "between 0 and 1")),
    Case("holds out less than nothing", domain(validation=-0.1), says=("domains.0.validation", "between 0 and 1")),
    Case("holds nothing out with 0", domain(validation=0.0), says=("domains.0.validation", "null")),
    Case("holds out 20 instead of 0.2", domain(validation=20), says=("domains.0.validation", "between 0 and 1")),
    Case("answers no to holding out", domain(validation=False), says=("domains.0.validation",)),
    Case("reads no documents", domain(max_documents=0), says=("domains.0.max_documents", "1 or more")),
    Case("shuffles less than no blocks", domain(shuffle_buffer=-1), says=("domains.0.shuffle_buffer", "0 or more")),
    Case("mistypes what a document is", domain(documents="lines"), says=("domains.0.documents", "'line'")),
    Case("streams sometimes", domain(streaming="sometimes"), says=("domains.0.streaming", "true or false")),
    Case("gives general text training arguments", general(train={"max_steps": 3}), says=("general.train", "remove")),
    Case(
        "leaves the general text's path out",
        recipe("general", {"validation": 0.2}),
        says=("`general`", "needs a `path`"),
    ),
    Case("mistypes a key of the general text", general(txt_column="x"), says=("general.txt_column", "text_column")),
    Case("writes an option below a word", recipe("objective", {"name": "causal"}), says=("objective",)),
    Case("puts a run's key at the top", recipe("seed", 3), says=("Unknown key `seed`",)),
    Case("puts a training argument at the top", recipe("max_steps", 3), says=("Unknown key `max_steps`",)),
    Case("sets a key of a later version", group("run", colour="blue"), says=("Unknown key `run.colour`",)),
    Case("sets two wrong keys", both(group("run", colour="blue"), group("data", blok_size=3)), says=("Unknown key",)),
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
