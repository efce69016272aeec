"""``everlearn learn``: one more domain, months later."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from everlearn.cli.common import RunPath, learner_of, take_to_its_end


def command(
    run: RunPath,
    domain: Annotated[str, typer.Option("--domain", metavar="NAME=PATH", help="The new domain and its corpus.")],
    text_column: Annotated[str | None, typer.Option(help="Column with the text (`text` when left out).")] = None,
    target_column: Annotated[str | None, typer.Option(help="Column with the answer, for text-to-text.")] = None,
    end_task: Annotated[
        list[str] | None,
        typer.Option(
            "--end-task", metavar="NAME=TRAIN,TEST", help="A labelled set of the new domain; may be repeated."
        ),
    ] = None,
) -> None:
    """Learn one more domain from a finished run's model and memory, without any old data."""
    from everlearn.data.corpus import Domain
    from everlearn.data.endtask import EndTask

    name, path = _pair(domain, "--domain", "contracts=contracts.jsonl")
    columns = {"text_column": text_column, "target_column": target_column}
    new = _checked(Domain, name=name, path=path, **{key: value for key, value in columns.items() if value is not None})
    tasks = []
    for text in end_task or ():
        task, files = _pair(text, "--end-task", "topics=train.jsonl,test.jsonl")
        train, comma, test = files.partition(",")
        if not comma or not train or not test:
            raise _no_pair("--end-task", text, "topics=train.jsonl,test.jsonl")
        tasks.append(_checked(EndTask, name=task, domain=name, train=train, test=test))
    learner = learner_of(run)
    take_to_its_end(learner, lambda: learner.learn(new, tasks))


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise _no_pair(option, text, example)
    return name, value


def _no_pair(option: str, text: str, example: str) -> Exception:
    from everlearn.errors import RecipeError

    return RecipeError(f"`{option}` is '{text}', but must look like {example}.")


def _checked(kind: Any, **values: Any) -> Any:
    from pydantic import ValidationError

    from everlearn.errors import RecipeError

    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RecipeError(
            f"`{key}`: {first['msg'].removeprefix('Value error, ')} (got {first.get('input')!r})."
        ) from None
