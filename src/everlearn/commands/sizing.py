"""Choose the length of a row and the steps of a domain from the facts about model and corpora."""

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
"""Tokens of a row of text where so little is held out that it would not fill a longer one."""
ROWS_PER_STEP = 16
"""Rows of an optimizer step, in one batch or accumulated over several."""
LONGEST_ROW, SHORTEST_ROW, LONGEST_EXAMPLE = 512, 64, 2048
"""Tokens of a row of text at most, of any row at least, and of a prompt with its answer at most."""
FEWEST_ROWS = 200
"""Rows of a domain below which rows are made shorter."""
FEWEST_STEPS, MOST_PASSES = 100, 4
"""Where every domain has fewer steps than this in a pass, they are passed over again, up to four times: until then
repeated text teaches nearly as much as new text (Muennighoff et al. 2023, arXiv 2305.16264)."""
BYTES_PER_TOKEN = 4.0
"""For English text, if no tokenizer was loaded."""
TRAINED = 0.95
"""Share of a corpus that is not held out."""


class Sizing:
    """Rows, steps and passes of a recipe.

    Args:
        model: facts about the model; None: rows of English text are assumed.
        probes: the domains' corpora.
        general: the general text, if it was looked into.

    Attributes:
        alone: each example has a row of its own, instead of rows that are filled.
        block_size: tokens in a row.
        passes: over each domain.
        needed: tokens of an example that one in twenty exceeds; 0 where text is learnt.
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
        # The domain with the most text decides, or a large one would be passed over again for a small one's sake.
        most = max((self.steps(probe) if probe.complete else FEWEST_STEPS for probe in probes), default=FEWEST_STEPS)
        self.passes = min(MOST_PASSES, math.ceil(FEWEST_STEPS / most))

    @property
    def cuts(self) -> bool:
        """Return whether more than one example in twenty is longer than a row."""
        return self.needed > self.block_size

    def tokens(self, probe: Probe) -> float:
        """Return about how many tokens a corpus has."""
        return max(1.0, probe.text_bytes * self._per_byte[probe])

    def steps(self, probe: Probe) -> int:
        """Return about how many steps a pass over a corpus has."""
        return max(1, round(self._rows(probe, self.block_size) / ROWS_PER_STEP))

    def check(self, probe: Probe, key: str) -> None:
        """Check that a corpus has enough text for a row to learn from and one to measure on.

        Args:
            probe: measurements of the corpus.
            key: the option that names it.

        Raises:
            DataError: it has not.
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
        """Return the tokens of a corpus' held-out text; infinity where they fill a row in any case, as examples do."""
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
