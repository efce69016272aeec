"""A small LSTM as a base model."""

from __future__ import annotations

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from everlearn_bench.bases.without_attention import (
    NoAttentionConfig,
    NoAttentionForCausalLM,
    NoAttentionForSequenceClassification,
    NoAttentionLayer,
    NoAttentionModel,
    NoAttentionPreTrained,
    State,
    make_known,
)


@strict
class LSTMConfig(NoAttentionConfig):
    """Configuration of an LSTM; a classifier reads its last state, as in the study."""

    model_type: ClassVar[str] = "everlearn-lstm"


class InputGates(nn.Linear):
    """The projection of the inputs to the gates; a separate class because transformers initialises modules by class."""


class LSTMLayer(NoAttentionLayer):
    """An LSTM with a recurrent projection (arXiv 1402.1128, eqs. 1-7 without peepholes; PyTorch's ``proj_size``).

        i, f, g, o = W x_t + U r_{t−1} + b        c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
        m_t = σ(o) ⊙ tanh(c_t)                     r_t = P m_t

    r has the hidden size of the model, and the output of a cell reaches other cells through P only: so a cell is a
    neuron with its own rows of W, U and b, and can be measured, gated and protected as one. All projections are linear
    layers that the methods find, unlike in PyTorch's fused LSTM; each time step calls U and P.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        self.cells = config.intermediate_size
        self.input_gates = InputGates(config.hidden_size, 4 * self.cells)
        self.state_gates = nn.Linear(config.hidden_size, 4 * self.cells, bias=False)
        self.projection = nn.Linear(self.cells, config.hidden_size, bias=False)

    def read(self, x: Tensor, document: Tensor, before: State | None) -> tuple[Tensor, State]:
        """Compute the output of the layer, as in the base class; the state is r [B, H] and c [B, cells]."""
        if before is None:
            before = x.new_zeros(len(x), x.shape[2]), x.new_zeros(len(x), self.cells)
        recurrent, cell = before
        goes_on = document[:, 1:] == document[:, :-1]
        inputs = self.input_gates(x)
        added = []
        for t in range(x.shape[1]):
            if t:
                same = goes_on[:, t - 1, None]
                recurrent, cell = recurrent * same, cell * same
            enter, keep, value, leave = (inputs[:, t] + self.state_gates(recurrent)).chunk(4, 1)
            cell = keep.sigmoid() * cell + enter.sigmoid() * value.tanh()
            recurrent = self.projection(leave.sigmoid() * cell.tanh())
            added.append(recurrent)
        return torch.stack(added, 1), (recurrent, cell)


class LSTMPreTrained(NoAttentionPreTrained):
    """Base class of the LSTM models."""

    config_class = LSTMConfig
    layer = LSTMLayer
    _no_split_modules = ["LSTMLayer"]  # noqa: RUF012  as transformers has it

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, InputGates) and not getattr(module.bias, "_is_hf_initialized", False):
            init.ones_(module.bias.chunk(4)[1])  # forget gates start open


class LSTMModel(LSTMPreTrained, NoAttentionModel):
    """The LSTM without a head."""


class LSTMForCausalLM(LSTMPreTrained, NoAttentionForCausalLM):
    """An LSTM language model; importing this module registers it with ``AutoModelForCausalLM``."""

    body = LSTMModel


class LSTMForSequenceClassification(LSTMPreTrained, NoAttentionForSequenceClassification):
    """An LSTM text classifier."""

    body = LSTMModel


make_known(
    *(LSTMConfig, LSTMModel, LSTMForCausalLM, LSTMForSequenceClassification),
    *("input_gates", "state_gates", "projection"),
    recurrent=True,
)
