"""Write the model card: README.md beside a model, in the format of the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import yaml

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison, compare_runs
from everlearn.comparison.runs import Run, environment_of, from_results
from everlearn.config.public_paths import recipe_without_folders
from everlearn.plugins import distribution_of
from everlearn.report.tables import all_tables, escape_markdown, markdown_table
from everlearn.report.verdict import verdict

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
TASKS = {
    "masked": ("fill-mask", "AutoModelForMaskedLM"),
    "causal": ("text-generation", "AutoModelForCausalLM"),
    "text-to-text": (None, "AutoModelForSeq2SeqLM"),
}
"""Objective → the hub's pipeline tag (None for text-to-text, which has none) and the class that loads the model."""

TRUSTED = ", trust_remote_code=True"
"""Argument that loads a model with the code that is beside it."""


def model_card(
    results: Any,
    recipe: str | None = None,
    *,
    folder: Path | None = None,
    architecture: str | None = None,
    own_module: str | None = None,
    own_code: bool = False,
) -> str:
    """Return a README.md with the hub's front matter, the results, and how to load and to reproduce the model.

    Args:
        results: The content of results.json, as a mapping or as an object with ``model_dump``.
        recipe: The resolved recipe's YAML.
        folder: The run's folder; by default `runs/<name>`.
        architecture: Name of the transformers class that loads the model. Default: the objective's Auto class.
        own_module: The module that must be imported first, if the architecture is not one of transformers.
        own_code: Whether the model needs the code that is beside it (`trust_remote_code`).

    Raises:
        RunError: `results` are not a run's results.
    """
    run = from_results(results, recipe)
    if folder is not None:
        run = replace(run, folder=folder, environment=environment_of(folder, run.recipe))
    comparison = compare_runs([run])
    objective = str(run.results.get("objective") or "")
    pipeline, loader = TASKS.get(objective, (None, "AutoModel"))
    front: dict[str, Any] = {"library_name": "transformers"}
    base = str(run.results.get("model") or "")
    if _HUB_ID.fullmatch(base):
        front["base_model"] = base
    if pipeline:
        front["pipeline_tag"] = pipeline
    names = [str(method.get("name")) for method in run.results.get("methods") or []]
    front["tags"] = list(dict.fromkeys(["everlearn", "continual-learning", "continual-pretraining", *names]))
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=10_000)}---",
        f"# {escape_markdown(run.name or run.title)}",
        _introduction(run, base),
        "## Result",
        escape_markdown(" ".join(verdict(comparison))),
        *(markdown_table(table, level=3) for table in all_tables(comparison)),
        "## Use",
        fenced("python", importing(own_module) + _usage(run, architecture or loader, own_code)),
        f"Every stage's folder (`stage-01-…`, `stage-02-…`) loads this way, {needing(own_module)}. To publish a "
        "model, use `everlearn export`: a stage's folder may hold training text (`memory/`).",
        *_beside(run),
        *_methods(run),
        "## Reproduce",
        fenced("bash", fmt.again(run.place, run.imports)),
    ]
    if recipe:
        parts += [
            "The resolved recipe, without the folders of its files:",
            fenced("yaml", recipe_without_folders(run.recipe or "")),
        ]
    parts += _notes(comparison)
    return "\n\n".join(parts) + "\n"


def _introduction(run: Run, base: str) -> str:
    stream = " → ".join(escape_markdown(domain) for domain in run.domains) or fmt.MISSING
    version = escape_markdown(str(run.results.get("everlearn") or "")).strip()
    # A local path is of no use to others, so only the folder's name is given.
    known = base if _HUB_ID.fullmatch(base) else PurePath(base).name
    start = f"Training started from {escape_markdown(known)}. " if known else ""
    return (
        f"A language model that learnt these domains one after another: {stream}. {start}Objective: "
        f"{escape_markdown(str(run.results.get('objective') or fmt.MISSING))}; protection against forgetting: "
        f"{escape_markdown(run.title)}; seed {escape_markdown(str(run.results.get('seed')))}. "
        f"Made with everlearn{f' {version}' if version else ''}."
    )


def _usage(run: Run, loader: str, own_code: bool) -> str:
    stage = f"stage-{len(run.domains):02d}-{run.domains[-1]}" if run.domains else "."
    # repr, since a domain's name is foreign text inside Python code.
    return (
        f"from transformers import AutoTokenizer, {loader}\n\n"
        f"folder = {stage!r}\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        f"model = {loader}.from_pretrained(folder{TRUSTED if own_code else ''})"
    )


def importing(own_module: str | None) -> str:
    """Return the import that registers the model's architecture with transformers; empty if none is needed."""
    return f"import {own_module}  # transformers knows the architecture from here on\n" if own_module else ""


def needing(own_module: str | None) -> str:
    """Return what has to be installed to load a model."""
    if own_module is None:
        return "without everlearn installed"
    return f"with {distribution_of(own_module)} installed, which brings the architecture"


def _beside(run: Run) -> list[str]:
    """Return how to get the scored model if a method evaluates with more than the saved model."""
    methods = run.results.get("methods") or []
    titles = [str(method.get("title") or method.get("name")) for method in methods if not method.get("as_saved", True)]
    if not titles:
        return []
    named = escape_markdown(" and ".join(titles))
    return [
        f"**This is not the model of the scores above.** {named} evaluates with parts in the stage's "
        "`memory/` (adapters, gates or prompts), which loading the folder leaves out. The complete run folder gives "
        "the model that was scored, for texts of one domain:",
        fenced(
            "python",
            "from everlearn import ContinualLearner\n\n"
            f"model = ContinualLearner.open({run.place!r}).tested({(run.domains or ['…'])[-1]!r})",
        ),
    ]


def _methods(run: Run) -> list[str]:
    lines = []
    for method in run.results.get("methods") or []:
        paper = str(method.get("paper") or "")
        link = f": <{paper}>" if re.fullmatch(r"https?://[^\s<>]+", paper) else ""
        lines.append(f"- {escape_markdown(str(method.get('title') or method.get('name')))}{link}")
    return ["## Methods", "\n".join(lines)] if lines else []


def _notes(comparison: Comparison) -> list[str]:
    if not comparison.notes:
        return []
    return ["## Notes", "\n".join(f"- {escape_markdown(note)}" for note in comparison.notes)]


def fenced(language: str, text: str) -> str:
    """Return a fenced code block that its content cannot close."""
    # The fence is longer than any run of backticks inside.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
