"""``everlearn export``: export a stage without local paths and training text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from everlearn.cli.common import AsJson, say, show


def command(
    stage: Annotated[
        Path, typer.Argument(metavar="STAGE", help="A stage's folder, or a run's, which stands for its last stage.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder to write to.")],
    with_memory: Annotated[
        bool,
        typer.Option(
            "--with-memory", help="Add what `everlearn learn` needs to continue; it may contain training text."
        ),
    ] = False,
    adapter: Annotated[
        bool | None,
        typer.Option(
            "--adapter/--merged", help="The PEFT adapter only, or the merged model; default: as the stage is stored."
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option("--dtype", help="Round the weights to this number format; default: float32, as they were learnt."),
    ] = None,
    base_model: Annotated[
        str | None, typer.Option("--base-model", metavar="HUB_ID", help="The base model, for the card.")
    ] = None,
    license: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="For the card; default: the base model's.")
    ] = None,
    push: Annotated[
        str | None, typer.Option("--push", metavar="HUB_ID", help="Upload the folder, as a private repository.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: make a new repository public.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a stage's model, tokenizer and card without training text and local paths; with --push, upload it to the
    hub."""
    from everlearn.commands.export import export
    from everlearn.commands.publish import check_hub
    from everlearn.commands.publish import push as upload
    from everlearn.errors import RecipeError
    from everlearn.model.loading import quiet
    from everlearn.run.writable import check_place

    quiet()
    if public and push is None:
        raise RecipeError("`--public` says who may see what `--push` uploads; there is no `--push`.")
    check_place("FOLDER", folder, folder=True)
    if push is not None:
        check_hub(push)
    exported = export(
        stage,
        folder,
        with_memory=with_memory,
        adapter=adapter,
        dtype=dtype,
        base_model=base_model,
        license=license,
        name=push,
    )
    address = None if push is None else upload(folder, push, public=public)
    if as_json:
        show({**asdict(exported), "folder": str(folder), "address": address}, True, str)
        return
    say(f"Exported {exported.form} after '{exported.domain}' (stage {exported.stage}): {folder}")
    for note in exported.notes:
        say(f"Note: {note}")
    if address is not None:
        say(f"Pushed: {address}")
