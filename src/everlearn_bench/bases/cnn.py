"""A small CNN as a base model."""

from __future__ import annotations

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from everlearn.model.packed_rows import PADDING
from everlearn_bench.bases.without_attention import (
    NoAttentionConfig,
    NoAttentionForCausalLM,
    NoAttentionForSequenceClassification,
    NoAttentionLayer,
    NoAttentionModel,
    NoAttentionPreTrained,
    Pooling,
    State,
    make_known,
    pooled,
)


@strict
class CNNConfig(NoAttentionConfig):
    """Configuration of a CNN."""

    model_type: ClassVar[str] = "everlearn-cnn"

    kernel_size: int = 5
    """Number of tokens that a filter reads: the current one and those before it."""
    pooling: Pooling = "max"
    """How a classifier pools a text to one vector; and, in each layer, how half of the filters are pooled over the
    document up to each token. `last` does not pool; the parameters are the same for all."""


class CNNLayer(NoAttentionLayer):
    """Causal convolution, ReLU, pooling over time, and projection to the hidden size.

        a_t = relu(W [x_{t−k+1}; …; x_t] + b)     z_t = [a_t, first half; max_{s ≤ t} a_s, second half]     P z_t + d

    The CNN of the study pools max_s a_s over a whole text. A causal model may only read the text so far, and has to
    know the order of the last words: hence the running maximum for one half of the filters, and no pooling for the
    other. A filter is a row of W, so it can be measured, gated and protected like a neuron.
    """

    def __init__(self, config: CNNConfig) -> None:
        super().__init__(config)
        self.kernel_size, self.pooling = config.kernel_size, config.pooling
        self.convolution = nn.Linear(config.kernel_size * config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def read(self, x: Tensor, document: Tensor, before: State | None) -> tuple[Tensor, State]:
        """Compute the output of the layer, as in the base class.

        The state holds the last k − 1 inputs, whether each belongs to the last document, and the pooled values.
        """
        reach, tokens = self.kernel_size - 1, x.shape[1]
        if before is None:
            earlier, of_it = x.new_zeros(len(x), reach, x.shape[2]), document.new_full((len(x), reach), PADDING)
            pool = None
        else:
            earlier, same, pool = before
            of_it = torch.where(same, document[:, :1], PADDING)
        x, of_it = torch.cat([earlier, x], 1), torch.cat([of_it, document], 1)
        window = [
            x[:, at : at + tokens] * (of_it[:, at : at + tokens] == document)[:, :, None] for at in range(reach + 1)
        ]
        near, far = self.convolution(torch.cat(window, 2)).relu().tensor_split(2, 2)
        far, pool = pooled(far, document, self.pooling, pool)
        state = x[:, tokens:], of_it[:, tokens:] == document[:, -1:], pool
        return self.output(torch.cat([near, far], 2)), state


class CNNPreTrained(NoAttentionPreTrained):
    """Base class of the CNN models."""

    config_class = CNNConfig
    layer = CNNLayer
    _no_split_modules = ["CNNLayer"]  # noqa: RUF012  as transformers has it


class CNNModel(CNNPreTrained, NoAttentionModel):
    """The CNN without a head."""


class CNNForCausalLM(CNNPreTrained, NoAttentionForCausalLM):
    """A CNN language model; importing this module registers it with ``AutoModelForCausalLM``."""

    body = CNNModel


class CNNForSequenceClassification(CNNPreTrained, NoAttentionForSequenceClassification):
    """A CNN text classifier."""

    body = CNNModel


make_known(CNNConfig, CNNModel, CNNForCausalLM, CNNForSequenceClassification, "convolution", "output")
