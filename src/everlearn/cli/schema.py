"""``everlearn schema``: the JSON Schema of a recipe, for editors."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Accepted for symmetry: the output is JSON anyway.")] = False,
) -> None:
    """Print the JSON Schema of a recipe, including the options of every method, for editors and other programs."""
    import json

    from everlearn.commands.known import schema

    print(json.dumps(schema(), indent=1, ensure_ascii=False))
