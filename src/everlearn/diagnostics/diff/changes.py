"""Find the passages and tokens of a text that account for the difference of two models."""

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
"""Maximum passages, single tokens and vocabulary tokens shown, for losses and for gains."""
EXCERPT = 70
"""Tokens shown of a passage: the stretch that changed most."""
BEFORE, BEHIND = 14, 5
"""Tokens shown before and after a token."""
OFTEN = 3
"""Minimum number of scored occurrences of a listed vocabulary token."""
SHRINK = 5
"""Number of unchanged occurrences added to each token's own, so that rare tokens do not lead by chance."""
BITS = math.log(2)


@dataclass(frozen=True)
class Piece:
    """A token in its place, with the bits that each model needs for it; None if it was not scored."""

    text: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class PassageChange:
    """A passage that changed much.

    Attributes:
        document: its number in the text.
        bytes: bytes of the passage.
        before: bits per byte of the earlier model.
        after: bits per byte of the later model.
        pieces: the stretch that changed most; the beginning, without numbers, if tokens cannot be compared.
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
        right: the text after it.
        before: bits of the earlier model.
        after: bits of the later model.
        guess_before: the earlier model's likeliest token there.
        guess_after: the later model's likeliest token there.
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
    """A vocabulary token, over all its occurrences.

    Attributes:
        token: its text.
        count: number of scored occurrences.
        before: mean bits of the earlier model.
        after: mean bits of the later model.
        instead: the later model's most frequent guess in its place; empty if that is the token itself.
    """

    token: str
    count: int
    before: float
    after: float
    instead: str


@dataclass(frozen=True)
class End:
    """The largest losses, or the largest gains."""

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
    """Return the largest losses and gains; only passages if the two models have different tokens.

    Args:
        passages: passages of a text.
        before: losses of the earlier model.
        after: losses of the later model.
        scored: scored bytes of each passage.
        tokenizer: the earlier model's tokenizer.
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
    """The losses of two models on the same tokens of a text."""

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
        """Return the tokens that changed most in one direction: at most one per passage, and two of a kind."""
        best = sorted(
            ((float(sign * change[i]), number, int(i))
             for number, change in enumerate(self.change)
             if not np.isnan(change).all()
             for i in [np.nanargmax(sign * change)]),
            reverse=True,
        )  # fmt: skip
        changes: list[TokenChange] = []
        kinds: Counter[int] = Counter()
        for change, number, place in best:
            kind = int(self.before.ids[number][place])
            kinds[kind] += 1
            if change <= 0 or len(changes) == TOKENS:
                break
            if kinds[kind] <= 2:
                changes.append(self._token(number, place))
        return changes

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
        """Return the vocabulary tokens that changed most in one direction, on average over their occurrences."""
        scored = ~np.isnan(np.concatenate(self.before.nats))
        ids = np.concatenate(self.before.ids)[scored]
        guess = np.concatenate(self.after.guess)[scored]
        before, after = (np.concatenate(losses.nats)[scored] for losses in (self.before, self.after))
        kinds, owner, count = np.unique(ids, return_inverse=True, return_counts=True)
        sums = [np.bincount(owner, each / BITS, len(kinds)) for each in (before, after)]
        mean = sign * (sums[1] - sums[0]) / (count + SHRINK)
        mean[count < OFTEN] = -np.inf
        order = [i for i in np.argsort(-mean, kind="stable")[:WORDS].tolist() if mean[i] > 0]
        changes = []
        for i in order:
            instead = Counter(guess[ids == kinds[i]].tolist()).most_common(1)[0][0]
            changes.append(
                WordChange(
                    self._word(int(kinds[i])),
                    int(count[i]),
                    float(sums[0][i] / count[i]),
                    float(sums[1][i] / count[i]),
                    "" if instead == kinds[i] else self._word(int(instead)),
                )
            )
        return changes

    def _word(self, token: int) -> str:
        """Return a token's text; special tokens are written by their names."""
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | NDArray[np.int64]) -> list[str]:
    """Return the text of each token in its place; a character of several tokens is given to the last of them."""
    decode: Callable[..., Any] = tokenizer.decode
    texts, before = [], ""
    for end in range(1, len(ids) + 1):
        decoded = str(decode(list(map(int, ids[:end])), clean_up_tokenization_spaces=False))
        if decoded.endswith("\ufffd") and end < len(ids):
            texts.append("")
            continue
        texts.append(decoded[len(before) :])
        before = decoded
    return texts


def _bits(nats: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else float(value / BITS) for value in nats]
