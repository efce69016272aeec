"""Add tokens for a domain: frequent words that the tokenizer splits become tokens of their own.

New tokens are learnt like the tokenizer's own, from the words of the domain as it splits them:

* BPE continues to learn merges (R. Sennrich et al., arXiv 1508.07909): the pair of adjacent tokens that is most
  frequent inside words becomes a token, again and again. New merges follow all old ones, so a text has the same tokens
  as before, with some of them joined.
* WordPiece and Unigram get whole words, those first that save the most tokens: their count × (pieces − 1). A Unigram
  word is as likely as the rarest of its pieces, and so more likely than all of them together.

Tokens are words or parts of words: letters, no digits, no punctuation. The embedding of a new token (and its row in an
untied output head) is the mean of the rows of the tokens that it replaces, the closest approximation to having trained
on the word.
"""

from __future__ import annotations

import copy
import heapq
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from everlearn.errors import ModelError

NEW_TOKENS = "new_tokens.json"
"""File beside an extended model that lists what was added."""
NEW_TOKEN_IDS = "new_token_ids"
"""Key of a model's configuration with the ids of the tokens that it was extended by."""
Initialise = Literal["pieces", "mean"]
Word = tuple[str, ...]
"""A word as the tokens that it is split into."""
LEAST = 5
"""Smallest number of occurrences of a new token: rarer ones cannot be learnt well."""
_CHUNK = 256
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class NewToken:
    """A token to add.

    Attributes:
        text: the token as written in the vocabulary of the tokenizer.
        pieces: the tokens that it replaces.
        count: number of occurrences.
        pair: the two tokens that a merge joins (BPE); empty if there are no merges.
    """

    text: str
    pieces: Word
    count: int
    pair: Word = ()


def extend_vocabulary(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    tokens: int,
    *,
    initialise: Initialise = "pieces",
) -> tuple[PreTrainedTokenizerBase, list[NewToken]]:
    """Add tokens for the words of a domain to a model and its tokenizer.

    The embeddings of the model grow in place, and so does an untied output head; existing ids keep their rows.

    ```python
    tokenizer, added = extend_vocabulary(model, tokenizer, texts, tokens=1000)
    model.save_pretrained("extended"), tokenizer.save_pretrained("extended")
    ```

    Args:
        model: a model with embeddings and an output head.
        tokenizer: the tokenizer of the model, a fast one; it is not changed.
        texts: texts of the domain.
        tokens: the largest number of tokens to add; the most useful ones are added.
        initialise: ``pieces``: the mean of the rows of the tokens that a new token replaces; ``mean``: the mean of all
            rows.

    Returns:
        The tokenizer with the new tokens, and the list of new tokens.

    Raises:
        ModelError: the tokenizer is of another kind than BPE, WordPiece and Unigram, or no word is frequent enough.
    """
    added = learn_tokens(tokenizer, texts, tokens)
    extended = with_tokens(tokenizer, added)
    grow(model, tokenizer, extended, added, initialise)
    return extended, added


def learn_tokens(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], tokens: int) -> list[NewToken]:
    """Return the most useful new tokens, in the order in which they are learnt; see :func:`extend_vocabulary`."""
    core = _core(tokenizer)
    kind = json.loads(core.to_str())["model"]["type"]
    learn: dict[str, Callable[..., Iterator[NewToken]]] = {"BPE": _merges, "WordPiece": _words, "Unigram": _words}
    if kind not in learn:
        raise ModelError(f"New tokens can be learnt for BPE, WordPiece and Unigram; this tokenizer is {kind}.")
    words = _counted(core, tokenizer, texts)
    learnt: list[NewToken] = []
    for token in learn[kind](words, core, lambda pieces: _is_word(tokenizer, pieces)):
        if len(learnt) == tokens:
            break
        learnt.append(token)
    if not learnt:
        raise ModelError(
            f"The text has no word that the tokenizer splits and that occurs {LEAST} times or more: there is nothing "
            "to add."
        )
    return learnt


def with_tokens(tokenizer: PreTrainedTokenizerBase, added: Iterable[NewToken]) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer with new tokens, whose ids follow the largest existing one."""
    content = json.loads(_core(tokenizer).to_str())
    model, known = content["model"], {token["content"]: token["id"] for token in content["added_tokens"]}
    if model["type"] == "Unigram":
        _into_pieces(model, known, list(added))
    else:
        first = 1 + max([*model["vocab"].values(), *known.values()])
        # Special tokens are added too: the library would warn of gaps between ids.
        model["vocab"] |= {word: number for word, number in known.items() if word not in model["vocab"]}
        for number, token in enumerate(added, first):
            model["vocab"][token.text] = number
            if token.pair:
                merged = model["merges"] and isinstance(model["merges"][0], str)
                model["merges"].append(" ".join(token.pair) if merged else list(token.pair))
    extended: Any = copy.deepcopy(tokenizer)
    extended._tokenizer = Tokenizer.from_str(json.dumps(content))
    return extended


def _into_pieces(model: dict[str, Any], known: Mapping[str, int], added: list[NewToken]) -> None:
    """Append new pieces to a Unigram model; the id of a piece is its index in the list."""
    scores = dict(model["vocab"])
    named = {number: word for word, number in known.items()}
    for number in range(len(model["vocab"]), 1 + max([*known.values(), -1])):
        model["vocab"].append([named.get(number, f"<unused_{number}>"), min(scores.values()) - 100])
    for token in added:
        model["vocab"].append([token.text, min(scores[piece] for piece in token.pieces)])


def grow(
    model: PreTrainedModel,
    before: PreTrainedTokenizerBase,
    after: PreTrainedTokenizerBase,
    added: Iterable[NewToken],
    initialise: Initialise = "pieces",
) -> None:
    """Add a row for every new token to the embeddings, and to an untied output head with its bias.

    Args:
        model: grows in place, unless it has enough spare rows.
        before: the tokenizer without the new tokens.
        after: the tokenizer with them.
        added: the new tokens.
        initialise: initial values, as in :func:`extend_vocabulary`.
    """
    old, new = before.get_vocab(), after.get_vocab()
    size, rows = 1 + max(new.values()), len(_table(model.get_input_embeddings()))
    if size > rows:
        model.resize_token_embeddings(size, mean_resizing=False)
    tables = [_table(model.get_input_embeddings())]
    head: Any = model.get_output_embeddings()
    for value in () if head is None else (head.weight, getattr(head, "bias", None)):
        if value is not None and len(value) >= size and all(value is not table for table in tables):
            tables.append(value)
    ids = [([old[piece] for piece in token.pieces], new[token.text]) for token in added]
    everything = sorted(set(old.values()))
    with torch.no_grad():
        for table in tables:
            mean = table[everything].mean(0)
            for pieces, number in ids:
                table[number] = mean if initialise == "mean" else table[pieces].mean(0)
    setattr(model.config, NEW_TOKEN_IDS, sorted({*new_token_ids(model), *(number for _, number in ids)}))


def new_token_ids(model: nn.Module) -> list[int]:
    """Return the ids of the tokens that a model was extended by, as its configuration records them."""
    return list(getattr(model.config, NEW_TOKEN_IDS, None) or [])


def token_tables(model: nn.Module) -> list[str]:
    """Return the paths of the modules whose rows are tokens: the input embeddings, and an untied output head."""
    plain: Any = model
    tables, head = [plain.get_input_embeddings()], plain.get_output_embeddings()
    if head is not None and head.weight is not tables[0].weight:
        tables.append(head)
    paths = {id(module): path for path, module in model.named_modules()}
    return [paths[id(table)] for table in tables]


def _table(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.get_parameter("weight") if isinstance(module, nn.Module) else module.weight
    return weight


# -- what words there are ---------------------------------------------------------------------------------------------


def _core(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return a copy of the fast tokenizer without truncation and padding."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"New tokens can be learnt for fast tokenizers; '{tokenizer.name_or_path}' is none. Convert it first "
            "(`AutoTokenizer.from_pretrained(…, use_fast=True)`)."
        )
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.no_truncation()
    core.no_padding()
    return core


def _counted(core: Tokenizer, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Counter[Word]:
    """Count the words that consist of several tokens."""
    special = {*tokenizer.all_special_tokens, *core.get_added_tokens_decoder()}
    counts: Counter[Word] = Counter()
    chunk: list[str] = []

    def count() -> None:
        for encoded in core.encode_batch(chunk, add_special_tokens=False):
            counts.update(_words_of(encoded.tokens, encoded.word_ids))
        chunk.clear()

    for text in texts:
        chunk.append(text)
        if len(chunk) == _CHUNK:
            count()
    count()
    for word in list(counts):
        if len(word) < 2 or any(piece in special or _BYTE.fullmatch(piece) for piece in word):
            del counts[word]
    return counts


def _words_of(tokens: list[str], numbers: list[int | None]) -> Iterator[Word]:
    """Yield groups of adjacent tokens with the same word number.

    If a tokenizer does not split text into words, a word begins at each token with the prefix of a new word.
    """
    word: list[str] = []
    before: int | None = None
    for token, number in zip(tokens, numbers, strict=True):
        if word and (number != before or token.startswith("▁")):
            yield tuple(word)
            word = []
        word.append(token)
        before = number
    if word:
        yield tuple(word)


def _is_word(tokenizer: PreTrainedTokenizerBase, pieces: Word) -> bool:
    """Return whether tokens together are letters; incomplete bytes of a multi-byte letter count as one."""
    text = str(tokenizer.convert_tokens_to_string(list(pieces))).strip()
    return bool(text) and all(letter == "�" or unicodedata.category(letter)[0] in "LM" for letter in text)


# -- what becomes a token ---------------------------------------------------------------------------------------------


def _joined(pieces: Word, prefix: str) -> str:
    """Return the token that tokens become when they are joined; tokens inside a word may have a prefix."""
    return pieces[0] + "".join(piece.removeprefix(prefix) for piece in pieces[1:])


def _words(words: Counter[Word], core: Tokenizer, fits: Callable[[Word], bool]) -> Iterator[NewToken]:
    """Yield whole words, those first that save the most tokens."""
    prefix, known = _prefix(core), core.get_vocab()
    for word, count in sorted(words.items(), key=lambda item: (-item[1] * (len(item[0]) - 1), item[0])):
        text = _joined(word, prefix)
        if count >= LEAST and text not in known and all(piece in known for piece in word) and fits(word):
            yield NewToken(text, word, count)


def _merges(words: Counter[Word], core: Tokenizer, fits: Callable[[Word], bool]) -> Iterator[NewToken]:
    """Yield further merges of BPE, the most frequent pair first; ties are broken alphabetically."""
    prefix, known = _prefix(core), core.get_vocab()
    split = [list(word) for word in words]
    often = list(words.values())
    pieces: dict[str, Word] = {}
    counts: Counter[Word] = Counter()
    places: dict[Word, set[int]] = defaultdict(set)
    for place, word in enumerate(split):
        for near in pairwise(word):
            counts[near] += often[place]
            places[near].add(place)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    while heap:
        count, pair = heapq.heappop(heap)
        if counts[pair] < LEAST:
            continue
        if -count != counts[pair]:  # outdated: words with the pair have been merged since
            heapq.heappush(heap, (-counts[pair], pair))
            continue
        parts = tuple(piece for token in pair for piece in pieces.get(token, (token,)))
        text = _joined(pair, prefix)
        if text in known or text in pieces or not all(piece in known for piece in parts) or not fits(parts):
            continue
        pieces[text] = parts
        yield NewToken(text, parts, counts[pair], pair)
        changed: set[Word] = set()
        for place in places.pop(pair):
            for near in pairwise(split[place]):
                counts[near] -= often[place]
            split[place] = _merged(split[place], pair, text)
            for near in pairwise(split[place]):
                counts[near] += often[place]
                places[near].add(place)
                if text in near:
                    changed.add(near)
        for new in changed:
            heapq.heappush(heap, (-counts[new], new))


def _merged(word: list[str], pair: Word, text: str) -> list[str]:
    result: list[str] = []
    place = 0
    while place < len(word):
        if tuple(word[place : place + 2]) == pair:
            result.append(text)
            place += 2
        else:
            result.append(word[place])
            place += 1
    return result


def _prefix(core: Tokenizer) -> str:
    model = json.loads(core.to_str())["model"]
    return model.get("continuing_subword_prefix") or ""
