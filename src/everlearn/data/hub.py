"""Documents from the Hugging Face hub, through ``datasets``; remote code is never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.data.corpus import Corpus
from everlearn.data.folders import SPLITS
from everlearn.data.readers import files_beside, near_column
from everlearn.errors import DataError, did_you_mean, first_line


def _explained(corpus: Corpus, error: Exception, instead: str = "set `path` to a file") -> DataError:
    name = f"The hub data set '{corpus.path}'"
    place = Path(corpus.path)
    hint = files_beside(place) if place.parent.is_dir() and not place.exists() else ""
    near = hint if "Did you mean" in hint else ""
    if isinstance(error, ConnectionError) or "offline" in type(error).__name__.lower():
        return DataError(
            f"{name} cannot be reached, and no local file has that name. Check the network (and `HF_HUB_OFFLINE`), "
            f"or {instead}.{near}"
        )
    part = f"(subset {corpus.subset}, split {corpus.split})"
    return DataError(f"{name} {part} cannot be loaded: {first_line(error)}{near}")


def load(corpus: Corpus, instead: str = "set `path` to a file", cache: Path | None = None) -> Any:
    """Load a split of a data set of the hub, or of a folder in its layout.

    Args:
        corpus: names it.
        instead: an alternative if the hub cannot be reached, for the error message.
        cache: cache folder of `datasets`; None for its default. `datasets` identifies a local dataset by the name of
            its folder, so data that may change needs a cache of its own.

    Raises:
        DataError: it cannot be loaded.
    """
    import datasets

    own = {} if cache is None else {"cache_dir": str(cache)}
    try:
        return datasets.load_dataset(
            corpus.path, corpus.subset, split=corpus.split, revision=corpus.revision, streaming=corpus.streaming, **own
        )
    # The hub client, the file formats and the network each raise their own types; all mean the same to the user.
    except Exception as error:
        raise _explained(corpus, error, instead) from None


def _check_columns(corpus: Corpus, there: list[str] | None) -> None:
    for column in corpus.columns:
        if there and column not in there:
            listed = ", ".join(f"'{name}'" for name in there)
            raise DataError(
                f"'{corpus.path}' has no column '{column}'; its columns are {listed}.{near_column(column, there)}"
            )


def check(corpus: Corpus) -> None:
    """Ask the hub whether the data set, its split and its columns exist, without downloading it.

    Raises:
        DataError: the hub cannot be reached, or lacks the dataset, split or column.
    """
    import datasets

    try:
        info = datasets.load_dataset_builder(corpus.path, corpus.subset, revision=corpus.revision).info
    except Exception as error:
        raise _explained(corpus, error) from None
    # `train[:10%]` and `train+test` are checked by loading.
    plain = not set("[+") & set(corpus.split)
    if plain and info.splits and corpus.split not in info.splits:
        raise DataError(f"'{corpus.path}' has no split '{corpus.split}'.{did_you_mean(corpus.split, info.splits)}")
    _check_columns(corpus, list(info.features) if info.features else None)


def split_of(corpus: Corpus, candidates: Sequence[str]) -> str:
    """Return the first of some splits that a data set has, by any of its usual names; the corpus' own if it has none.

    Raises:
        DataError: the hub cannot be reached, or lacks the data set.
    """
    import datasets

    try:
        there = datasets.get_dataset_split_names(corpus.path, corpus.subset, revision=corpus.revision)
    except Exception as error:
        raise _explained(corpus, error, "name a file") from None
    known = {SPLITS.get(name, name): name for name in sorted(there, key=lambda name: name in SPLITS.values())}
    return next((known[name] for name in candidates if name in known), corpus.split)


def version(corpus: Corpus) -> list[str]:
    """Return the URLs of the downloaded files, which contain the commit; empty if the hub does not report it."""
    return [] if corpus.streaming else sorted(load(corpus).info.download_checksums or {})


def read(corpus: Corpus, position: Mapping[str, Any] | None) -> Iterator[tuple[Mapping[str, Any], str, dict[str, Any]]]:
    """Yield the rows, each with its place (for errors) and the position of the next one.

    Raises:
        DataError: the data set cannot be loaded, or the stream breaks.
    """
    data = load(corpus)
    _check_columns(corpus, data.column_names)
    position = dict(position or {})
    number = int(position.get("row", 0))
    if corpus.streaming and position.get("stream"):
        data.load_state_dict(position["stream"])
    elif not corpus.streaming:
        if number >= len(data):
            return
        data = data.select(range(number, len(data)))
    rows = iter(data)
    while True:
        try:
            values = next(rows, None)
        except Exception as error:
            raise _explained(corpus, error) from error
        if values is None:
            return
        number += 1
        _check_columns(corpus, list(values))
        behind = {"row": number, "stream": data.state_dict()} if corpus.streaming else {"row": number}
        yield values, f"{corpus.path}, row {number}", behind
