"""Format values, methods and commented lines of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from everlearn.commands.recommendation import rate_text

WIDEST = 60
"""Maximum characters of a line that has its comment on the same line; a longer line has it above."""


def value_text(value: Any) -> str:
    """Return a value as a recipe writes it."""
    if isinstance(value, float):
        return f"{value:g}" if "e" not in f"{value:g}" else f"{value!r}"
    if isinstance(value, str):
        return str(yaml.safe_dump(value, default_flow_style=True, width=1000).strip().removesuffix("...").strip())
    return json.dumps(value)


def rate_or_value(key: str, value: Any) -> str:
    """Return a value as a recipe writes it; a learning rate as 3.0e-4."""
    return rate_text(value) if key == "learning_rate" else value_text(value)


def flow_text(mapping: Mapping[str, Any]) -> str:
    """Return a mapping on one line: `{name: a, path: a.txt}`."""
    text = yaml.safe_dump(dict(mapping), default_flow_style=True, sort_keys=False, width=100_000, allow_unicode=True)
    return str(text).strip()


def method_text(methods: Sequence[Mapping[str, Any]]) -> str:
    """Return methods in recipe syntax, as short as possible on one line."""
    each = [dict(method) if len(method) > 1 else method["name"] for method in methods]
    shown = yaml.safe_dump(each[0] if len(each) == 1 else each, default_flow_style=True, sort_keys=False, width=1000)
    return str(shown).strip().removesuffix("...").strip()


def commented(lines: Sequence[tuple[str, str]]) -> str:
    """Return lines of YAML with their comments: beside them and aligned, or above a line that is too long for that."""
    column = 2 + max((len(line) for line, comment in lines if comment and len(line) <= WIDEST), default=0)
    text = []
    for line, comment in lines:
        if comment and len(line) > WIDEST:
            text.append(f"{' ' * (len(line) - len(line.lstrip()))}# {comment}")
        text.append(f"{line:<{column}}# {comment}" if comment and len(line) <= WIDEST else line)
    return "\n".join(text) + "\n"
