"""The page of the table, which the site shows as docs/mistakes.md: what is on it, and how a case becomes a row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cli_project import Outcome
from mistakes.case import Case, Places, sentence, subjects

PAGE = Path(__file__).parents[2] / "build" / "mistakes.md"
HEAD = """# Mistakes, and what one gets

{count} cases, each made by a test (`tests/mistakes`) when this page was built: what a user does in a small
project with four corpora, a recipe and a labelled set, and the sentence that comes. Where no other is named the command
is `everlearn run recipe.yaml`. Each ends with exit code 2 and writes nothing, but where the last column begins with
*works* or *warns*. [What to do](errors.md) · [Recipes](recipes.md)

"""
LONGEST = 90
"""Characters of a word or value before it is cut on the page."""


def row(case: Case, project: Places, outcome: Outcome) -> str:
    """The line of a case that was made."""
    said = f"{stable(sentence(outcome, case), project)}"
    kind = "" if outcome.code == 2 else "*warns*: " if case.says else "*works*: "
    typed = [f"`{_code(stable(change, project))}`" for change in _changes(project.base, project.recipe)]
    if case.command != ("run", "recipe.yaml"):
        words = stable(" ".join(word or "''" for word in case.command), project)
        typed.append(f"`{_code('everlearn ' + words)}`")
    return f"| {case.name} | {'<br>'.join(typed)} | {kind}{_prose(said)} |"


def stable(text: str, project: Places) -> str:
    """The text with temporary paths replaced by names that stay, and endless words cut."""
    for path, name in (
        (project.finished_folder, "/home/you/work"),
        (project.models, "/models"),
        (project.home, "/home/you"),
        (project.home.parent, "/home"),
    ):
        if path is not None:
            text = text.replace(str(path), name)
    text = text.replace("MODELS", "/models").replace("HOME", "/home/you")
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return re.sub(rf"\S{{{LONGEST},}}", lambda word: f"{word[0][:40]}…{word[0][-20:]}", text)


def page(rows: dict[str, str]) -> str:
    """The whole page, from each case's row by its name."""
    parts = [HEAD.format(count=len(rows))]
    for heading, cases in subjects().items():
        parts.append(f"## {heading}\n\n| the user … | with | gets |\n|---|---|---|\n")
        parts += [f"{rows[case.name]}\n" for case in cases]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two recipes: `train.max_steps: 0`; a key that was removed as `no train.max_steps`."""
    old, new = _flat(before), _flat(after)
    changed = [
        f"{key}: {_value(value)}" for key, value in new.items() if key not in old or repr(old[key]) != repr(value)
    ]
    inside = tuple(f"{key}." for key in new)
    gone = [f"no {key}" for key in old if key not in new and not any(k.startswith(f"{key}.") for k in new)]
    return changed + [line for line in gone if not line.removeprefix("no ").startswith(inside)]


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict) and value:
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = list(enumerate(value))
    else:
        return {key: value}
    flat: dict[str, Any] = {}
    for part, item in items:
        flat |= _flat(item, f"{key}.{part}" if key else str(part))
    return flat


def _value(value: Any) -> str:
    try:
        text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).strip()
    except yaml.YAMLError:
        text = repr(value)
    text = text.removesuffix("...").strip()
    return text if len(text) <= LONGEST else f"{text[:60]}…"


def _code(text: str) -> str:
    text = text.replace("`", "'").replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= 2 * LONGEST else f"{text[: 2 * LONGEST]}…"


def _prose(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
