"""Default method options of a suite, used unless the recipe sets them."""

from __future__ import annotations

from typing import Any

from everlearn.config.overrides import named_methods
from everlearn.methods import build


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
