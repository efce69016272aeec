"""Select the objective that reads the batches of another trainer."""

from __future__ import annotations

from typing import Any

from torch import nn

from everlearn.errors import MethodError
from everlearn.model.anatomy import kind_of
from everlearn.model.finding import transformers_model
from everlearn.model.objectives import Objective
from everlearn.model.vocabulary_head import output_head
from everlearn.protecting.foreign_data import Collator
from everlearn.protecting.foreign_embeddings import TheirEmbeddings
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
        MethodError: the model is neither a language model, nor a reward model, nor an embedding model.
    """
    if output_head(model) is not None:
        return _OF_KIND[kind_of(model)](tokenizer=tokenizer, model=model, collator=collator, text=text)
    if hasattr(model, "encode"):
        return TheirEmbeddings(tokenizer=tokenizer, model=model, collator=collator)
    if transformers_model(model)[1].config.num_labels == 1:
        return TheirScores(tokenizer=tokenizer, model=model, collator=collator)
    raise MethodError(
        "`protect` needs a language model, a reward model with one score or an embedding model of Sentence "
        f"Transformers, and '{type(model).__name__}' is none of them."
    )
