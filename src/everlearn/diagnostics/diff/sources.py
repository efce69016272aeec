"""Provide the texts of a comparison: files that a user names, or the held-out text of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from everlearn.config.recipe import Recipe
from everlearn.data import held_out
from everlearn.data.columns import text_corpus
from everlearn.data.corpus import Corpus, Document
from everlearn.data.documents import read_documents
from everlearn.errors import RecipeError
from everlearn.evaluation import TASK_KINDS
from everlearn.evaluation.task import TaskConfig
from everlearn.options import path_or_id

Documents = Callable[[], Iterable[Document]]

_REMEDY = "name the column that is to be read with `--text-column` (in Python: `Corpus(path=…, text_column=…)`)"
_NESTED = "give `--text-column '{}'` (in Python: `Corpus(path=…, text_column=…)`)"


def documents_of(
    texts: Mapping[str, str | Path | Corpus] | Sequence[str | Path], notes: list[str]
) -> dict[str, Documents]:
    """Return the documents of each text by its name; they are read when needed.

    Args:
        texts: name → path, or only paths.
        notes: list to which a sentence is added for each text whose column is not named `text`.

    Raises:
        RecipeError: two texts have the same name.
        DataError: a text does not exist, or has no column of text.
    """
    by_name: dict[str, Documents] = {}
    named = texts.items() if isinstance(texts, Mapping) else ((_name(path), path) for path in texts)
    for name, source in named:
        if name in by_name:
            raise RecipeError(f"Two texts would be called '{name}'. Write `NAME=PATH` for one of them.")
        corpus = source
        if not isinstance(corpus, Corpus):
            corpus = text_corpus(path_or_id(corpus, "--text"), "--text", _REMEDY, nested=_NESTED)
        if corpus is not source and corpus.text_column != Corpus.model_fields["text_column"].default:
            notes.append(f"The text of '{name}' is its column '{corpus.text_column}'.")
        if corpus.split != Corpus.model_fields["split"].default:
            notes.append(f"The text of '{name}' is its split '{corpus.split}'.")
        by_name[name] = lambda corpus=corpus: (document for document, _ in read_documents(corpus))  # type: ignore[misc]
    return by_name


def _name(path: str | Path) -> str:
    """Return the default name of a text: its file name without extensions."""
    return Path(path).name.split(".")[0] or str(path)


def of_recipe(recipe: Recipe, notes: list[str]) -> tuple[dict[str, Documents], list[TaskConfig]]:
    """Return a recipe's held-out text (domains and general text), and its end tasks without fine-tuning."""
    corpora = [*recipe.domains, *([recipe.general] if recipe.general is not None else [])]
    texts: dict[str, Documents] = {}
    for corpus in corpora:
        if not corpus.held_out:
            continue
        if any(part.answers for part in corpus.parts):
            notes.append(
                f"'{corpus.name}' holds answers to prompts. It was left out: compare on them as an end task (`--task`)."
            )
            continue
        texts[corpus.name] = lambda corpus=corpus: held_out.documents_of(corpus, held_out=True)  # type: ignore[misc]
    end_tasks = [task for task in recipe.end_tasks if not TASK_KINDS[task.kind].fine_tunes]
    if left := [task.name for task in recipe.end_tasks if task not in end_tasks]:
        notes.append(
            f"Left out, because they fine-tune a copy of each model: {', '.join(left)}. `everlearn evaluate` runs them."
        )
    return texts, end_tasks
