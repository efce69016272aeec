"""The registry of known architectures: the paths of their projections and of the vocabulary head.

An entry lists module paths only. Sizes, biases, grouped-query attention and gated feed-forward layers are read from the
modules themselves by :mod:`everlearn.model.anatomy`. A type without an entry is described from its modules
(:mod:`everlearn.model.finding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everlearn.plugins import Registry

Kind = Literal["encoder", "decoder", "encoder-decoder"]
Tokens = Literal["input", "answer"]


@dataclass(frozen=True)
class Attention:
    """Paths of one attention block's projections, relative to its layer.

    Attributes:
        inputs: query, key and value; or one fused projection.
        output: the projection of the concatenated context vectors of the heads.
        name: distinguishes the attention blocks of a layer in the names of sites.
        interleaved: whether the outputs of a fused projection are ordered head by head (query, key, value of the first
            head, then of the second …) instead of all queries, all keys, all values.
        crosses: whether keys and values come from another stack (cross-attention).
    """

    inputs: tuple[str, ...]
    output: str
    name: str = "attention"
    interleaved: bool = False
    crosses: bool = False


@dataclass(frozen=True)
class FeedForward:
    """Paths of the feed-forward projections, relative to their layer.

    Attributes:
        inputs: the widening projections: one, or gate and up, or a fused one. Paths that a configuration does not have
            are ignored (T5 has `wi`, or `wi_0` and `wi_1`).
        output: the projection back to the hidden size.
    """

    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Stack:
    """A list of layers.

    Attributes:
        layers: path of the list, relative to the base model (the model inside its language-model head).
        attentions: the attention blocks of one layer.
        feed_forward: the feed-forward block of one layer.
        name: prefix of the names of sites.
        tokens: the tokens that the stack reads: the input of the model, or the answer (in the decoder of an
            encoder-decoder).
        recurrent: whether a layer calls its projections once per token, [B, features], instead of once for all tokens,
            [B, S, features].
        more: alternative feed-forward blocks of some layers (dense layers among layers of experts).
        others: linear layers besides attention and feed-forward (state-space mixers, gated convolutions, low ranks).
        alike: whether every layer has all of these blocks; otherwise each layer has those whose modules exist in it.
    """

    layers: str
    attentions: tuple[Attention, ...]
    feed_forward: FeedForward | None
    name: str = "layers"
    tokens: Tokens = "input"
    recurrent: bool = False
    more: tuple[FeedForward, ...] = ()
    others: tuple[str, ...] = ()
    alike: bool = True


@dataclass(frozen=True)
class Architecture:
    """The structure of an architecture.

    Attributes:
        kind: encoder, decoder or encoder-decoder.
        head: path of the first module of the vocabulary head, which takes the last hidden state, relative to the
            language model.
        stacks: its stacks of layers, in the order in which they run.
    """

    kind: Kind
    head: str
    stacks: tuple[Stack, ...]


_TABLE: Registry[Architecture] = Registry("architectures")


def register_architecture(model_type: str, architecture: Architecture) -> None:
    """Register an architecture under its ``config.model_type``, replacing any earlier entry.

    See docs/add-an-architecture.md for an example and the test that a new entry must pass.
    """
    _TABLE.add(model_type, architecture, replace=True)


def architectures() -> dict[str, Architecture]:
    """Return all registered architectures by ``config.model_type``."""
    return dict(_TABLE)


def registered(model_type: str) -> Architecture | None:
    """Return the entry for a ``config.model_type``, or None."""
    if model_type not in _TABLE:
        return None
    return _TABLE[model_type]


def _bert(head: str) -> Architecture:
    attention = Attention(
        ("attention.self.query", "attention.self.key", "attention.self.value"), "attention.output.dense"
    )
    return Architecture(
        "encoder", head, (Stack("encoder.layer", (attention,), FeedForward(("intermediate.dense",), "output.dense")),)
    )


def _llama() -> Architecture:
    attention = Attention(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj")
    feed_forward = FeedForward(("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj")
    return Architecture("decoder", "lm_head", (Stack("layers", (attention,), feed_forward),))


def _t5() -> Architecture:
    def attention(index: int, module: str, name: str) -> Attention:
        at = f"layer.{index}.{module}"
        return Attention((f"{at}.q", f"{at}.k", f"{at}.v"), f"{at}.o", name, crosses=module == "EncDecAttention")

    def feed_forward(index: int) -> FeedForward:
        at = f"layer.{index}.DenseReluDense"
        return FeedForward((f"{at}.wi", f"{at}.wi_0", f"{at}.wi_1"), f"{at}.wo")

    own = attention(0, "SelfAttention", "self_attention")
    cross = attention(1, "EncDecAttention", "cross_attention")
    encoder = Stack("encoder.block", (own,), feed_forward(1), "encoder")
    decoder = Stack("decoder.block", (own, cross), feed_forward(2), "decoder", "answer")
    return Architecture("encoder-decoder", "lm_head", (encoder, decoder))


def _bart() -> Architecture:
    def attention(module: str, name: str) -> Attention:
        inputs = (f"{module}.q_proj", f"{module}.k_proj", f"{module}.v_proj")
        return Attention(inputs, f"{module}.out_proj", name, crosses=module == "encoder_attn")

    own, cross = attention("self_attn", "self_attention"), attention("encoder_attn", "cross_attention")
    feed_forward = FeedForward(("fc1",), "fc2")
    encoder = Stack("encoder.layers", (own,), feed_forward, "encoder")
    decoder = Stack("decoder.layers", (own, cross), feed_forward, "decoder", "answer")
    return Architecture("encoder-decoder", "lm_head", (encoder, decoder))


for _name, _entry in {
    "bert": _bert("cls"),
    "roberta": _bert("lm_head"),
    "xlm-roberta": _bert("lm_head"),
    "camembert": _bert("lm_head"),
    "electra": _bert("generator_predictions"),
    "distilbert": Architecture(
        "encoder",
        "vocab_transform",
        (
            Stack(
                "transformer.layer",
                (Attention(("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin"),),
                FeedForward(("ffn.lin1",), "ffn.lin2"),
            ),
        ),
    ),
    "modernbert": Architecture(
        "encoder",
        "head",
        (Stack("layers", (Attention(("attn.Wqkv",), "attn.Wo"),), FeedForward(("mlp.Wi",), "mlp.Wo")),),
    ),
    "gpt2": Architecture(
        "decoder",
        "lm_head",
        (Stack("h", (Attention(("attn.c_attn",), "attn.c_proj"),), FeedForward(("mlp.c_fc",), "mlp.c_proj")),),
    ),
    "gpt_neox": Architecture(
        "decoder",
        "lm_head",
        (
            Stack(
                "layers",
                (Attention(("attention.query_key_value",), "attention.dense", interleaved=True),),
                FeedForward(("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h"),
            ),
        ),
    ),
    **{name: _llama() for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")},
    **{name: _t5() for name in ("t5", "mt5")},
    **{name: _bart() for name in ("bart", "mbart")},
}.items():
    register_architecture(_name, _entry)
