"""The passages and tokens of a text that account for the difference of two models: what lost most, what gained most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everlearn.diagnostics.diff.passages import TextPassage
from everlearn.diagnostics.diff.scoring import TokenLosses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PASSAGES, TOKENS, WORDS = 3, 10, 15
"""How many passages, tokens in their places, and tokens of the vocabulary are shown of each end."""
EXCERPT = 70
"""Tokens of a passage that are shown: the stretch of it that changed most."""
BEFORE, BEHIND = 14, 5
"""Tokens that are shown around a token."""
OFTEN = 3
"""A token of the vocabulary is listed when it was scored so many times or more."""
SHRINK = 5
"""Occurrences without any change that are added to those of each token, so that rare ones do not lead by chance."""
BITS = math.log(2)


@dataclass(frozen=True)
class Piece:
    """A token in its place, with the bits that each model needs for it; None where it was not scored."""

    text: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class PassageChange:
    """A passage that changed much.

    Attributes:
        document: its number in the text.
        bytes: of the passage.
        before: bits per byte of the earlier model.
        after: of the later one.
        pieces: the stretch of it that changed most; the beginning, without numbers, where tokens cannot be compared.
    """

    document: int
    bytes: int
    before: float
    after: float
    pieces: list[Piece]


@dataclass(frozen=True)
class TokenChange:
    """A token in its place that changed much.

    Attributes:
        document: number of its document.
        left: the text before it.
        token: its text.
        right: the text behind it.
        before: bits of the earlier model.
        after: bits of the later one.
        guess_before: what the earlier model found likeliest there.
        guess_after: what the later one found likeliest.
    """

    document: int
    left: str
    token: str
    right: str
    before: float
    after: float
    guess_before: str
    guess_after: str


@dataclass(frozen=True)
class WordChange:
    """A token of the vocabulary, wherever it stands.

    Attributes:
        token: its text.
        count: how often it was scored.
        before: mean bits of the earlier model.
        after: mean bits of the later one.
        instead: what the later model found likeliest in its place most often; empty where that is the token itself.
    """

    token: str
    count: int
    before: float
    after: float
    instead: str


@dataclass(frozen=True)
class End:
    """What lost most, or what gained most."""

    passages: list[PassageChange] = field(default_factory=list)
    tokens: list[TokenChange] = field(default_factory=list)
    words: list[WordChange] = field(default_factory=list)


def ends_of(
    passages: Sequence[TextPassage],
    before: TokenLosses,
    after: TokenLosses,
    scored: NDArray[np.float64],
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[End, End]:
    """Return what lost most and what gained most; passages alone where the two models read different tokens.

    Args:
        passages: of a text.
        before: losses of the earlier model.
        after: of the later one.
        scored: bytes of each passage that were scored.
        tokenizer: of the earlier model.
    """
    changes = _Changes(passages, before, after, tokenizer) if before.same_tokens(after) else None
    bits = [losses.sums()[0] / BITS for losses in (before, after)]
    ends = []
    for sign in (1, -1):
        change = sign * (bits[1] - bits[0])
        shown = [
            PassageChange(
                passages[i].document + 1,
                passages[i].bytes,
                float(bits[0][i] / scored[i]),
                float(bits[1][i] / scored[i]),
                changes.excerpt(i, sign) if changes else [Piece(passages[i].text[: 4 * EXCERPT])],
            )
            for i in np.argsort(-change, kind="stable")[:PASSAGES].tolist()
            if change[i] > 0
        ]
        ends.append(End(shown, changes.tokens(sign), changes.words(sign)) if changes else End(shown))
    return ends[0], ends[1]


class _Changes:
    """Tokens of a text in their places, with what two models make of them."""

    def __init__(
        self,
        passages: Sequence[TextPassage],
        before: TokenLosses,
        after: TokenLosses,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.passages, self.before, self.after, self.tokenizer = passages, before, after, tokenizer
        self.change = [(b - a) / BITS for a, b in zip(before.nats, after.nats, strict=True)]

    def excerpt(self, number: int, sign: int) -> list[Piece]:
        """Return the stretch of a passage that changed most in one direction."""
        change = np.nan_to_num(self.change[number] * sign)
        behind = np.cumsum([0.0, *change])
        width = min(EXCERPT, len(change))
        start = int(np.argmax(behind[width:] - behind[:-width]))
        shown = slice(start, start + width)
        texts = pieces(self.tokenizer, self.before.ids[number][shown])
        levels = [_bits(losses.nats[number][shown]) for losses in (self.before, self.after)]
        return [Piece(text, b, a) for text, b, a in zip(texts, *levels, strict=True)]

    def tokens(self, sign: int) -> list[TokenChange]:
        """Return the tokens that changed most in one direction: one of a passage, and two of a kind at most."""
        best = sorted(
            ((float(sign * change[i]), number, int(i))
             for number, change in enumerate(self.change)
             if not np.isnan(change).all()
             for i in [np.nanargmax(sign * change)]),
            reverse=True,
        )  # fmt: skip
        found: list[TokenChange] = []
        kinds: Counter[int] = Counter()
        for change, number, place in best:
            kind = int(self.before.ids[number][place])
            kinds[kind] += 1
            if change <= 0 or len(found) == TOKENS:
                break
            if kinds[kind] <= 2:
                found.append(self._token(number, place))
        return found

    def _token(self, number: int, place: int) -> TokenChange:
        start = max(0, place - BEFORE)
        texts = pieces(self.tokenizer, self.before.ids[number][start : place + 1 + BEHIND])
        at = place - start
        return TokenChange(
            self.passages[number].document + 1,
            left="".join(texts[:at]),
            token=texts[at],
            right="".join(texts[at + 1 :]),
            before=float(self.before.nats[number][place] / BITS),
            after=float(self.after.nats[number][place] / BITS),
            guess_before=self._word(int(self.before.guess[number][place])),
            guess_after=self._word(int(self.after.guess[number][place])),
        )

    def words(self, sign: int) -> list[WordChange]:
        """Return the tokens of the vocabulary that changed most in one direction: the mean over where they stand."""
        scored = ~np.isnan(np.concatenate(self.before.nats))
        ids = np.concatenate(self.before.ids)[scored]
        guess = np.concatenate(self.after.guess)[scored]
        before, after = (np.concatenate(losses.nats)[scored] for losses in (self.before, self.after))
        kinds, owner, count = np.unique(ids, return_inverse=True, return_counts=True)
        sums = [np.bincount(owner, each / BITS, len(kinds)) for each in (before, after)]
        mean = sign * (sums[1] - sums[0]) / (count + SHRINK)
        mean[count < OFTEN] = -np.inf
        order = [i for i in np.argsort(-mean, kind="stable")[:WORDS].tolist() if mean[i] > 0]
        found = []
        for i in order:
            instead = Counter(guess[ids == kinds[i]].tolist()).most_common(1)[0][0]
            found.append(
                WordChange(
                    self._word(int(kinds[i])),
                    int(count[i]),
                    float(sums[0][i] / count[i]),
                    float(sums[1][i] / count[i]),
                    "" if instead == kinds[i] else self._word(int(instead)),
                )
            )
        return found

    def _word(self, token: int) -> str:
        """Return a token's text, special tokens by their names."""
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | NDArray[np.int64]) -> list[str]:
    """Return the text of each token in its place; of a letter in several tokens, the last one has it."""
    decode: Callable[..., Any] = tokenizer.decode
    texts, before = [], ""
    for end in range(1, len(ids) + 1):
        whole = str(decode(list(map(int, ids[:end])), clean_up_tokenization_spaces=False))
        if whole.endswith("\ufffd") and end < len(ids):
            texts.append("")
            continue
        texts.append(whole[len(before) :])
        before = whole
    return texts


def _bits(nats: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else float(value / BITS) for value in nats]
