"""The options of ``everlearn analyse RUN`` from before analyses were commands; they are accepted in this version."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from everlearn.errors import RecipeError

COMMANDS = {
    "similarity": ("importance", "blocks"),
    "magnitude": ("activations", "blocks"),
    "distance": ("distance", "blocks"),
    "restore": ("layers", "blocks"),
    "merge_back": ("line", "blocks"),
    "ranks": ("ranks", "contexts"),
}
"""Former option → the analysis that it stands for, and the option of this that had its value."""
COMPARING = ("distance", "layers", "line")
"""Analyses that take `--from` and `--to`."""
ALSO = "decay=4"
"""How `--also` looked."""


@dataclass(frozen=True)
class FormerOption:
    """An analysis that former options ask for.

    Attributes:
        name: its name.
        options: the options of its function.
        before: the option as it was given.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    before: str = ""

    def note(self, run: Path) -> str:
        """Return the sentence that names the command of today."""
        names = {"since": "from", "until": "to"}
        words = [f"--{names.get(key, key)} {value}" for key, value in self.options.items()]
        now = " ".join(["everlearn analyse", self.name, str(run), *words])
        return f"Note: `{self.before}` is a command of its own now, and goes with the next version: `{now}`."


def parameters() -> list[inspect.Parameter]:
    """Return the former options as parameters of a command; `--help` does not list them."""
    number = Annotated[int, typer.Option(min=0, hidden=True)]
    stage = {name: Annotated[str | None, typer.Option(f"--{name}", hidden=True)] for name in ("from", "to")}
    kinds: dict[str, tuple[Any, Any]] = dict.fromkeys(COMMANDS, (number, 0))
    kinds |= {"since": (stage["from"], None), "until": (stage["to"], None)}
    kinds["also"] = (Annotated[list[str] | None, typer.Option(hidden=True)], None)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=value, annotation=kind) for name, (kind, value) in kinds.items()]


def asked(options: Mapping[str, Any]) -> list[FormerOption]:
    """Return the analyses that former options ask for.

    Raises:
        RecipeError: `--from` or `--to` is given without an analysis of two stages, or `--also` has another form.
    """
    from everlearn.cli.common import no_pair, pair

    stages = {name: value for name in ("since", "until") if (value := options[name]) is not None}
    found = []
    for option, (name, parameter) in COMMANDS.items():
        if options[option]:
            own = {parameter: options[option], **(stages if name in COMPARING else {})}
            found.append(FormerOption(name, own, f"--{option.replace('_', '-')}"))
    if stages and not any(each.name in COMPARING for each in found):
        raise RecipeError(
            f"`--from` and `--to` are options of the analyses {', '.join(COMPARING)}: `everlearn analyse distance RUN`."
        )
    for words in options["also"] or ():
        name, blocks = pair(words, "--also", ALSO)
        if not blocks.isdecimal():
            raise no_pair("--also", words, ALSO)
        found.append(FormerOption(name, {"blocks": int(blocks)}, f"--also {words}"))
    return found


def tell(analyses: list[FormerOption], run: Path) -> None:
    """Print the commands of today to stderr."""
    for each in analyses:
        print(each.note(run), file=sys.stderr)
