"""Published variants of KD."""

from __future__ import annotations

from everlearn.methods.base import Variant

_DAS = "https://arxiv.org/abs/2302.03241"
_LIFELONG = "https://arxiv.org/abs/2110.08534"

VARIANTS = (
    Variant(
        name="kd_released",
        title="KD (released)",
        description="As in the DAS authors' code: softmax over the positions of a text, teacher with dropout.",
        options={"softmax": "sequence", "teacher_dropout": True},
        paper=_DAS,
    ),
    Variant(
        name="kd_logits",
        title="Logit distillation",
        description="Predictions at the labels: T² KL(teacher ‖ student). With `top_k` no teacher is in memory.",
        options={"compare": "logits", "distance": "forward_kl"},
        paper=_LIFELONG,
    ),
    Variant(
        name="kd_representations",
        title="Representation distillation",
        description="The squared distance of the last hidden states, token by token.",
        options={"distance": "squared"},
        paper=_LIFELONG,
    ),
    Variant(
        name="kd_contrast",
        title="Contrastive distillation",
        description="The similarities between the texts of a batch, with SimCSE in addition.",
        options={"compare": "batch", "distance": "forward_kl", "temperature": 0.05, "simcse": 1.0},
        paper=_LIFELONG,
    ),
    Variant(
        name="kd_seed",
        title="SEED distillation",
        description="The similarities of each text to a queue of texts, represented by the teacher.",
        options={"compare": "queue", "distance": "forward_kl", "temperature": 0.05},
        paper=_LIFELONG,
    ),
)
"""The variant of the DAS authors' code, and the four distillations of *Lifelong Pretraining*."""
