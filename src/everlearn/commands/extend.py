"""``everlearn extend``: write a base model with additional tokens for the words of a domain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from transformers import AutoTokenizer

from everlearn import files
from everlearn.data.corpus import Corpus
from everlearn.data.documents import read_documents
from everlearn.errors import ModelError
from everlearn.model.loading import load_config, load_model, load_tokenizer
from everlearn.model.number_format import NumberFormat, recast
from everlearn.model.options import Model
from everlearn.model.peft_adapter import base_of
from everlearn.model.vocabulary import NEW_TOKENS, Initialise, NewToken, extend_vocabulary
from everlearn.run.writable import check_new

HELD_OUT = 20
"""One in this number of documents is held out, to measure what was gained."""


@dataclass(frozen=True)
class Extension:
    """The added tokens.

    Attributes:
        tokens: the new tokens.
        vocabulary: tokens before and after.
        bytes_per_token: before and after, on documents from which nothing was learnt (on all if there are fewer than
            20).
    """

    tokens: list[NewToken]
    vocabulary: tuple[int, int]
    bytes_per_token: tuple[float, float]


def extend(
    model: Model, corpus: Corpus, output: Path, *, tokens: int = 1000, initialise: Initialise = "pieces"
) -> Extension:
    """Write a model and its tokenizer, with tokens for the words of a text, as ``save_pretrained`` does.

    The weights keep the number format of the model; merged with an adapter they are float32.

    Args:
        model: hub id or folder, as in a recipe.
        corpus: the domain's text.
        output: a new folder.
        tokens: maximum number of tokens to add.
        initialise: initial values of their rows (:func:`everlearn.model.vocabulary.extend_vocabulary`).

    Raises:
        RunError: the folder exists.
        EverlearnError: the model or the text cannot be read, or there is nothing to add.
    """
    check_new(output)
    before, base = load_tokenizer(model), load_model(model)
    merged = base_of(str(model.path), model.revision) is not None
    stored: Any = "float32" if merged else str(load_config(model).dtype).removeprefix("torch.")
    after, added = extend_vocabulary(base, before, _texts(corpus, learnt=True), tokens, initialise=initialise)
    held_out = list(_texts(corpus, learnt=False)) or list(_texts(corpus, learnt=True))
    size = sum(len(text.encode()) for text in held_out)
    gained = tuple(size / max(sum(map(len, _ids(each, held_out))), 1) for each in (before, after))
    extension = Extension(added, (len(before), len(after)), gained)  # type: ignore[arg-type]
    with files.new_folder(output, sealed=False) as folder:
        base.save_pretrained(folder)
        if stored in get_args(NumberFormat):
            recast(folder, stored)
        after.save_pretrained(folder)
        files.write_json(folder / NEW_TOKENS, asdict(extension))
        # Check the saved files, since a tokenizer class may load something else than it saved.
        if _ids(AutoTokenizer.from_pretrained(folder), held_out[:50]) != _ids(after, held_out[:50]):
            raise ModelError(
                f"The tokenizer '{before.name_or_path}' ({type(before).__name__}) cannot be saved with new tokens: "
                "read again, it splits text otherwise. Use a model whose tokenizer is kept in `tokenizer.json`."
            )
    return extension


def _texts(corpus: Corpus, learnt: bool) -> Iterator[str]:
    for number, (document, _) in enumerate(read_documents(corpus), 1):
        if bool(number % HELD_OUT) is learnt:
            contents = [message.content for message in document.messages]  # without what a template writes between them
            yield from filter(None, contents or (document.text, document.target))


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    input_ids: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return input_ids
