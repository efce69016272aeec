"""How a run turns text into what its model reads and is scored on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everlearn.model.anatomy import Kind
from everlearn.model.objectives import Objective


@dataclass(frozen=True)
class TextFormat:
    """The same for the whole run.

    Attributes:
        tokenizer: of the model.
        objective: what is learnt from text; collates and scores.
        kind: of the model: encoder, decoder or encoder-decoder.
        block_size: tokens in a row.
    """

    tokenizer: Any
    objective: Objective
    kind: Kind
    block_size: int
