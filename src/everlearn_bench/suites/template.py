"""The template of a suite: a recipe in YAML with three further forms.

* ``each: [a, b]`` in ``domains`` or ``end_tasks`` instead of a list: one item a name, all with the keys beside it.
  ``each: orders`` stands for every domain of the suite's orders, ``each: domains`` (in ``end_tasks``) for every domain.
* ``{name}`` in a text of such an item is its name, and ``{suite}`` in any text that of the suite.
* ``15%`` in ``train`` is that share of ``train.max_steps``, rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everlearn.config.overrides import named_methods
from everlearn.errors import RecipeError
from everlearn.methods import build
from everlearn_bench.suites.overlay import NAMED

_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


def expanded(raw: Mapping[str, Any], suite: str, lists: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a template with a list of items for every ``each``, and without ``{name}`` and ``{suite}``.

    Args:
        raw: the template as in its file.
        suite: name of the suite.
        lists: names that an ``each`` may stand for; ``domains`` is added.

    Raises:
        RecipeError: an ``each`` is neither a list of names nor one of `lists`.
    """
    recipe = dict(raw)
    for group in NAMED:
        recipe[group] = _items(raw.get(group) or [], group, lists)
        lists = {**lists, group: [item["name"] for item in recipe[group]]}
    return dict(_texts(recipe, lambda text: text.replace("{suite}", suite)))


def _items(part: Any, group: str, lists: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    if isinstance(part, list):
        return [_named(item, item["name"]) for item in part]
    each = part.get("each")
    names = lists.get(each, ()) if isinstance(each, str) else each
    if not names:
        raise RecipeError(f"`{group}.each` must be a list of names, or one of {', '.join(lists)} (got {each!r}).")
    keys = {key: value for key, value in part.items() if key != "each"}
    return [_named({"name": name, **keys}, name) for name in names]


def _named(item: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(_texts(item, lambda text: text.replace("{name}", name)))


def with_shares(train: Mapping[str, Any]) -> dict[str, Any]:
    """Return training arguments with ``15%`` as a number of steps; a number of steps replaces one of epochs.

    Raises:
        RecipeError: there is a share, and no number of steps.
    """
    steps = train.get("max_steps", 0)
    arguments = {key: value for key, value in train.items() if key != "num_train_epochs" or steps <= 0}
    for key, value in arguments.items():
        if isinstance(value, str) and (share := _SHARE.fullmatch(value)):
            if steps <= 0:
                raise RecipeError(f"`train.{key}` is {value} of `train.max_steps`, which is not set.")
            arguments[key] = round(float(share[1]) / 100 * steps)
    return arguments


def with_addresses(raw: Mapping[str, Any], suite: str, locate: Callable[[str], Any]) -> dict[str, Any]:
    """Return a recipe with the path of every file at an address of the suite (``suite:NAME/…``)."""
    own = f"suite:{suite}/"
    return dict(_texts(raw, lambda text: str(locate(text.removeprefix(own))) if text.startswith(own) else text))


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every text in it changed."""
    if isinstance(value, Mapping):
        return {key: _texts(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def with_samples(method: Any, samples: int | None) -> list[dict[str, Any]]:
    """Return the methods of a recipe with a number of rows for measuring importance, unless they set one.

    An option `samples` that counts other rows, such as stored ones, is not changed.
    """
    specs = [dict(spec) for spec in named_methods(method)]
    for spec in specs:
        if samples is not None and build(spec).importance_samples:
            spec.setdefault("samples", samples)
    return specs


def with_options(method: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the methods of a recipe with these options, if a method has them and does not set them."""
    specs = [dict(spec) for spec in named_methods(method)]
    for spec in specs:
        for key, value in options.items():
            if key in type(build(spec).config).model_fields:
                spec.setdefault(key, value)
    return specs
