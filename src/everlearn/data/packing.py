"""Pack documents into blocks: plain text is concatenated and cut, examples of prompt and answer stay whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from everlearn.data.blocks import Block
from everlearn.data.chats import ChatFormat, uses_template
from everlearn.data.corpus import Corpus, Document
from everlearn.data.fill_in_middle import FillInMiddle
from everlearn.data.tokenize import Encoder, Kind
from everlearn.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
CHUNK = 256
"""Documents tokenised at once: enough for the fast tokenizers to work in parallel."""
IGNORED = -100
"""Label of a token that is not learnt."""
LONG_ANSWER = 4
"""Every prompt leaves room for the longest answer so far, up to one part in this number of the block."""
ANSWER_MASKS = 8
"""The number of masks in place of an answer is a multiple of this."""


@dataclass
class Count:
    """What went through a packer.

    Attributes:
        documents: texts, or examples.
        tokens: with special tokens, before anything is cut off.
        text_tokens: without special tokens; for examples those of the answers.
        text_bytes: UTF-8 bytes of the same text.
        truncated: examples that were too long and were cut.
        answers_cut: number of them that lost a part of their answer.
        longest: tokens of the longest example, special ones included.
        spelt: chats in which special tokens are spelt out, which are read as text.
    """

    documents: int = 0
    tokens: int = 0
    text_tokens: int = 0
    text_bytes: int = 0
    truncated: int = 0
    answers_cut: int = 0
    longest: int = 0
    spelt: int = 0

    def __add__(self, other: Count) -> Count:
        """Add two counts."""
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Count)}
        return Count(**{**sums, "longest": max(self.longest, other.longest)})

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token of the text stands for."""
        return self.text_bytes / max(self.text_tokens, 1)

    def bytes_per_label(self, special: int = 1) -> float:
        """Return the UTF-8 bytes per label where special tokens are predicted too.

        With it, total nats over total bytes is bits per byte.

        Args:
            special: predicted special tokens of each text: its end, and its beginning before the answer of some
                encoder-decoders and where packed documents see each other.
        """
        return self.text_bytes / max(self.text_tokens + special * self.documents, 1)


class Packer(Protocol):
    """Pack documents into blocks; keep the remainder until it fills one."""

    count: Count

    def feed(self, documents: Sequence[Document]) -> list[Block]:
        """Return the blocks that these documents complete."""

    def finish(self) -> list[Block]:
        """Return the blocks that remain at the end of the corpus, and empty the packer."""

    def state_dict(self) -> dict[str, Any]:
        """Return the tokens that do not fill a block yet, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""


class TextPacker:
    """Concatenates documents and cuts the tokens into blocks of one size; the remainder at the end is dropped.

    A document that does not end in its block continues in the next one, as that block's segment 0.

    Args:
        encoder: encoder of the model.
        block_size: tokens in a block.
        labelled: whether each block has explicit labels (all of its tokens), as blocks with answers do.
        infilled: share of the documents that are written as prefix, suffix and middle.
    """

    def __init__(self, encoder: Encoder, block_size: int, *, labelled: bool = False, infilled: float = 0.0) -> None:
        self.encoder = encoder
        self.block_size = block_size
        self.labelled = labelled
        self.rearrange = FillInMiddle(encoder, infilled) if infilled else None
        self.count = Count()
        self._ids: list[np.ndarray] = []
        self._documents: list[np.ndarray] = []

    def feed(self, documents: Sequence[Document]) -> list[Block]:
        """Return the blocks that these documents complete."""
        around = len(self.encoder.prefix) + len(self.encoder.suffix)
        texts = [document.text for document in documents]
        every = self.encoder(texts)
        if self.rearrange is not None:
            every = self.rearrange(texts, every)
        for document, ids in zip(documents, every, strict=True):
            self.count.documents += 1
            self.count.tokens += len(ids) + around
            self.count.text_tokens += len(ids)
            self.count.text_bytes += len(document.text.encode())
            self._add([*self.encoder.prefix, *ids, *self.encoder.suffix])
        return self._cut()

    def feed_ids(self, documents: Iterable[Sequence[int]]) -> list[Block]:
        """Return the blocks that documents complete which are token ids already, special ones included."""
        for ids in documents:
            self.count.documents += 1
            self.count.tokens += len(ids)
            self._add(ids)
        return self._cut()

    def _add(self, ids: Sequence[int]) -> None:
        self._ids.append(np.array(ids, dtype=np.int32))
        self._documents.append(np.full(len(ids), self.count.documents, dtype=np.int64))

    def _cut(self) -> list[Block]:
        size = self.block_size
        ids = np.concatenate([np.empty(0, np.int32), *self._ids])
        numbers = np.concatenate([np.empty(0, np.int64), *self._documents])
        complete = len(ids) // size * size
        self._ids, self._documents = [ids[complete:].copy()], [numbers[complete:].copy()]
        rows, inside = ids[:complete].reshape(-1, size), numbers[:complete].reshape(-1, size)
        changes = np.diff(inside, axis=1, prepend=inside[:, :1]) != 0
        segments = np.cumsum(changes, axis=1, dtype=np.int32)
        # Copies: a view would keep the whole chunk in memory for as long as one of its blocks lives.
        blocks = [{"input_ids": rows[i].copy(), "segments": segments[i].copy()} for i in range(len(rows))]
        return [{**block, "labels": block["input_ids"]} for block in blocks] if self.labelled else blocks

    def finish(self) -> list[Block]:
        """Drop the remainder, which is less than a block."""
        self._ids, self._documents = [], []
        return []

    @property
    def remainder(self) -> np.ndarray:
        """Tokens that wait for their block to be full, int32."""
        return np.concatenate([np.empty(0, np.int32), *self._ids])

    def state_dict(self) -> dict[str, Any]:
        """Return the remainder's ids and the length of each document's part of it."""
        numbers = np.concatenate([np.empty(0, np.int64), *self._documents])
        return {"ids": self.remainder.tolist(), "lengths": np.unique(numbers, return_counts=True)[1].tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the remainder."""
        lengths = np.array(state["lengths"], dtype=np.int64)
        # Documents are numbered for telling them apart only: anything below the numbers to come will do.
        numbers = np.arange(-len(lengths), 0) + self.count.documents + 1
        self._ids = [np.array(state["ids"], dtype=np.int32)]
        self._documents = [np.repeat(numbers, lengths)]


class _ExamplePacker:
    """Tokenises prompts and answers; the answer is kept before the prompt where both do not fit."""

    def __init__(self, encoder: Encoder, block_size: int, target_size: int | None, keep_last: int = 0) -> None:
        self.encoder = encoder
        self.block_size = block_size
        self.target_size = target_size or block_size
        self.keep_last = keep_last
        self.count = Count()

    def _examples(self, documents: Sequence[Document]) -> Iterator[tuple[list[int], list[int]]]:
        for document in documents:
            if document.only_chat:
                raise DataError(
                    f"The row that begins with {document.messages[0].content!r:.60} is a list of messages, which only "
                    "a decoder learns whose tokenizer has a chat template. Use the tokenizer of an instruct model "
                    "(`model.tokenizer`), or write prompt and answer as texts."
                )
        prompts = self.encoder([d.text for d in documents])
        answers = self.encoder([d.target or "" for d in documents])
        for document, prompt, answer in zip(documents, prompts, answers, strict=True):
            self.count.documents += 1
            self.count.text_tokens += len(answer)
            self.count.text_bytes += len((document.target or "").encode())
            yield prompt, answer


class PairPacker(_ExamplePacker):
    """Encoder-decoder examples: a prompt row and an answer row, of their own lengths, cut if too long."""

    def feed(self, documents: Sequence[Document]) -> list[Block]:
        """Return one block for each example."""
        prefix, suffix = self.encoder.prefix, self.encoder.suffix
        around = len(prefix) + len(suffix)
        room, answer_room = self.block_size - around, self.target_size - around
        blocks = []
        for prompt, answer in self._examples(documents):
            self.count.truncated += len(prompt) > room or len(answer) > answer_room
            self.count.answers_cut += len(answer) > answer_room
            self.count.longest = max(self.count.longest, len(prompt) + around, len(answer) + around)
            self.count.tokens += len(prompt) + len(answer) + 2 * around
            ids = [*prefix, *shortened(prompt, room, self.keep_last), *suffix]
            labels = [*prefix, *answer[:answer_room], *suffix]
            blocks.append({"input_ids": np.array(ids, np.int32), "labels": np.array(labels, np.int32)})
        return blocks

    def finish(self) -> list[Block]:
        """Return nothing: no example is held back, so the state is empty too."""
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class AnswerPacker(_ExamplePacker):
    """Examples in one row each: prompt, answer and end, with labels on the answer, and for a decoder on the end.

    Examples fill a block one after another, each a segment of its own; one that does not fit starts the next block, and
    the rest of a block is padding without labels, as a last segment. For a masked model, the answer and an end of its
    own are masked, followed by further masks without labels, up to the number of :func:`masks_for`; the special tokens
    at the end of the example are not masked.

    A prompt that is too long is cut as if it had the longest answer so far, up to a quarter of the block. If it were
    cut for its own answer, its length would reveal the length of the answer, which is unknown in a test.
    """

    def __init__(self, encoder: Encoder, block_size: int, target_size: int | None, keep_last: int = 0) -> None:
        super().__init__(encoder, block_size, target_size, keep_last)
        self._row: list[tuple[list[int], list[int]]] = []
        self._longest = 0

    def feed(self, documents: Sequence[Document]) -> list[Block]:
        """Return the blocks that these examples complete."""
        return self.feed_examples(self._written(documents))

    def feed_examples(self, examples: Iterable[tuple[list[int], list[int]]]) -> list[Block]:
        """Return the blocks completed by examples that are token ids already, with a label for each; none too long."""
        blocks = []
        for ids, labels in examples:
            if sum(len(row) for row, _ in self._row) + len(ids) > self.block_size:
                blocks.extend(self.finish())
            self._row.append((ids, labels))
        return blocks

    def _written(self, documents: Sequence[Document]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the ids of each example and its labels, not longer than a block."""
        prefix = self.encoder.prefix
        masked = self.encoder.kind == "encoder"
        end = self.encoder.suffix if masked else [] if self.encoder.end is None else [self.encoder.end]
        end_labels = [IGNORED] * len(end) if masked else end
        behind = self.encoder.answer_end
        mask = self.encoder.tokenizer.mask_token_id if masked else None
        for prompt, answer in self._examples(documents):
            answer_room = min(self.target_size, self.block_size - len(prefix)) - len(end)
            kept = [*answer[: answer_room - len(behind)], *behind]
            more = [] if mask is None else [mask] * (min(masks_for(len(kept)), answer_room) - len(kept))
            taken = len(kept) + len(more)
            self._longest = max(self._longest, min(taken, self.block_size // LONG_ANSWER))
            room = self.block_size - len(prefix) - taken - len(end)
            if len(prompt) > room:
                room = min(room, self.block_size - len(prefix) - self._longest - len(end))
            length = len(prefix) + len(prompt) + len(answer) + len(behind) + len(more) + len(end)
            self.count.truncated += len(prompt) > room or len(answer) > answer_room - len(behind)
            self.count.answers_cut += len(answer) > answer_room - len(behind)
            self.count.longest = max(self.count.longest, length)
            self.count.tokens += length
            before = [*prefix, *shortened(prompt, room, self.keep_last)]
            labels = [*[IGNORED] * len(before), *kept, *[IGNORED] * len(more), *end_labels]
            yield [*before, *kept, *more, *end], labels

    def finish(self) -> list[Block]:
        """Return the block that was being filled, padded."""
        if not self._row:
            return []
        size = self.block_size
        ids = np.full(size, self.encoder.pad, np.int32)
        labels = np.full(size, IGNORED, np.int32)
        segments = np.full(size, len(self._row), np.int32)
        start = 0
        for number, (row, learnt) in enumerate(self._row):
            here = slice(start, start + len(row))
            ids[here], labels[here], segments[here] = row, learnt, number
            start += len(row)
        self._row = []
        return [{"input_ids": ids, "segments": segments, "labels": labels}]

    def state_dict(self) -> dict[str, Any]:
        """Return the examples of the block that is being filled, and the longest answer so far."""
        return {"row": [[list(ids), list(labels)] for ids, labels in self._row], "longest": self._longest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore these examples."""
        self._row = [(list(ids), list(labels)) for ids, labels in state["row"]]
        self._longest = int(state["longest"])


class ChatPacker(AnswerPacker):
    """Packs chats, formatted by the tokenizer's template, with labels on the assistant's messages.

    A chat that is too long loses its end. It is left out if nothing of what remains is learnt.
    """

    def __init__(self, encoder: Encoder, block_size: int) -> None:
        super().__init__(encoder, block_size, None)
        self._format = ChatFormat(encoder.tokenizer)

    def _written(self, documents: Sequence[Document]) -> Iterator[tuple[list[int], list[int]]]:
        for document in documents:
            try:
                ids, learnt = self._format.encode(document.messages, document.tools)
            except DataError as error:
                raise DataError(f"The chat that begins with {document.messages[0].content!r:.60}: {error}") from None
            self.count.spelt += self._format.spells_special(document.messages, document.tools)
            here = slice(self.block_size)
            cut = any(learnt[self.block_size :])
            self.count.documents += 1
            # One of the labels is an end, as behind an answer, and counts as such (`Count.bytes_per_label`).
            self.count.text_tokens += max(0, sum(learnt) - 1)
            self.count.text_bytes += sum(len(text.encode()) for text in self._format.learnt(document.messages))
            self.count.truncated += len(ids) > self.block_size
            self.count.answers_cut += cut
            self.count.longest = max(self.count.longest, len(ids))
            self.count.tokens += len(ids)
            if any(learnt[here]):
                yield ids[here], [id_ if own else IGNORED for id_, own in zip(ids[here], learnt[here], strict=True)]


def make_packer(
    encoder: Encoder,
    block_size: int,
    *,
    examples: bool,
    target_size: int | None = None,
    keep_last: int = 0,
    labelled: bool = False,
    infilled: float = 0.0,
    where: str = "The corpus",
) -> Packer:
    """Make the packer for a kind of model and of text.

    Args:
        encoder: knows the kind of model.
        block_size: tokens in a block; the longest prompt for an encoder-decoder.
        examples: documents are prompts with answers.
        target_size: the longest answer, end token included; `block_size` when None.
        keep_last: tokens at the end of a prompt that are kept if it is too long.
        labelled: for plain text, as in :class:`TextPacker`.
        infilled: for plain text, as in :class:`TextPacker`.
        where: the corpus, for errors.

    Raises:
        DataError: the kind of model cannot learn this kind of text, or no text fits into a block.
    """
    smallest = len(encoder.prefix) + len(encoder.suffix) + 1
    for key, size in (("block_size", block_size), ("target_size", target_size or block_size)):
        if size < smallest:
            raise DataError(
                f"`{key}: {size}` leaves no room for text between the special tokens (at least {smallest})."
            )
    if not examples and encoder.kind == "encoder-decoder":
        raise DataError(f"{where} needs a `target_column`: an encoder-decoder model learns prompts and their answers.")
    if not examples:
        return TextPacker(encoder, block_size, labelled=labelled, infilled=infilled)
    packer = PairPacker if encoder.kind == "encoder-decoder" else AnswerPacker
    return packer(encoder, block_size, target_size, keep_last)


def packer_of(
    corpus: Corpus, encoder: Encoder, block_size: int, *, target_size: int | None = None, where: str = "The corpus"
) -> Packer:
    """Make the packer of a corpus; see :func:`make_packer`."""
    chats = uses_template(corpus, encoder.tokenizer, encoder.kind)
    if (chats or corpus.fill_in_middle) and encoder.kind != "decoder":
        key = "fill_in_middle" if not chats else "messages_column" if corpus.form is None else "row_format"
        raise DataError(
            f"{where} has `{key}: {getattr(corpus, key)}`, which only a decoder learns, and this is an {encoder.kind}."
        )
    if chats and corpus.keep_last:
        raise DataError(f"{where}: `keep_last` has no effect on rows that a chat template writes: remove it.")
    if chats:
        return ChatPacker(encoder, block_size)
    return make_packer(
        encoder,
        block_size,
        examples=corpus.answers,
        target_size=target_size,
        keep_last=corpus.keep_last,
        labelled=corpus.beside_answers,
        infilled=corpus.fill_in_middle,
        where=where,
    )


def version_of(encoder: Encoder, corpus: Corpus) -> tuple[str, ...]:
    """Return further parts of a fingerprint: how rows are packed and how chats are formatted."""
    if uses_template(corpus, encoder.tokenizer, encoder.kind):
        return (ChatFormat(encoder.tokenizer).fingerprint,)
    if corpus.beside_answers:
        return ("labelled",)
    if not corpus.answers or encoder.kind == "encoder-decoder":
        return ()
    return ("one room for all prompts", *(["answers among masks"] if encoder.kind == "encoder" else []))


def masks_for(tokens: int) -> int:
    """Return the number of masks that replace an answer of this many tokens: the next multiple of eight.

    The tokens include the answer's end. With one mask per token, the number of masks alone would distinguish answers of
    different lengths, and nothing else would be learnt (arXiv 2009.07118 uses as many masks as the longest answer has
    tokens). Answers of up to seven tokens get the same number; longer ones can still be distinguished by it.
    """
    return -(-tokens // ANSWER_MASKS) * ANSWER_MASKS


def shortened(ids: Sequence[int], room: int, keep_last: int = 0) -> list[int]:
    """Return at most `room` ids of a prompt: its beginning, and its last `keep_last` ids."""
    last = min(keep_last, room)
    return list(ids) if len(ids) <= room else [*ids[: room - last], *ids[len(ids) - last :]]


def chunks(documents: Iterable[T]) -> Iterator[list[T]]:
    """Yield documents in lists of :data:`CHUNK`."""
    iterator = iter(documents)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def blocks_of(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, kind: Kind, block_size: int) -> list[Block]:
    """Pack a few texts into blocks of plain text, at least one: short texts are repeated until a block is full.

    Raises:
        DataError: the texts are empty, or the model is an encoder-decoder, which has no plain text.
    """
    packer = make_packer(Encoder(tokenizer, kind), block_size, examples=False, where="The text of an end task")
    blocks: list[Block] = []
    while not blocks:
        before = packer.count.tokens
        blocks = packer.feed([Document(text) for text in texts])
        if packer.count.tokens == before:
            raise DataError("There is no text to read.")
    return blocks
