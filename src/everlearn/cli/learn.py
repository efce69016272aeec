"""``everlearn learn``: learn one more domain at any later time."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from everlearn.cli.common import AsJson, Quiet, learner_to_go_on, no_pair, pair, take_to_its_end


def command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run folder, or (with --into) an export with its memory, a folder or hub id."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Set keys of the new domain: train.max_steps=100 (for this domain only), "
            "domains.NAME.validation=held_out.txt, end_tasks.NAME.label_column=topic.",
        ),
    ] = None,
    *,
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            metavar="NAME=PATH",
            help="The new domain and its corpus; only NAME if domains.NAME.sources=… is set.",
        ),
    ] = None,
    more: Annotated[
        str | None,
        typer.Option(
            "--more",
            metavar="NAME[=PATH]",
            help="Instead of --domain: learn a domain of the run again, with more steps (train.max_steps=…) or, with "
            "PATH, with new text. It is called NAME-2 and scored on NAME's held-out text.",
        ),
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column with the text; default: `text`.")] = None,
    target_column: Annotated[str | None, typer.Option(help="Column with the answer, for text-to-text.")] = None,
    messages_column: Annotated[str | None, typer.Option(help="Column with a chat, a list of messages.")] = None,
    tools_column: Annotated[str | None, typer.Option(help="Column with the tools that a chat may call.")] = None,
    row_format: Annotated[
        str | None, typer.Option(help="Kind of the rows, in place of columns: alpaca, dolly, sharegpt, …")
    ] = None,
    end_task: Annotated[
        list[str] | None,
        typer.Option(
            "--end-task", metavar="NAME=TRAIN,TEST", help="A labelled dataset of the new domain; may be repeated."
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FOLDER", help="Folder of the new run, to continue from an export.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn one more domain, or more of one, from the model and memory of a finished run, without any old data."""
    from everlearn.config.later import check_later_key
    from everlearn.config.overrides import overridden
    from everlearn.config.recipe import parse_domain
    from everlearn.errors import RecipeError, RunError, did_you_mean
    from everlearn.evaluation.task import task_config
    from everlearn.options import path_or_id
    from everlearn.run.folder import RunFolder

    columns = {
        "text_column": text_column,
        "target_column": target_column,
        "messages_column": messages_column,
        "tools_column": tools_column,
        "row_format": row_format,
    }
    new: dict[str, Any]
    if (domain is None) == (more is None):
        raise RunError("Give --domain NAME=PATH, for a new domain, or --more NAME, to learn one of the run again.")
    if more is not None and into is not None:
        raise RunError("--more needs a run folder, which has the domain's held-out text. Leave --into out.")
    if more is not None:
        first, _, path = more.partition("=")
        learns = {known.name: known.learns for known in RunFolder(run).recipe().domains}
        if first not in learns:
            raise RunError(f"`--more {first}`: {run} has no domain '{first}'.{did_you_mean(first, learns)}")
        first = learns[first]
        name = next(each for number in count(2) if (each := f"{first}-{number}") not in learns)
        new = {"name": name, "continues": first, **({"path": path_or_id(path, "--more")} if path else {})}
    elif any(text.startswith((f"domains.{domain}.path=", f"domains.{domain}.sources=")) for text in overrides or ()):
        assert domain is not None
        name, new = domain, {"name": domain}  # a domain with several sources has no single path
    else:
        assert domain is not None
        name, path = pair(domain, "--domain", "contracts=contracts.jsonl")
        new = {"name": name, "path": path_or_id(path, "--domain")}
    new |= {key: value for key, value in columns.items() if value is not None}
    tasks: list[dict[str, Any]] = []
    for text in end_task or ():
        task, files = pair(text, "--end-task", "topics=train.jsonl,test.jsonl")
        train, comma, test = files.partition(",")
        if not comma or not train or not test:
            raise no_pair("--end-task", text, "topics=train.jsonl,test.jsonl")
        paths = {"train": path_or_id(train, "--end-task"), "test": path_or_id(test, "--end-task")}
        tasks.append({"name": task, "domain": name, **paths})
    for text in overrides or ():
        key, _, value = text.partition("=")
        if key in columns:
            raise RecipeError(f"Unknown key `{key}`. Here it is an option: `--{key.replace('_', '-')} {value}`.")
        check_later_key(key, name, [task["name"] for task in tasks], run)
    raw: dict[str, Any] = {"domains": [new], "end_tasks": tasks, "train": {}}
    overridden(raw, overrides or ())
    new["train"] = {**raw["train"], **new.get("train", {})}
    learnt = parse_domain(new)
    configs = [task_config(task, f"end_tasks.{task['name']}") for task in tasks]
    learner = learner_to_go_on(run, into, quiet)
    take_to_its_end(learner, lambda: learner.learn(learnt, configs), quiet, as_json)
