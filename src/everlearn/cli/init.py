"""``everlearn init``: write a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("recipe.yaml"),
) -> None:
    """Write a commented recipe: every key with its default and what it means."""
    from everlearn import files
    from everlearn.errors import RecipeError
    from everlearn.run.places import check_place
    from everlearn.tools.describing import commented_recipe

    if file.exists():
        raise RecipeError(f"'{file}' exists already and is not overwritten. Give another name: `everlearn init FILE`.")
    check_place("FILE", file)
    files.write_text(file, commented_recipe())
    print(f"Wrote {file}. Edit `model` and `domains`, then check it: everlearn validate {file}")
