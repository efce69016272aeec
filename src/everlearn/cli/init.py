"""``everlearn init``: write a recipe to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import pair

TASKS = ("sft", "pretrain")


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The recipe to write; - is standard output.", allow_dash=True)
    ] = Path("recipe.yaml"),
    model: Annotated[
        str | None, typer.Option("--model", metavar="ID_OR_FOLDER", help="The model, whose configuration is read.")
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option("--domain", metavar="NAME=PATH", help="A corpus to train on; may be repeated, in training order."),
    ] = None,
    general: Annotated[
        str | None, typer.Option("--general", metavar="PATH", help="General text that must not be forgotten.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="sft|pretrain",
            help="Train on prompts and answers, or on text; default: decided by the columns.",
        ),
    ] = None,
    every_key: Annotated[bool, typer.Option("--all", help="Add every other key, with its default.")] = False,
) -> None:
    """Write a short recipe that fits a model and corpora, with the recommended method."""
    from everlearn.commands.first_recipe import first_recipe
    from everlearn.errors import RecipeError, did_you_mean
    from everlearn.options import path_or_id
    from everlearn.run.progress import Terminal

    printed = str(file) == "-"
    if task is not None and task not in TASKS:
        raise RecipeError(f"`--task` is '{task}'.{did_you_mean(task, TASKS)}")
    if not printed:
        if file.is_dir():
            raise RecipeError(f"'{file}' is a folder. Name a file in it: `everlearn init {file / 'recipe.yaml'}`.")
        from everlearn.run.writable import check_place

        check_place("FILE", file)
    domains: dict[str, str] = {}
    for words in domain or ():
        name, path = pair(words, "--domain", "contracts=contracts.jsonl")
        if name in domains:
            raise RecipeError(f"`--domain` has the name '{name}' more than once; names must differ.")
        domains[name] = path_or_id(path, "--domain")
    if model is not None:
        from everlearn.model.loading import quiet

        quiet()
    recipe = first_recipe(model, domains, general, task, Terminal())
    text = recipe.text("recipe.yaml" if printed else str(file))
    if every_key:
        from everlearn.commands.every_key import with_every_key

        text = with_every_key(recipe.values)
    if not printed and file.exists():  # said last, so that it hides no mistake in what is to be written
        raise RecipeError(f"'{file}' exists already and is not overwritten. Give another name: `everlearn init FILE`.")
    if printed:
        print(text, end="")
    else:
        from everlearn import files, wording

        files.write_text(file, text)
        edit = " and ".join(f"`{key}`" for key, value in (("model", model), ("domains", domains)) if not value)
        print(
            f"Wrote {file}. {f'Edit {edit}, then check' if edit else 'Check'} it: {wording.command('validate', file)}"
        )
    for note in recipe.notes:
        print(f"Note: {note}", file=sys.stderr)
