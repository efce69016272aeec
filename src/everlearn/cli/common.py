"""Arguments and printing that several commands share."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from everlearn import plugins, wording

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from everlearn.data.file_listing import FileGroup
    from everlearn.learner import ContinualLearner
    from everlearn.run.progress import Reporter

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Change the recipe: train.max_steps=100, method=ewc, method.strength=100, domains.0.path=a.txt.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, for example runs/first.")]
Checkpoints = Annotated[
    list[str],
    typer.Argument(metavar="CHECKPOINT", help="Folders or hub ids, also LABEL=PATH; a run stands for its stages."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and the path of the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE_OR_FILE",
        help="Import this first: it registers methods, tasks or metrics of your own. May be repeated.",
    ),
]


def importing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command's function with a further option, `--import`, which is processed first."""

    @functools.wraps(command)
    def with_imports(*arguments: Any, imports: list[str] | None = None, **options: Any) -> Any:
        plugins.bring(imports or (), "--import", files=True)
        wording.IMPORTS[:] = imports or ()
        return command(*arguments, **options)

    hints = get_type_hints(command, include_extras=True)
    own = [each.replace(annotation=hints[name]) for name, each in inspect.signature(command).parameters.items()]
    option = inspect.Parameter("imports", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Imports)
    with_imports.__signature__ = inspect.Signature([*own, option])  # type: ignore[attr-defined]
    with_imports.__annotations__ = hints | {"imports": Imports}
    return with_imports


def pair(text: str, option: str, example: str) -> tuple[str, str]:
    """Split the value of an option, NAME=VALUE.

    Raises:
        RecipeError: it has another form; the message shows an example.
    """
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise no_pair(option, text, example)
    return name, value


def no_pair(option: str, text: str, example: str) -> Exception:
    """Return the error for an option whose value has another form than an example."""
    from everlearn.errors import RecipeError

    return RecipeError(f"`{option}` is '{text}', but must look like {example}.")


def console() -> Console:
    """Return the console of stdout; wide unless it is a terminal, so that a table in a file is not cut."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 140)


def show(value: Any, as_json: bool, rendered: Callable[[], RenderableType]) -> None:
    """Print a result, as JSON or as text."""
    if as_json:
        print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        console().print(rendered())


def empty_table(title: str, words: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    """Return an empty table with columns of words, then columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for name in words:
        table.add_column(Text(name), overflow="fold")
    for name in numbers:
        table.add_column(Text(name), justify="right", overflow="fold")
    return table


def file_table(files: Mapping[str, Sequence[FileGroup]]) -> RenderableType:
    """Return a table of the files of corpora by format, split and use."""
    from rich.text import Text

    table = empty_table("Files", ("corpus", "format", "split", "use"), ("files", "size", "rows"))
    for name, groups in files.items():
        for each in groups:
            words = (name, each.format, each.split or "–", each.use)
            rows = "–" if each.rows is None else f"{each.rows:,}"
            table.add_row(*map(Text, words), f"{each.files:,}", wording.size(each.bytes), rows)
    return table


def say(sentence: str, as_json: bool = False) -> None:
    """Print a line without wrapping it; print nothing when the output is JSON."""
    if not as_json:
        console().print(sentence, markup=False, soft_wrap=True)


def telling(quiet: bool = False) -> Reporter:
    """Silence other libraries, and return the reporter of a command.

    It writes to stderr, so that programs can read stdout.
    """
    from everlearn.config.addresses import LISTENERS
    from everlearn.model.loading import quiet as quiet_libraries
    from everlearn.run.progress import Reporter, Terminal

    quiet_libraries()
    if quiet:
        warnings.simplefilter("ignore")
    reporter = Reporter() if quiet else Terminal()
    LISTENERS[:] = [reporter.say]
    return reporter


def take_to_its_end(
    learner: ContinualLearner, work: Callable[[], object], quiet: bool = False, as_json: bool = False
) -> None:
    """Complete a run, then show its table and the path of its report."""
    work()
    if not learner.processes.is_main_process:
        return
    folder, page = learner.folder.path, learner.folder.report_file
    if as_json:
        from everlearn.report import compare
        from everlearn.report.tables import as_data

        show({"folder": str(folder), "report": str(page), **as_data(compare([folder]))}, True, str)
    else:
        conclude([folder], page, quiet)


def conclude(runs: Sequence[Path], page: Path, quiet: bool = False) -> None:
    """Show a summary of what runs learnt and forgot, and the path of the page."""
    from everlearn.report import compare, terminal

    if not quiet:
        console().print(terminal(compare(runs)))
    say(f"Report: {page}")


def learner_of(run: Path, silent: bool = False) -> ContinualLearner:
    """Open a run folder, reporting progress to the terminal."""
    from everlearn.learner import ContinualLearner

    return ContinualLearner.open(run, reporter=telling(silent))


def learner_to_go_on(source: str, into: Path | None, silent: bool = False) -> ContinualLearner:
    """Open a run folder; or create a run that continues from an export with its memory."""
    from everlearn.data.corpus import HUB_ID
    from everlearn.errors import RecipeError
    from everlearn.learner import ContinualLearner
    from everlearn.run.exported_run import PLACE
    from everlearn.run.writable import check_place

    place = Path(source)
    exported = (place / PLACE).is_dir() or (not place.exists() and HUB_ID.fullmatch(source) is not None)
    if into is None:
        if (place / PLACE).is_dir():
            raise RecipeError(f"'{source}' is an export, not a run folder: name the new run's folder (`--into`).")
        if exported:  # without --into no hub request is made, since this may be a mistyped run folder
            raise RecipeError(
                f"{source} is not a run folder: it has no recipe.yaml. To continue from an export on the hub, name "
                "the new run's folder (`--into`)."
            )
        return learner_of(place, silent)
    if not exported and (place / "recipe.yaml").is_file():
        raise RecipeError(f"`--into` is for exports, but {source} is a run folder, which is resumed in place.")
    check_place("--into", into, folder=True)
    return ContinualLearner.from_export(source, into, reporter=telling(silent))
