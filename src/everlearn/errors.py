"""All errors that a user can cause, and helpers that suggest a name or quote an exception.

EverlearnError                  the base: shown as one sentence, exit code 2
├── RecipeError                 a recipe, an override or an argument is wrong
├── DataError                   a corpus or an end task cannot be read or used
├── ModelError                  a model or tokenizer cannot be loaded or does not fit the objective
├── MethodError                 a method is unknown, misconfigured or incompatible
├── RunError                    a run folder is missing, damaged or of another recipe
│   └── RunInUse                another process is working on a run
├── PluginError                 a plugin is missing, broken, or uses a name that is taken
├── TrainingDiverged            the loss is no longer finite
└── Interrupted                 a signal stopped the work; exit code 130
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

MOST_LISTED = 20
"""Longest list of names that is quoted from another library's message."""

GO_ON = "give the same command again, or `everlearn resume RUN` for a run that began."
"""What to do when the cause of an error about the disk is gone."""


class EverlearnError(Exception):
    """An error that one sentence can explain: the rule, the value, and the key to change."""

    def __str__(self) -> str:
        """Return the message on one line, with characters that are not printable escaped."""
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in super().__str__())


class RecipeError(EverlearnError):
    """A recipe, an override or an argument is wrong."""


class DataError(EverlearnError):
    """A corpus or an end task cannot be read or used."""


class ModelError(EverlearnError):
    """A model or tokenizer cannot be loaded or does not fit the objective."""


class MethodError(EverlearnError):
    """A method is unknown, misconfigured, or incompatible with the model, the objective or another method."""


class RunError(EverlearnError):
    """A run folder is missing, damaged or belongs to another recipe."""


class RunInUse(RunError):
    """Another process is working on a run."""


class PluginError(EverlearnError):
    """A plugin is missing, broken, or uses a name that is taken."""


class Interrupted(EverlearnError):
    """The work was interrupted; its progress is saved."""


class TrainingDiverged(EverlearnError):
    """The training loss is no longer finite; the last good state is on disk."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if it has none.

    Sentences that list too many names (transformers lists some 400 architectures) are left out; if the first one does,
    it is shortened.
    """
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    first, *others = re.split(r"(?<=\.) ", line)
    names = first.split(", ")
    short = first if len(names) <= MOST_LISTED else ", ".join([*names[:MOST_LISTED], "…"])
    return " ".join([short, *(sentence for sentence in others if sentence.count(", ") < MOST_LISTED)])


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint to append to an error: the closest choice (several if tied), or all choices if none is close."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if near:
        how = [difflib.SequenceMatcher(a=name, b=word).ratio() for name in near]
        nearest = [f"'{name}'" for name, ratio in zip(near, how, strict=True) if ratio == how[0]]
        return f" Did you mean {' or '.join(nearest)}?"
    return f" Known: {', '.join(known)}." if known else ""


def plain_name(name: str) -> str:
    """Normalise a name by removing case, spaces, hyphens and underscores, in which papers differ."""
    return re.sub(r"[\s_-]", "", name.lower())


def no_such_method(name: str, known: Iterable[str], in_das_paper: Mapping[str, str]) -> MethodError:
    """Return the error for an unknown method, with a did-you-mean suggestion.

    Args:
        name: the unknown name.
        known: all names.
        in_das_paper: name in the DAS paper → name here, where they differ.
    """
    ours = in_das_paper.get(plain_name(name))
    if ours:
        hint = f" In the DAS paper {name.upper()} is `{ours}`."
    elif near := difflib.get_close_matches(name.lower(), known := sorted(known)):
        hint = did_you_mean(name.lower(), near)
    else:
        hint = " `everlearn methods` lists all. One of your own must be imported first (`--import MODULE_OR_FILE`)."
    return MethodError(f"There is no method '{name}'.{hint}")
