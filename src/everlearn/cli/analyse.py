"""``everlearn analyse``: read a finished run and show what changed inside its models.

``everlearn analyse KIND RUN`` has a command for each analysis, generated from the function's parameters and docstring.
Analyses that are only listed are read from their source, so that ``--help`` loads no torch.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from everlearn import plugins
from everlearn.cli.common import AsJson, RunPath, importing, learner_of, say, show
from everlearn.cli.plugin_commands import docstring_of, stand_in
from everlearn.errors import PluginError, RecipeError, did_you_mean

if TYPE_CHECKING:
    from everlearn.diagnostics.registry import Findings
    from everlearn.learner import ContinualLearner

PACKAGE = "everlearn.diagnostics.analyses"
"""Has a module for each of everlearn's own analyses."""
OVERVIEW = "RUN"
"""Name of the hidden command without a KIND."""
Page = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page; default: a file in the run's folder.")
]


class _Kinds(TyperGroup):
    """A group of commands, one per analysis; a first argument that names none is a run, whose overview is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the overview if the first argument names no analysis."""
        first, second = [*args, "", ""][:2]
        kinds = {*self.commands} - {OVERVIEW}
        if first not in {*kinds, "--help"}:
            if first.isidentifier() and second and not second.startswith("-") and not Path(first).exists():
                raise RecipeError(f"There is no analysis '{first}'.{did_you_mean(first, kinds)}")
            args = [OVERVIEW, *args]
        return super().parse_args(ctx, args)


def application(words: Sequence[str] | None = None, all_options: bool = False) -> typer.Typer:
    """Create the group of commands.

    Args:
        words: the arguments after `analyse` on the command line; None for another command. Only the analysis that they
            name is loaded with its options; others are only listed.
        all_options: whether to include the options of all analyses.
    """
    app = typer.Typer(cls=_Kinds, subcommand_metavar="[KIND] RUN [OPTIONS]")
    app.callback()(_about)
    app.command(OVERVIEW, hidden=True)(importing(overview))
    if words is None and not all_options:
        return app
    plugins.bring(_imports(words or ()), "--import", files=True)
    for name in names():
        if all_options or name in (words or ())[:1]:
            app.command(name)(importing(_command(name)))
        elif (text := _text(name)) is not None:
            app.command(name)(stand_in(text))
    return app


def _about() -> None:
    """Read a finished run and show what changed inside its models.

    `everlearn analyse RUN` shows what the run recorded: how far each layer moved, what importance protects, the
    codelength of its training text. `everlearn analyse KIND RUN` runs one analysis, with its own options.
    """


def names() -> list[str]:
    """Return the names of all analyses; imports nothing."""
    folder = Path(__file__).parents[1].joinpath(*PACKAGE.split(".")[1:])
    own = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    return sorted({*own, *plugins.names("analyses"), *plugins.registered("analyses")})


def _text(name: str) -> str | None:
    """Return the first line of an analysis's help from its source; None if it cannot be imported."""
    module = plugins.module_of("analyses", name) or f"{PACKAGE}.{name}"
    text = docstring_of(module, lambda function: _registers(function, name))
    try:
        return (text or inspect.getdoc(_command(name)) or "").partition("\n")[0]
    except PluginError:  # reported after the list
        return None


def _registers(function: ast.FunctionDef, name: str) -> bool:
    return any(f"analysis('{name}'" in ast.unparse(each) for each in function.decorator_list)


def _imports(words: Sequence[str]) -> list[str]:
    """Return the values of `--import`, which may register an analysis and so must be read before its options."""
    after = [word for option, word in itertools.pairwise(words) if option == "--import"]
    return [*after, *(word.partition("=")[2] for word in words if word.startswith("--import="))]


def _command(name: str) -> Callable[..., None]:
    """Return the command of an analysis: a run, the options of its function, `--output` and `--json`."""
    from everlearn.diagnostics.analyses import find_analysis

    analyse = find_analysis(name)

    def command(run: RunPath, output: Page = None, as_json: AsJson = False, **options: Any) -> None:
        _show(run, output, as_json, f"analysis-{name}.html", {name: functools.partial(analyse, **options)})

    hints = get_type_hints(analyse.analyse, include_extras=True) | get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(analyse.analyse).parameters.values()
    first, *others = [each for each in inspect.signature(command).parameters.values() if each.name != "options"]
    order = [first, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *others))]
    command.__signature__ = inspect.Signature([each.replace(annotation=hints[each.name]) for each in order])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: hints[each.name] for each in order}
    command.__doc__ = inspect.getdoc(analyse.analyse)
    return command


def overview(run: RunPath, output: Page = None, as_json: AsJson = False) -> None:
    """Show what a finished run recorded: how far layers moved, what importance protects, the codelength of its text."""
    from everlearn.diagnostics.analyses import recorded

    _show(run, output, as_json, "analysis.html", {each.name: each for each in recorded()})


def _show(
    run: Path,
    output: Path | None,
    as_json: bool,
    page: str,
    analyses: Mapping[str, Callable[[ContinualLearner], Findings]],
) -> None:
    """Run analyses, and show the results: JSON or tables, and a page."""
    from everlearn.diagnostics.pages import joined_data, terminal, write_page
    from everlearn.errors import RunError
    from everlearn.run.writable import check_place

    if output is not None:
        check_place("--output", output)
    learner = learner_of(run)
    findings = {name: analyse(learner) for name, analyse in analyses.items()}
    sections = [section for each in findings.values() for section in each.sections]
    notes = [each.note for each in findings.values() if each.note]
    if output is not None and not sections:
        raise RunError(" ".join([*(notes or ["There is nothing to show."]), "Leave out --output."]))
    show(joined_data(findings.values()), as_json, lambda: terminal(sections))
    for note in notes:
        say(note, as_json)
    if sections:
        shown = ", ".join(name for name, each in findings.items() if each.sections)
        say(f"Page: {write_page(output or run / page, f'{learner.recipe.run.name}: {shown}', sections)}", as_json)
