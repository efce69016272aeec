"""Content tokens: what is left of a text's labels without its most frequent types and without formatting.

Most of a change in perplexity can come from a handful of tokens that say nothing of a domain, such as line breaks and
quotation marks (arXiv 2410.05581), so that a loss over content tokens stands beside the one over all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from everlearn.data.blocks import PackedBlocks, Ragged

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PART = "\ufffd"
"""What a part of a letter decodes to."""


def without_content(blocks: PackedBlocks, tokenizer: PreTrainedTokenizerBase, frequent: int) -> Tensor:
    """Whether each token says nothing, bool [V]: it is special, has no letter or digit, or is among the most frequent.

    It follows from the held-out set alone, so that every checkpoint of every run is scored on the same labels.

    Args:
        blocks: the set; what is predicted is counted: the answers where there are any.
        tokenizer: of the model.
        frequent: how many of the set's types count as frequent; of equally frequent ones the lower ids.
    """
    column = blocks.arrays.get("labels", blocks.arrays["input_ids"])
    ids = np.asarray(column.values if isinstance(column, Ragged) else column).ravel()
    types, counts = np.unique(ids[ids >= 0], return_counts=True)
    without = torch.zeros(max(len(tokenizer), int(types.max(initial=0)) + 1), dtype=torch.bool)
    special = set(tokenizer.all_special_ids)
    for token in types.tolist():
        text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
        without[token] = token in special or not any(letter.isalnum() or letter == _PART for letter in text)
    types, counts = types[~without.numpy()[types]], counts[~without.numpy()[types]]
    without[types[np.lexsort((types, -counts))[:frequent]].tolist()] = True
    return without
