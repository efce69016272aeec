"""``everlearn extend``: add tokens for the words of a domain to a model before training on it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, show
from everlearn.wording import count, percent

if TYPE_CHECKING:
    from rich.text import Text

    from everlearn.commands.extend import Extension


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder of the base model.")],
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder to write to, for a recipe's `model`.")],
    *,
    text: Annotated[
        str, typer.Option("--text", metavar="PATH", help="The domain's text: a file, a folder, a glob or a hub id.")
    ],
    text_column: Annotated[
        str | None, typer.Option(help="Column with the text; default: columns are found as by `init`, chats too.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens to add, the most useful first.")] = 1000,
    initialise: Annotated[
        str, typer.Option(help="Embedding of a new token: the mean of its `pieces`, or the `mean` of all tokens.")
    ] = "pieces",
    as_json: AsJson = False,
) -> None:
    """Add tokens to a base model for the frequent words of a domain that its tokenizer splits."""
    from typing import Any, get_args

    from everlearn.commands.extend import extend
    from everlearn.data.columns import choose_columns, first_rows
    from everlearn.data.corpus import Corpus
    from everlearn.errors import RecipeError
    from everlearn.model.loading import quiet
    from everlearn.model.options import Model
    from everlearn.model.vocabulary import Initialise
    from everlearn.options import path_or_id
    from everlearn.run.writable import check_place

    quiet()
    if initialise not in get_args(Initialise):
        raise RecipeError(f"`--initialise` is '{initialise}'; it can be {' or '.join(get_args(Initialise))}.")
    check_place("FOLDER", output, folder=True)
    path = path_or_id(text, "--text")
    columns: dict[str, Any] = {}
    if text_column is not None:
        columns["text_column"] = text_column
    else:
        columns |= choose_columns(first_rows(path, "--text"), path, None, nested="give `--text-column '{}'`").keys
    corpus = Corpus(path=path, **columns)
    extension = extend(Model(path=model), corpus, output, tokens=tokens, initialise=initialise)  # type: ignore[arg-type]
    show({**asdict(extension), "folder": str(output)}, as_json, lambda: _rendered(extension, output))


def _rendered(extension: Extension, output: Path) -> Text:
    from rich.text import Text

    before, after = extension.bytes_per_token
    words = ", ".join(token.text.lstrip("Ġ▁#") for token in extension.tokens[:12])
    words += " …" if len(extension.tokens) > 12 else ""
    return Text(
        f"{count(len(extension.tokens), 'new token')} ({extension.vocabulary[1]:,} in all): {words}\n"
        f"The text takes {percent(1 - before / after)} fewer tokens ({before:.2f} → {after:.2f} bytes a token).\n"
        f"Extended model: {output}"
    )
