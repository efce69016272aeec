"""Choose the length of a row and the number of passes from facts about model and corpora."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from everlearn.errors import DataError
from everlearn.wording import be, count

if TYPE_CHECKING:
    from everlearn.commands.data_probe import Probe
    from everlearn.commands.model_probe import ModelProbe

SMALLEST_ROW = 32
"""Minimum tokens of a row of text, used if the held-out text would not fill a longer row."""
ROWS_PER_STEP = 16
"""Rows of an optimizer step, in one batch or accumulated over several."""
LONGEST_ROW, SHORTEST_ROW, LONGEST_EXAMPLE = 512, 64, 2048
"""Maximum tokens of a row of text, usual minimum of any row, and maximum of a row with prompt and answer."""
FEWEST_ROWS = 200
"""If a domain would have fewer rows, rows are made shorter."""
FEWEST_STEPS, MOST_PASSES = 100, 4
"""If no domain has this number of steps in one pass, there are several passes, at most four: up to then repeated text
teaches nearly as much as new text (Muennighoff et al. 2023, arXiv 2305.16264)."""
BYTES_PER_TOKEN = 4.0
"""For English text, if no tokenizer was loaded."""
TRAINED = 0.95
"""Share of a corpus that is not held out."""


class Sizing:
    """Rows, steps and passes of a recipe.

    Args:
        model: facts about the model; None: rows of English text are assumed.
        probes: the domains' corpora.
        general: the general text, if there is one.

    Attributes:
        alone: whether each example has its own row; otherwise several share one.
        block_size: tokens in a row.
        passes: number of passes over each domain.
        needed: 95 % quantile of the tokens of an example; 0 if text is learnt.
    """

    def __init__(self, model: ModelProbe | None, probes: Collection[Probe], general: Probe | None = None) -> None:
        self.model = model
        self._per_byte = {probe: self._tokens_per_byte(probe) for probe in probes}
        self.alone = model is not None and model.kind == "encoder-decoder"
        self.needed = max((self._longest_example(probe) for probe in probes if probe.columns.answers), default=0)
        longest = (model.longest if model else None) or LONGEST_EXAMPLE
        size = min(LONGEST_ROW, longest)
        if self.needed:
            size = SHORTEST_ROW
            while size < self.needed:
                size *= 2
            size = min(size, longest, LONGEST_EXAMPLE)
        else:
            while size > SHORTEST_ROW and any(self._rows(probe, size) < FEWEST_ROWS for probe in probes):
                size //= 2
        least = min((self._held_out(each) for each in (*probes, *([general] if general else []))), default=math.inf)
        while size > max(SMALLEST_ROW, least):
            size = max(SMALLEST_ROW, size // 2)
        self.block_size = size
        # The domain with the most text decides, so that a large domain is not repeated because of a small one.
        most = max((self.steps(probe) if probe.complete else FEWEST_STEPS for probe in probes), default=FEWEST_STEPS)
        self.passes = min(MOST_PASSES, math.ceil(FEWEST_STEPS / most))

    @property
    def cuts(self) -> bool:
        """Return whether more than one example in twenty is longer than a row."""
        return self.needed > self.block_size

    def tokens(self, probe: Probe) -> float:
        """Estimate the number of tokens of a corpus."""
        return max(1.0, probe.text_bytes * self._per_byte[probe])

    def steps(self, probe: Probe) -> int:
        """Estimate the number of steps of a pass over a corpus."""
        return max(1, round(self._rows(probe, self.block_size) / ROWS_PER_STEP))

    def check(self, probe: Probe, key: str) -> None:
        """Check that a corpus has enough text for a row to learn from and one to measure on.

        Args:
            probe: measurements of the corpus.
            key: the option that names it.

        Raises:
            DataError: it has too little text.
        """
        held_out = self._held_out(probe)
        if self.model is None or held_out >= self.block_size:
            return
        if probe.columns.answers:
            few = f"{count(probe.documents, 'example')}, of which none is"
        else:
            few = f"{count(probe.documents, 'document')}, of which {count(held_out, 'token')} {be(held_out)}"
        raise DataError(
            f"`{key}`: {probe.path} has {few} held out to measure on, fewer than a row of {self.block_size}. Give more "
            "text, or join it with that of another domain."
        )

    def _held_out(self, probe: Probe) -> float:
        """Return the tokens of a corpus' held-out text; infinity if it has examples, or is large."""
        if probe.held_out is None or (probe.columns.answers and probe.held_out):
            return math.inf
        if self.model is None:
            return math.floor(sum(len(text.encode()) for text in probe.held_out) / BYTES_PER_TOKEN)
        return self.model.tokens(probe.held_out) if probe.held_out else 0

    def _rows(self, probe: Probe, size: int) -> float:
        return TRAINED * (probe.documents if self.alone else self.tokens(probe) / size)

    def _tokens_per_byte(self, probe: Probe) -> float:
        if self.model is None:
            return 1 / BYTES_PER_TOKEN
        return self.model.tokens(probe.sample) / max(1, sum(len(text.encode()) for text in probe.sample))

    def _longest_example(self, probe: Probe) -> int:
        """Return the tokens of the longest example, with one for the beginning and one for the end."""
        return math.ceil(probe.longest * self._per_byte[probe]) + 2
