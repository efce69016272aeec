"""Options of a method: their base class, and how they are checked and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from pydantic import ValidationError, ValidationInfo, model_validator

from everlearn.errors import MethodError
from everlearn.options import Options, wrong_option


class MethodConfig(Options):
    """Base class of the options of a method: immutable, with unknown keys refused and values checked."""

    def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
        """Yield options that change nothing beside the values of others, with the reason; a user may not set them.

        A number of 0 is no such value: a sweep may include it, with the options of what it switches off. `samples` is
        no such option: many methods have it, and a user may set it for all of them.
        """
        yield from ()

    @model_validator(mode="after")
    def _have_effect(self, info: ValidationInfo) -> Self:
        # A resolved recipe lists every option, so one with the default of its method or variant counts as not set.
        usual = {key: field.default for key, field in type(self).model_fields.items()} | (info.context or {})
        for keys, why in self.without_effect():
            for key in keys:
                if (value := getattr(self, key)) == usual[key]:
                    continue
                if not _SAVED.get():
                    raise ValueError(f"option '{key}': {value!r} has no effect {why}. Leave it at {usual[key]!r}")
                self = self.model_copy(update={key: usual[key]})
        return self


_SAVED = ContextVar("saved", default=False)


@contextmanager
def as_saved() -> Iterator[None]:
    """Take options of a finished recipe: those without effect, which an earlier version allowed, get their defaults."""
    token = _SAVED.set(True)
    try:
        yield
    finally:
        _SAVED.reset(token)


C = TypeVar("C", bound=MethodConfig)


def configured(name: str, config: type[C], options: Mapping[str, Any], variant: Mapping[str, Any] | None = None) -> C:
    """Validate the options that a user sets of a method or variant called `name`, over those that the variant sets.

    Raises:
        MethodError: an option is unknown or its value is not allowed; the message names the key.
    """
    try:
        return config.model_validate({**(variant or {}), **options}, context=variant)
    except ValidationError as error:
        raise MethodError(wrong_option(f"Method '{name}'", config, error)) from None
