"""Two models on one text: how far apart they are, and which passages and tokens account for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everlearn.analysis.diff.passages import Passage
from everlearn.analysis.diff.scoring import TokenLosses
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import estimate
from everlearn.evaluation.statistics import bootstrap_ratio

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEW_DOCUMENTS = 10
"""With fewer documents than this, passages are resampled."""
PASSAGES, TOKENS, WORDS = 3, 12, 15
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


@dataclass(frozen=True)
class TextDifference:
    """Two models on one text, in bits per byte; below zero is better.

    Attributes:
        name: of the text.
        documents: of which something was scored.
        passages: that were scored.
        tokens: that were scored, by the earlier model's tokenizer.
        bytes: of these passages.
        unit: what the bootstrap draws: documents or passages.
        before: of the earlier model.
        after: of the later one.
        difference: after − before, in pairs.
        by_token: whether both models read the same tokens.
        lost: what got worse most.
        gained: what got better most.
    """

    name: str
    documents: int
    passages: int
    tokens: int
    bytes: int
    unit: str
    before: Estimate
    after: Estimate
    difference: Estimate
    by_token: bool
    lost: End
    gained: End

    def to_json(self) -> dict[str, Any]:
        """For another program."""
        return asdict(self)


def compare(
    name: str,
    passages: Sequence[Passage],
    before: TokenLosses,
    after: TokenLosses,
    tokenizer: PreTrainedTokenizerBase,
) -> TextDifference:
    """Compare the losses of two models on the same passages.

    Args:
        name: of the text.
        passages: of it.
        before: losses of the earlier model.
        after: of the later one.
        tokenizer: of the earlier one.
    """
    same = all(np.array_equal(one, other) for one, other in zip(before.ids, after.ids, strict=True))
    sizes = np.array([passage.bytes for passage in passages], float)
    sums = [losses.sums() for losses in (before, after)]
    counts = [np.array([len(own) for own in losses.ids]) for losses in (before, after)]
    # Of a masked model, the bytes that its masked tokens stand for.
    scored = [sizes * items / np.maximum(count, 1) for (_, items), count in zip(sums, counts, strict=True)]
    units = np.array([passage.document for passage in passages])
    documents = len(np.unique(units))
    if documents < FEW_DOCUMENTS:
        units = np.arange(len(passages))
    _, owner = np.unique(units, return_inverse=True)
    above = np.stack([np.bincount(owner, nats) for nats, _ in sums])
    below = np.stack([np.bincount(owner, weight) for weight in scored]) * BITS
    levels = above.sum(1) / below.sum(1)
    draws = _bootstrap(above, below, name)
    of_both = _Changes(passages, before, after, tokenizer) if same else None
    change = sums[1][0] / np.maximum(scored[1], 1) - sums[0][0] / np.maximum(scored[0], 1)
    weight = np.minimum(scored[0], scored[1])
    ends = []
    for sign in (1, -1):
        order = np.argsort(-sign * change * weight, kind="stable")[:PASSAGES]
        own = [i for i in order.tolist() if sign * change[i] * weight[i] > 0]
        shown = [
            PassageChange(
                passages[i].document + 1,
                passages[i].bytes,
                float(sums[0][0][i] / scored[0][i] / BITS),
                float(sums[1][0][i] / scored[1][i] / BITS),
                of_both.excerpt(i, sign) if of_both else [Piece(passages[i].text[: 4 * EXCERPT])],
            )
            for i in own
        ]
        ends.append(End(shown, of_both.tokens(sign), of_both.words(sign)) if of_both else End(shown))
    return TextDifference(
        name,
        documents,
        len(passages),
        int(sums[0][1].sum()),
        int(sizes.sum()),
        "passages" if documents < FEW_DOCUMENTS else "documents",
        estimate(levels[0], draws[:, 0]) or Estimate(),
        estimate(levels[1], draws[:, 1]) or Estimate(),
        estimate(levels[1] - levels[0], draws[:, 1] - draws[:, 0]) or Estimate(),
        same,
        *ends,
    )


def _bootstrap(above: NDArray[Any], below: NDArray[Any], name: str) -> NDArray[np.float64]:
    """Both levels under the same draws, [resamples, 2]: each has its own bytes where the tokenizers differ."""
    parts = [bootstrap_ratio(above[row], below[row], seed=("diff", name))[:, 0] for row in (0, 1)]
    return np.stack(parts, axis=1)


class _Changes:
    """Tokens of a text in their places, with what two models make of them."""

    def __init__(
        self,
        passages: Sequence[Passage],
        before: TokenLosses,
        after: TokenLosses,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.passages, self.before, self.after, self.tokenizer = passages, before, after, tokenizer
        self.change = [(b - a) / BITS for a, b in zip(before.nats, after.nats, strict=True)]

    def excerpt(self, number: int, sign: int) -> list[Piece]:
        """The stretch of a passage that changed most in one direction."""
        change = np.nan_to_num(self.change[number] * sign)
        behind = np.cumsum([0.0, *change])
        width = min(EXCERPT, len(change))
        start = int(np.argmax(behind[width:] - behind[:-width]))
        shown = slice(start, start + width)
        texts = pieces(self.tokenizer, self.before.ids[number][shown])
        levels = [_bits(losses.nats[number][shown]) for losses in (self.before, self.after)]
        return [Piece(text, b, a) for text, b, a in zip(texts, *levels, strict=True)]

    def tokens(self, sign: int) -> list[TokenChange]:
        """The tokens that changed most in one direction: one of a passage, and two of a kind at most."""
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
        levels = [float(losses.nats[number][place] / BITS) for losses in (self.before, self.after)]
        guesses = [self._word(int(losses.guess[number][place])) for losses in (self.before, self.after)]
        left, right = "".join(texts[:at]), "".join(texts[at + 1 :])
        return TokenChange(self.passages[number].document + 1, left, texts[at], right, *levels, *guesses)

    def words(self, sign: int) -> list[WordChange]:
        """The tokens of the vocabulary that changed most in one direction: the mean over where they stand."""
        ids = np.concatenate(self.before.ids)
        before, after, guess = (
            np.concatenate(each) for each in (self.before.nats, self.after.nats, self.after.guess)
        )
        scored = ~np.isnan(before)
        ids, before, after, guess = (each[scored] for each in (ids, before, after, guess))
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
        """A token's text, special tokens by their names."""
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
