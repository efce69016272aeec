"""A small LSTM as a base model."""

from __future__ import annotations

from typing import ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init

from everlearn.model.without_attention import (
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
    """Sizes of an LSTM; a classifier reads its last state, as the study's does."""

    model_type: ClassVar[str] = "everlearn-lstm"


class InputGates(nn.Linear):
    """What a token says to the gates; a class of its own because transformers initialises modules by their class."""


class LSTMLayer(NoAttentionLayer):
    """An LSTM with a recurrent projection (arXiv 1402.1128, eqs. 1-7 without peepholes; PyTorch's ``proj_size``).

        i, f, g, o = W x_t + U r_{t−1} + b        c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
        m_t = σ(o) ⊙ tanh(c_t)                     r_t = P m_t

    r is as wide as the model, and all that a cell says to others goes through P: a cell is a neuron, whose rows of W, U
    and b are its own, and can be measured, gated and protected as one. All are linear layers that the methods find,
    which PyTorch's fused LSTM has not; a step in time is a call of U and P.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        self.cells = config.intermediate_size
        self.input_gates = InputGates(config.hidden_size, 4 * self.cells)
        self.state_gates = nn.Linear(config.hidden_size, 4 * self.cells, bias=False)
        self.projection = nn.Linear(self.cells, config.hidden_size, bias=False)

    def read(self, x: Tensor, document: Tensor, before: State | None) -> tuple[Tensor, State]:
        """As the base class has it; the state is r [B, H] and c [B, cells]."""
        if before is None:
            before = x.new_zeros(len(x), x.shape[2]), x.new_zeros(len(x), self.cells)
        said, cell = before
        goes_on = document[:, 1:] == document[:, :-1]
        given = self.input_gates(x)
        added = []
        for t in range(x.shape[1]):
            if t:
                same = goes_on[:, t - 1, None]
                said, cell = said * same, cell * same
            enter, keep, value, leave = (given[:, t] + self.state_gates(said)).chunk(4, 1)
            cell = keep.sigmoid() * cell + enter.sigmoid() * value.tanh()
            said = self.projection(leave.sigmoid() * cell.tanh())
            added.append(said)
        return torch.stack(added, 1), (said, cell)


class LSTMPreTrained(NoAttentionPreTrained):
    """What belongs to an LSTM."""

    config_class = LSTMConfig
    layer = LSTMLayer
    _no_split_modules = ["LSTMLayer"]  # noqa: RUF012  as transformers has it

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, InputGates) and not getattr(module.bias, "_is_hf_initialized", False):
            init.ones_(module.bias.chunk(4)[1])  # cells begin by keeping what they hold


class LSTMModel(LSTMPreTrained, NoAttentionModel):
    """The LSTM without a head."""


class LSTMForCausalLM(LSTMPreTrained, NoAttentionForCausalLM):
    """An LSTM language model; ``AutoModelForCausalLM`` knows it once this is imported."""

    body = LSTMModel


class LSTMForSequenceClassification(LSTMPreTrained, NoAttentionForSequenceClassification):
    """An LSTM that classifies texts."""

    body = LSTMModel


make_known(LSTMConfig, LSTMModel, LSTMForCausalLM, LSTMForSequenceClassification)
