"""How text is tokenised and scored in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everlearn.model.anatomy import Kind
from everlearn.model.objectives import Objective


@dataclass(frozen=True)
class TextFormat:
    """Tokenizer, objective and block size, the same for the whole run.

    Attributes:
        tokenizer: the tokenizer of the model.
        objective: the training objective; collates and scores.
        kind: kind of the model: encoder, decoder or encoder-decoder.
        block_size: tokens per row.
    """

    tokenizer: Any
    objective: Objective
    kind: Kind
    block_size: int
