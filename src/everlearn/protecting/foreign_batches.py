"""Which objective reads the batches of another trainer."""

from __future__ import annotations

from typing import Any

from torch import nn

from everlearn.errors import MethodError
from everlearn.model.anatomy import kind_of
from everlearn.model.head import config_of, output_head
from everlearn.model.objectives import Objective
from everlearn.protecting.foreign_data import Collator
from everlearn.protecting.foreign_scores import TheirScores
from everlearn.protecting.foreign_text import TheirCausal, TheirMasked, Theirs, TheirTextToText

_OF_KIND: dict[str, type[Theirs]] = {
    "encoder": TheirMasked,
    "decoder": TheirCausal,
    "encoder-decoder": TheirTextToText,
}


def their_objective(model: nn.Module, tokenizer: Any, collator: Collator, text: Objective | None = None) -> Theirs:
    """Return the objective that reads batches for a model.

    Args:
        model: the unwrapped model.
        tokenizer: its tokenizer.
        collator: makes a batch of a list of blocks.
        text: reads rows of plain text that everlearn has packed.

    Raises:
        MethodError: it is neither a language model nor a reward model.
    """
    if output_head(model) is not None:
        return _OF_KIND[kind_of(model)](tokenizer=tokenizer, model=model, collator=collator, text=text)
    if getattr(config_of(model), "num_labels", None) == 1:
        return TheirScores(tokenizer=tokenizer, model=model, collator=collator)
    raise MethodError(
        f"`protect` needs a model with a vocabulary head, or a reward model with one score, and "
        f"'{type(model).__name__}' is neither."
    )
