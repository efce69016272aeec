"""KD: keep the outputs of the model close to those of the model that the domain started from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance import proxy_kl_per_sample
from everlearn.importance.proxy import Softmax, has_dropout
from everlearn.methods.base import FORWARD, Cost, MethodConfig, Needs, Setting, Variant, View, register
from everlearn.methods.distillation.cached import CachedAnswers
from everlearn.methods.distillation.comparisons import (
    DISTANCES,
    Compared,
    Divergence,
    TextQueue,
    against_a_queue,
    among_the_batch,
    over_texts,
    softened,
    texts_of,
)
from everlearn.methods.distillation.teacher import (
    WithTeacher,
    answers_beside,
    cost_of_teacher,
    rounding_like,
    teacher_of,
)
from everlearn.methods.masks.contrast import contrast
from everlearn.methods.stage import Batch, Stage
from everlearn.methods.state import OneTensor
from everlearn.model.anatomy import kind_of
from everlearn.model.content import counted
from everlearn.model.objectives import IGNORE, Outputs, row_means
from everlearn.model.vocabulary_head import config_of
from everlearn.ranges import Around, ranges

PER_TOKEN = ("representations", "logits")
"""Comparisons token by token; the others compare whole texts."""
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


@register
class KD(WithTeacher):
    """Knowledge distillation (arXiv 1503.02531) from the model after the previous domain, or from the base model.

    L = L_t + w · D(student, teacher), where `compare` sets what is compared and `distance` how:

    - ``representations``: the last hidden states of unmasked text, each made a distribution by a softmax over the
      features, or (``squared``) ‖h − h*‖²; summed over features, averaged over the tokens of a text, then over texts.
    - ``logits``: the predictions at the labels of the batch: T² KL of softmax(logits / T), summed over the vocabulary,
      averaged over the labels of a row, then over rows. T² because the gradient of the softened divergence scales with
      1/T².
    - ``batch``: for each text the distribution softmax(cos(z, z_j) / T) over the other texts j of the micro-batch, over
      all processes, with z the mean of the last hidden states of a text; averaged over texts.
    - ``queue``: the same over the teacher's z of the last K texts and of the text itself (SEED, arXiv 2101.04731).

    The four are the distillations of *Lifelong Pretraining* (arXiv 2110.08534, §3.3), `kd_logits`,
    `kd_representations`, `kd_contrast` and `kd_seed`. The defaults are the baseline of arXiv 2302.03241, §4.1; as in
    its released code, the KL is that of the student from the teacher.

    The teacher is a frozen copy made when a domain begins; in the first domain it is the base model. It is not part of
    the trained model, of its checkpoints or of the memory: a resumed domain begins with the same weights. Under DDP
    every process holds a complete one, under FSDP2 a part of its layers. With `top_k` there is none: its predictions
    are stored in a file (:class:`~everlearn.methods.distillation.cached.CachedAnswers`).
    """

    name = "kd"
    title = "KD"
    summary = "distils from the previous model"
    paper = "https://arxiv.org/abs/1503.02531"
    needs = Needs(predictions=True)
    identity: ClassVar[dict[str, Any] | None] = {"weight": 0}
    variants = VARIANTS

    class Config(MethodConfig):
        """Which outputs of student and teacher are compared, and how."""

        weight: float = Field(1.0, ge=0, allow_inf_nan=False)
        """w; 0 is plain training, without a teacher."""
        compare: Compared = "representations"
        """What is compared: last hidden states, logits at the labels, or the similarity of whole texts to the others of
        the batch or of a queue."""
        distance: Divergence = "reverse_kl"
        """KL(student ‖ teacher), KL(teacher ‖ student) (`forward_kl`, as in Hinton's paper), or, for representations,
        the squared distance."""
        temperature: float = Field(1.0, gt=0, allow_inf_nan=False)
        """T of both softmaxes. Divergences over tokens and features are multiplied by T², those over texts are not, as
        T there converts cosines to scores."""
        softmax: Softmax = "features"
        """The axis of a distribution of representations: the features of a token (averaged over tokens), or the tokens
        of a text, one distribution per feature (summed over features, as in the DAS authors' code)."""
        teacher_dropout: bool = False
        """Run the teacher with dropout too, as in the DAS authors' code."""
        top_k: int | None = Field(None, ge=1)
        """k: before the domain is learnt, the k most likely tokens of the model at each label are written to a file
        with their probabilities and that of all others combined, so that no teacher is in memory during training. Only
        for logits of causal and text-to-text models, as masked text gets new masks in each pass. 50 to 100 are usual;
        by default the teacher is held."""
        queue: int = Field(4096, ge=1)
        """K, the number of texts in the queue; SEED has 65,536 images."""
        simcse: float = Field(0.0, ge=0, allow_inf_nan=False)
        """Weight of SimCSE (arXiv 2104.08821), in addition to a comparison of texts: two passes over a text with
        different dropout are a positive pair in the batch, with the same T."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            if self.compare != "queue":
                yield ("queue",), f"with `compare: {self.compare}`"
            if self.distance == "squared":
                yield ("temperature",), "with `distance: squared`"

        @model_validator(mode="after")
        def _they_go_together(self) -> Self:
            if self.distance == "squared" and self.compare != "representations":
                raise ValueError(
                    f"option 'distance': 'squared' is for representations, not '{self.compare}'. Set `forward_kl` or "
                    "`reverse_kl`"
                )
            if self.softmax == "sequence" and (self.compare != "representations" or self.distance == "squared"):
                raise ValueError(
                    "option 'softmax': 'sequence' is for divergences of representations. Set `softmax: features`, or "
                    "`compare: representations` and a divergence"
                )
            if self.top_k is not None and (self.compare != "logits" or self.teacher_dropout):
                raise ValueError(
                    f"option 'top_k': {self.top_k} predicted tokens can be stored only of logits without dropout. Set "
                    "`compare: logits` and `teacher_dropout: false`, or `top_k: null`"
                )
            if self.simcse and self.compare in PER_TOKEN:
                raise ValueError(
                    f"option 'simcse': {self.simcse} contrasts texts, but `compare: {self.compare}` compares tokens. "
                    "Set `compare: batch` or `queue`, or `simcse: 0`"
                )
            return self

    search = ranges(weight=Around(10))
    config: Config
    _texts = OneTensor("queue", dims=2, at="_queue.texts")
    """The queue, while a domain is learnt."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._cached: CachedAnswers | None = None
        self._queue = TextQueue(self.config.queue)
        self._alone = 0
        stores = self.config.weight > 0 and self.config.top_k is not None
        self.needs = replace(type(self).needs, importance_pass=stores)
        self.reads_shards = not stores  # the stored predictions are those of a complete model

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.config.weight and self.config.top_k is not None and kind_of(setting.model) == "encoder":
            raise MethodError(
                f"Method '{self.label}', option 'top_k': predictions cannot be stored before training, because masked "
                "text has other labels in each pass. Set `top_k: null`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: a copy of the model and its forward pass.

        With `top_k` it is one pass over each distinct row, on each process. A masked model also runs the student on
        unmasked text, and once more for SimCSE. A queue is held twice: its texts, and those that will enter it.
        """
        config = self.config
        if not config.weight:
            return Cost()
        if config.top_k is not None:
            return Cost(passes_per_row=FORWARD)
        teacher, queue = cost_of_teacher(model), 0
        if config.compare == "queue":
            queue = 8 * config.queue * config_of(model).get_text_config().hidden_size
        unmasked = kind_of(model) == "encoder" and config.compare != "logits"
        return replace(
            teacher,
            memory_bytes=teacher.memory_bytes + queue,
            whole_bytes=teacher.undivided_bytes + queue,
            passes_per_step=teacher.passes_per_step + unmasked + (config.simcse > 0),
        )

    def begin_domain(self, stage: Stage) -> None:
        """Create the teacher: a copy of the model at the beginning of the domain, or its stored predictions."""
        if self.config.weight and self.config.top_k is not None:
            self._cached = CachedAnswers(stage, self.config.top_k, self.config.temperature)
        elif self.config.weight:
            self._teacher = teacher_of(stage).train(self.config.teacher_dropout)
        if self.config.weight and self.config.simcse and not has_dropout(stage.model):
            stage.notes.append(
                f"Method '{self.label}', option 'simcse': the model has no dropout, so two passes over a text are "
                "equal and the loss only pushes texts apart. Give the model dropout (`model.config`), or set `simcse: "
                "0`."
            )

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the rows of the batch with a loss against the teacher; or the unmasked text.

        The unmasked text is left out if the batch is unmasked already, and added a second time for SimCSE.
        """
        config = self.config
        if not config.weight:
            return []
        if config.compare == "logits":
            of = softened(DISTANCES[config.distance], config.temperature)
            if self._cached is not None:
                return [self._cached.beside(batch, of, stage.host)]
            return [answers_beside(stage, self.teacher, batch, config.temperature, of)]
        text = _unmasked(stage, batch)
        return [View(text)] * (("plain_ids" in batch) + (config.simcse > 0))

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return w times the mean distance over the texts of the batch, and the loss of SimCSE."""
        config = self.config
        if not config.weight:
            return {}
        if config.compare == "logits":
            nats = outputs.view_losses[0]
            return {} if nats is None else {"divergence": config.weight * row_means(nats, batch["labels"])}
        student = outputs.views[0] if "plain_ids" in batch else outputs.hidden
        with torch.no_grad(), rounding_like(stage.model):
            teacher = stage.objective.hidden(self.teacher, _unmasked(stage, batch))
        mask = batch["labels"] != IGNORE if "decoder_input_ids" in batch else counted(batch)
        if config.compare == "representations":
            return {"divergence": config.weight * self._token_distance(student, teacher, mask)}
        now, before = texts_of(student, mask), texts_of(teacher, mask)
        losses = {"divergence": config.weight * self._text_distance(now, before)}
        if config.simcse:
            again = texts_of(outputs.views[-1], mask)
            losses["simcse"] = config.simcse * contrast(now, again, None, config.temperature)
        return losses

    def _token_distance(self, student: Tensor, teacher: Tensor, mask: Tensor | None) -> Tensor:
        """Return the distance between hidden states, [B, S, H]."""
        softmax, temperature = self.config.softmax, self.config.temperature
        if self.config.distance == "squared":
            return over_texts((student.float() - teacher.float()).square().sum(-1), mask)
        pair = (student, teacher) if self.config.distance == "reverse_kl" else (teacher, student)
        first, second = (states / temperature for states in pair)
        divergence = proxy_kl_per_sample(first, second, mask, softmax).mean() * temperature**2
        return divergence * student.shape[-1] if softmax == "sequence" else divergence

    def _text_distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the distance between the similarities of text vectors, [B, H]."""
        if self.config.compare == "queue":
            old, new = against_a_queue(student, teacher, self._queue.beside(teacher))
            self._queue.add(teacher)
        else:
            old, new = among_the_batch(student, teacher)
        if not old.shape[1]:  # a single text has no other to compare with
            self._alone += self.config.compare == "batch"
            return student.sum() * 0
        softened = [(cosines / self.config.temperature).log_softmax(-1) for cosines in (old, new)]
        return DISTANCES[self.config.distance](*softened).mean()

    def after_step(self, stage: Stage) -> None:
        self._queue.move()

    def end_domain(self, stage: Stage) -> None:
        """Drop the teacher, and the queue of its vectors."""
        if self._cached is not None and self._cached.hits < self._cached.looked_up:
            stage.notes.append(
                f"Method '{self.label}' had stored predictions for {self._cached.hits:,} of "
                f"{self._cached.looked_up:,} rows; the others (of other domains, or changed by another method) were "
                "trained without distillation."
            )
        if self._alone:
            stage.notes.append(
                f"Method '{self.label}' compares the texts of a micro-batch, and {self._alone:,} micro-batches had "
                "only one, so nothing was distilled: raise `train.per_device_train_batch_size`, or set `compare: "
                "queue`."
            )
        super().end_domain(stage)
        self._cached, self._alone = None, 0
        self._queue = TextQueue(self.config.queue)


def _unmasked(stage: Stage, batch: Batch) -> Batch:
    inputs = stage.objective.inputs(batch)
    return inputs | {"input_ids": batch["plain_ids"]} if "plain_ids" in batch else inputs
