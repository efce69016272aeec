"""Convert Python arguments to a recipe: mappings, texts in memory, datasets, a model.

Texts are written to a file in the cache (`data.cache`) whose name is a hash of its content, so the same texts give the
same file, and a stopped run continues from its folder as long as the cache exists. A model is saved in the run folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from everlearn import files
from everlearn.config.recipe import Recipe, parse
from everlearn.data.corpus import Corpus, Domain
from everlearn.data.prepare import cache_folder
from everlearn.errors import DataError, ModelError, RecipeError, RunError, did_you_mean
from everlearn.evaluation.task import TaskConfig
from everlearn.methods.base import Method
from everlearn.run.folder import BASE, RunFolder
from everlearn.run.writable import check_place

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

Texts: TypeAlias = "Sequence[str] | Dataset | IterableDataset"
"""Texts, or rows with named columns."""
DomainLike: TypeAlias = "Domain | Mapping[str, Any]"
"""A domain, or its recipe keys, with `data` in place of `path` for texts in memory."""
Domains: TypeAlias = "Sequence[DomainLike] | Mapping[str, str | Texts | Mapping[str, Any]]"
"""Domains in the order in which they are learnt, or a mapping from names to paths, texts or recipe keys."""
MethodLike: TypeAlias = "Method | str | Mapping[str, Any]"
General: TypeAlias = "Domain | str | Texts | Mapping[str, Any]"
Task: TypeAlias = "TaskConfig | Mapping[str, Any]"

FOLDER = "from-python"
"""Folder of the cache for texts that were passed in memory."""
NAMED = ("text_column", "target_column", "messages_column", "tools_column", "row_format")
"""Recipe keys that name the columns of a domain."""


def recipe(
    groups: Mapping[str, Any],
    base: Any,
    tokenizer: Any,
    stream: Domains,
    method: MethodLike | Sequence[MethodLike],
    text: General | None,
    end_tasks: Iterable[Task],
) -> Recipe:
    """Build the recipe of a learner that is created in Python.

    Args:
        groups: groups of the recipe, such as `train`, as mappings.
        base: the model: hub id, folder, recipe keys or object.
        tokenizer: hub id, folder or object; None for the model's own.
        stream: the domains.
        method: one method or several.
        text: general text, or None.
        end_tasks: the end tasks.

    Raises:
        EverlearnError: one of the arguments cannot be used.
    """
    data = groups.get("data")
    cache = data.get("cache") if isinstance(data, Mapping) else None
    raw = dict(groups) | {"method": methods(method), "end_tasks": tasks(end_tasks), "domains": domains(stream, cache)}
    if text is not None:
        raw["general"] = general(text, cache)
    built = parse(raw | {"model": model(base, tokenizer)})
    if not _is_object(base, tokenizer):
        return built
    # Saved last: an error above must not leave a model behind.
    place = built.folder().resolve() / BASE
    _save(base, tokenizer, place)
    saved = {key: str(place) for key in ("path", "tokenizer") if getattr(built.model, key) == BASE}
    return built.changed(model=built.model.model_dump(mode="json") | saved)


def domains(items: Domains, cache: str | None) -> list[dict[str, Any]]:
    """Return domains in the form of a recipe.

    Args:
        items: the domains, in the order in which they are learnt.
        cache: the recipe's `data.cache`; None for the user's default cache.

    Raises:
        RecipeError: an item is not a domain.
        DataError: texts or rows cannot be used.
    """
    if isinstance(items, Mapping):
        listed = [{"name": name, **_keys(value, f"Domain '{name}'")} for name, value in items.items()]
        return [domain(item, cache) for item in listed]
    return [domain(item, cache) for item in items]


def domain(source: DomainLike, cache: str | None, name: str = "") -> dict[str, Any]:
    """Return one domain in the form of a recipe; texts in memory are written to a file.

    `name` is the default name.
    """
    if isinstance(source, Domain):
        return source.model_dump(exclude_unset=True)
    if not isinstance(source, Mapping):
        raise RecipeError(
            f"A domain is a `Domain`, or a mapping such as {{'name': 'reviews', 'path': 'reviews.jsonl'}}; got "
            f"{_shown(source)}."
        )
    raw = dict(source)
    called = str(raw.get("name", name))
    if "data" in raw:
        if "path" in raw:
            raise RecipeError(f"Domain '{called}' has `data` and `path`; give one of them.")
        raw["path"] = str(keep(raw.pop("data"), called, raw, cache))
    if raw.get("validation") is not None and not isinstance(raw["validation"], str | float | int):
        held_out = {key: value for key, value in raw.items() if key != "max_documents"}
        raw["validation"] = str(keep(raw["validation"], f"{called}-validation", held_out, cache))
    return raw


def general(source: Any, cache: str | None) -> dict[str, Any]:
    """Return general text in the form of a recipe."""
    keys = source.model_dump(exclude_unset=True) if isinstance(source, Domain) else _keys(source, "General text")
    return domain(keys, cache, "general")


def tasks(items: Iterable[Task]) -> list[dict[str, Any]]:
    """Return end tasks in the form of a recipe."""
    listed = list(items)
    if (wrong := next((each for each in listed if not isinstance(each, TaskConfig | Mapping)), None)) is not None:
        raise RecipeError(f"An end task is an `EndTask`, or a mapping of its keys; got {_shown(wrong)}.")
    return [
        {"kind": task.kind} | task.model_dump(exclude_unset=True) if isinstance(task, TaskConfig) else dict(task)
        for task in listed
    ]


def methods(items: MethodLike | Sequence[MethodLike]) -> list[Any]:
    """Return one method or several in the form of a recipe."""
    listed = list(items) if isinstance(items, list | tuple) else [items]
    for each in listed:
        if isinstance(each, type) and issubclass(each, Method):
            raise RecipeError(f"`methods` holds the class {each.__name__}: make an object of it, `{each.__name__}()`.")
        if not isinstance(each, Method | str | Mapping):
            raise RecipeError(f"A method is an object such as `DAS()`, a name or a mapping; got {_shown(each)}.")
    return [
        {"name": each.label, **each.config.model_dump(mode="json", exclude_unset=True)}
        if isinstance(each, Method)
        else each
        for each in listed
    ]


def _keys(source: Any, what: str) -> dict[str, Any]:
    """Return recipe keys for a path, texts, or a mapping of keys."""
    if isinstance(source, Mapping) and not _split_by_name(source):
        return dict(source)
    if isinstance(source, str | os.PathLike):
        return {"path": str(source)}
    if _split_by_name(source):
        _refuse_splits(source, what)
    return {"data": source}


# -- texts ----------------------------------------------------------------------------------------------------------


def keep(texts: Any, name: str, keys: Mapping[str, Any], cache: str | None) -> Path:
    """Write texts in memory to a file of the cache, named by a hash of its content.

    Args:
        texts: texts, chats, mappings of columns, or a `datasets.Dataset` or `IterableDataset`. A stream is read once,
            to its end or to `max_documents`.
        name: name of the domain.
        keys: recipe keys of the domain, which name the columns to read.
        cache: folder of the cache; None for the user's default.

    Raises:
        DataError: there are no texts, or no such columns.
    """
    corpus = Corpus(path=name, **{key: keys[key] for key in NAMED if keys.get(key) is not None})
    folder = cache_folder(cache) / FOLDER
    check_place("data.cache", folder, folder=True)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{files.PARTIAL}{name}.{os.getpid()}"
    content = hashlib.blake2b(digest_size=16)
    try:
        with files.writing(partial), partial.open("wb") as out:
            for row in islice(_rows(texts, f"'{name}'", corpus), keys.get("max_documents")):
                line = json.dumps(row, ensure_ascii=True).encode() + b"\n"
                content.update(line)
                out.write(line)
        place = folder / f"{name}-{content.hexdigest()}.jsonl"
        if not place.is_file():
            partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
    return place.resolve()


def _rows(texts: Any, what: str, corpus: Corpus) -> Iterator[dict[str, Any]]:
    """Yield a mapping of the columns of a corpus for each row; a text, or a chat, is a row with one column."""
    columns = corpus.columns
    chats = corpus.messages_column is not None or (corpus.form is not None and corpus.form.chat)
    if _split_by_name(texts):
        _refuse_splits(texts, what)
    if isinstance(texts, str) or not (_data_set(texts) or isinstance(texts, Iterable)):
        raise DataError(f"The texts of {what} must be a list of texts or a data set; got {_shown(texts)}.")
    for number, row in enumerate(texts, 1):
        if isinstance(row, Mapping):
            for column in columns:
                if column not in row:
                    raise DataError(
                        f"Row {number} of {what} has no column '{column}' ({', '.join(f'`{key}`' for key in NAMED)})."
                        f"{did_you_mean(column, row)}"
                    )
            yield {column: row[column] for column in (*columns, *corpus.optional) if column in row}
        elif not isinstance(row, list | tuple if chats else str):
            expected = "a chat (a list of messages)" if chats else "a text"
            raise DataError(f"Item {number} of {what} must be {expected} or a mapping of columns; it is {_shown(row)}.")
        elif len(columns) > 1:
            raise DataError(f"{what} has two columns, {' and '.join(columns)}: its rows must be mappings of these.")
        else:
            yield {columns[0]: row}


def _kinds(*names: str) -> tuple[type, ...]:
    """Return classes of `datasets`, or none if it was never imported: then no object can be an instance."""
    module = sys.modules.get("datasets")
    return tuple(getattr(module, name) for name in names) if module is not None else ()


def _data_set(value: Any) -> bool:
    return isinstance(value, _kinds("Dataset", "IterableDataset"))


def _split_by_name(value: Any) -> bool:
    return isinstance(value, _kinds("DatasetDict", "IterableDatasetDict"))


def _refuse_splits(value: Any, what: str) -> NoReturn:
    names = ", ".join(map(str, value)) or "none"
    raise DataError(f"{what} was given all splits of a data set ({names}): give one of them, such as data['train'].")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:40]}{'…' if len(text) > 40 else ''}"


def check_kept(recipe: Recipe, folder: RunFolder) -> None:
    """Check that texts passed in memory are still in the cache, for the domains that are still to be learnt.

    Raises:
        RunError: the texts of a domain are gone; the message names it.
    """
    for index, known in enumerate(recipe.domains, 1):
        place = Path(known.path)
        if place.parent.name == FOLDER and not place.is_file() and not folder.stage(index, known.name).is_dir():
            raise RunError(
                f"The texts of '{known.name}' were passed in Python and kept in the cache, where they no longer are "
                f"({place}). Make the learner again with the same texts and folder, and call its `resume()`."
            )


# -- a model ----------------------------------------------------------------------------------------------------------


def model(source: Any, tokenizer: Any) -> dict[str, Any] | None:
    """Return the model in the form of a recipe, with :data:`BASE` in place of objects.

    Args:
        source: hub id, folder, recipe keys (`model`), or a model object.
        tokenizer: hub id, folder, or a tokenizer object; None for the model's own.

    Raises:
        ModelError: the model has adapters or is quantised, or `tokenizer` is missing for a model object.
    """
    if isinstance(source, PreTrainedModel):
        _check(source)
        if tokenizer is None:
            raise ModelError("A model that is given as an object needs its `tokenizer` beside it.")
        keys: dict[str, Any] = {"path": BASE}
    elif isinstance(source, Mapping):
        keys = dict(source)
    elif source is None or isinstance(source, str | os.PathLike):
        keys = {} if source is None else {"path": str(source)}
    else:
        _refuse(source)
    if tokenizer is not None:
        keys["tokenizer"] = BASE if isinstance(tokenizer, PreTrainedTokenizerBase) else str(tokenizer)
    return keys or None


def _is_object(*objects: Any) -> bool:
    return any(isinstance(each, PreTrainedModel | PreTrainedTokenizerBase) for each in objects)


def _check(pretrained: PreTrainedModel) -> None:
    if any(isinstance(module, BaseTunerLayer) for module in pretrained.modules()):
        _refuse_adapters()
    if getattr(pretrained, "is_quantized", False) or getattr(pretrained, "hf_quantizer", None) is not None:
        raise ModelError(
            "The model is quantised, and stages are trained in float32 weights: load it without a quantization_config."
        )
    if any(parameter.is_meta for parameter in pretrained.parameters()):
        raise ModelError("Some weights of the model are not loaded (on the device `meta`): load it without device_map.")


def _refuse(source: Any) -> NoReturn:
    if hasattr(source, "peft_config"):
        _refuse_adapters()
    raise ModelError(
        f"`model` must be a hub id, a folder or a transformers model with a language-model head; got {_shown(source)}."
    )


def _refuse_adapters() -> NoReturn:
    raise ModelError(
        "The model has PEFT adapters. Merge them first (`model = model.merge_and_unload()`), or give the base model "
        "and let a method such as `inc_lora` add adapters for each domain."
    )


def _save(model: Any, tokenizer: Any, place: Path) -> None:
    """Save the objects among model and tokenizer; check that an earlier save holds the same."""
    before = files.read_json(place / files.SEAL) if files.damage(place) is None else None
    aside = place if before is None else place.with_name(f"{files.PARTIAL}{BASE}.{os.getpid()}")
    with files.new_folder(aside) as new_folder:
        for each in filter(_is_object, (model, tokenizer)):
            each.save_pretrained(new_folder)
    if before is not None:
        after = files.read_json(aside / files.SEAL)
        shutil.rmtree(aside)
        if after != before:
            raise RunError(f"{place} holds a different model or tokenizer. Set another `folder`.")
