"""SDFT: learn answers from the model itself, which sees a demonstration where it teaches and none where it learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.data.packing import IGNORED, AnswerPacker
from everlearn.data.tokenize import Encoder
from everlearn.errors import MethodError
from everlearn.methods.base import FORWARD, Batch, Cost, Method, MethodConfig, Needs, Setting, Stage, View, register
from everlearn.methods.distillation.comparisons import DISTANCES
from everlearn.methods.distillation.demonstrations import HERE, Demonstration, Demonstrations, answers_at
from everlearn.methods.distillation.teacher import cost_of_teacher, distance_from, rounding_like, teacher_of
from everlearn.methods.state import Memory, MemoryReader, Tensors
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import IGNORE, Outputs
from everlearn.model.training_mode import evaluating
from everlearn.predictors.decoding import Ending, continuation, decode, left_padded
from everlearn.seeding import seed_for

ROUND = 8
"""Teacher rows are a multiple of so many tokens, to keep the number of shapes small."""


@register
class SDFT(Method):
    """Self-distillation fine-tuning (arXiv 2601.19897): on-policy distillation from the model with a demonstration.

    For a question x with the answer c of the data, the student generates its own answer y ~ π_θ(· | x) with its current
    weights. The teacher is the same model, which reads c in its context, and every token of y is learnt from it:

        L(θ) = Σ_t KL(π_θ(· | y_<t, x) ‖ π_φ(· | y_<t, x, c)) / |y|,    φ ← (1 − α) φ + α θ after each step,

    with the KL over the whole vocabulary, averaged over the answers of a row, then over rows; y is a constant of the
    gradient. This takes the place of the cross-entropy of c, which is still logged as the loss. A row counts by the
    share of its labels that belong to such answers, and all other labels are learnt as usual, so that a domain may
    hold plain text as well.

    Of a chat of several turns the last complete answer is a demonstration, and the turns before it are its context.
    """

    name = "sdft"
    title = "SDFT"
    summary = "distils from a copy of the model that has a demonstration in its context"
    paper = "https://arxiv.org/abs/2601.19897"
    needs = Needs(predictions=True, writes=True, objectives=frozenset({"causal", "text-to-text"}))

    class Config(MethodConfig):
        """Which teacher, how long the answers, and how the demonstration is shown."""

        rate: float = Field(0.01, ge=0, le=1)
        """α: how far the teacher's weights move towards the student's after each step. 0 keeps those at the beginning
        of the domain, 1 takes the student's."""
        max_new_tokens: int = Field(256, ge=1)
        """Number of tokens after which an answer of the student is cut off; it must also fit into a row."""
        distance: Literal["reverse_kl", "forward_kl"] = "reverse_kl"
        """KL(student ‖ teacher), as in the paper, or KL(teacher ‖ student)."""
        prompt: str = (
            f"\n\nThis is an example for a response to the question:\n{HERE}\n\n"
            "Now answer with a response of your own, including the thinking process."
        )
        """What the teacher reads behind the question; `{demonstration}` is the answer of the data."""

        @field_validator("prompt")
        @classmethod
        def _shows_it_once(cls, text: str) -> str:
            if text.count(HERE) != 1:
                raise ValueError(f"write {HERE} once, where the answer of the data is to stand")
            return text

    config: Config
    _weights = Tensors("teacher/", at="teacher_weights")
    """Inside a domain the weights of the teacher, if they move."""

    def __init__(self, config: MethodConfig | None = None, **options: object) -> None:
        super().__init__(config, **options)
        self._teacher: nn.Module | None = None
        self._loaded: dict[str, Tensor] = {}
        self._shares = Tensor()
        self._replaced: Tensor | None = None
        self._read = self._learnt = 0

    def check(self, setting: Setting) -> None:
        """Require a decoder that answers by itself, in rows as a run packs them."""
        super().check(setting)
        if kind_of(setting.model) != "decoder":
            raise MethodError(
                f"Method '{self.label}' continues chats and prompts, which takes a decoder (`model.path`)."
            )
        if not setting.block_size:
            raise MethodError(
                f"Method '{self.label}' finds questions and answers in rows as a run packs them. Use it with "
                "`everlearn run`."
            )
        rounded = setting.rounded or not all(each.is_floating_point() for each in setting.model.parameters())
        if self.config.rate and rounded:
            raise MethodError(
                f"Method '{self.label}', option 'rate': {self.config.rate:g} moves the teacher's weights, and those of "
                "a quantised model cannot. Set `rate: 0`."
            )
        for other in setting.methods:
            if not other.tested_as_saved:
                raise MethodError(
                    f"Method '{self.label}' has the plain model teach, but with method '{other.label}' a text is read "
                    "with more than that. Remove one of them."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: a copy of the model, its pass, and writing and learning the student's own answers."""
        return Cost(memory_bytes=cost_of_teacher(model).memory_bytes, passes_per_step=1 + 2 * FORWARD)

    @property
    def teacher_weights(self) -> dict[str, Tensor]:
        """Weights of a teacher that moves, by name."""
        if self._teacher is None or not self.config.rate:
            return self._loaded
        return dict(self._teacher.named_parameters())

    @teacher_weights.setter
    def teacher_weights(self, value: dict[str, Tensor]) -> None:
        self._loaded = value

    def begin_domain(self, stage: Stage) -> None:
        """Create the teacher: a copy of the model, or with the weights of a checkpoint of this domain."""
        self._encoder = Encoder(stage.tokenizer, "decoder")
        self._demonstrations = Demonstrations(self._encoder, self.config.prompt)
        self._read, self._learnt, teacher = 0, 0, teacher_of(stage)
        if self._loaded:
            reader, parameters = MemoryReader(Memory(), self.label), dict(teacher.named_parameters())
            reader.same_names(self._loaded, parameters, "teacher/")
            for name, parameter in parameters.items():
                if (stored := self._loaded[name]).shape != parameter.shape:
                    rule = f"must have shape {tuple(parameter.shape)} (got {tuple(stored.shape)})"
                    reader.refuse(f"teacher/{name}", rule)
                parameter.data.copy_(stored)
        self._teacher, self._loaded = teacher, {}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the student's own answers to the questions of the batch, with a loss against the teacher."""
        assert self._teacher is not None  # begin_domain made it
        host = stage.host or {name: value.cpu() for name, value in batch.items()}
        demos = self._demonstrations.of(host)
        size = batch["input_ids"].shape[1]
        rooms = [self._room(each, size, stage) for each in demos]
        demos = [each for each, room in zip(demos, rooms, strict=True) if room > 0]
        self._read, self._learnt = self._read + len(batch["labels"]), self._learnt + len(demos)
        self._replaced = None
        if not demos:
            return []
        replaced = answers_at(host, demos)
        self._replaced = replaced.to(batch["labels"].device)
        answers = self._answers(stage, demos, [room for room in rooms if room > 0])
        longest = max(len(each.shown) + len(answer) for each, answer in zip(demos, answers, strict=True))
        device, objective = batch["labels"].device, stage.objective
        student, teacher = (
            {name: value.to(device) for name, value in objective.collate(blocks, range(len(blocks))).items()}
            for blocks in (
                self._rows([each.context for each in demos], answers, size, stage),
                self._rows([each.shown for each in demos], answers, -(-longest // ROUND) * ROUND, stage),
            )
        )
        at = student["labels"] != IGNORE
        with torch.no_grad(), rounding_like(stage.model):
            read = objective.label_features(self._teacher, teacher)[(teacher["labels"] != IGNORE).flatten()]
        features = read.new_zeros(at.numel(), read.shape[1])
        features[at.flatten()] = read  # both hold the same labels in the same order
        self._shares = torch.zeros(at.shape, device=device)
        of_row = (replaced.sum(1) / (host["labels"] != IGNORE).sum(1).clamp(min=1)).tolist()
        in_row, lengths = Counter(each.row for each in demos), [len(answer) for answer in answers]
        each_token = [
            of_row[each.row] / (len(of_row) * in_row[each.row] * length)
            for each, length in zip(demos, lengths, strict=True)
        ]
        self._shares[at] = torch.tensor(np.repeat(each_token, lengths)).to(self._shares)
        loss = distance_from(self._teacher, features, 1.0, DISTANCES[self.config.distance])
        return [View(objective.inputs(student), None, student["labels"], student.get("positions"), loss)]

    def _room(self, each: Demonstration, size: int, stage: Stage) -> int:
        """Return the largest number of tokens of an answer that fits a row and the model, its end included."""
        assert self._teacher is not None
        longest = stage.objective.longest_input(self._teacher)
        free = size - len(each.context)
        return free if longest is None else min(free, longest // ROUND * ROUND - len(each.shown))

    def _answers(self, stage: Stage, demos: Sequence[Demonstration], rooms: Sequence[int]) -> list[list[int]]:
        """Sample the student's answers at temperature 1; each depends on its question and its place in the stream."""
        most, width = min(self.config.max_new_tokens, max(rooms)), max(len(each.context) for each in demos)
        longest = stage.objective.longest_input(stage.model)
        if longest is not None and width + most > longest and len(demos) > 1:  # rows go on behind their own end
            return [self._answers(stage, [each], [room])[0] for each, room in zip(demos, rooms, strict=True)]
        seeds = [seed_for(stage.seed, self.name, stage.index, stage.row + each.row, each.start) for each in demos]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        draws = torch.stack([torch.rand(most, generator=each, dtype=torch.float64) for each in generators])
        device = next(stage.model.parameters()).device
        inputs = left_padded([each.context for each in demos], self._encoder.pad, device)
        ends = {each.end for each in demos}
        with torch.no_grad(), evaluating(stage.model):
            texts = decode(continuation(stage.model, inputs), Ending(most, tuple(ends), temperature=1, draws=draws))
        # An answer that is cut off has no end, so that no wrong end is learnt.
        written = ([*text, each.end] if len(text) < most else text for text, each in zip(texts, demos, strict=True))
        return [answer[:room] for answer, room in zip(written, rooms, strict=True)]

    def _rows(
        self, contexts: Sequence[list[int]], answers: Sequence[list[int]], size: int, stage: Stage
    ) -> Sequence[Block]:
        """Return packed rows of contexts and answers with labels at the answers."""
        packer, rows = AnswerPacker(self._encoder, size, None), list[Block]()
        for context, answer in zip(contexts, answers, strict=True):
            rows += packer.feed_examples([([*context, *answer], [*[IGNORED] * len(context), *answer])])
            if stage.objective.why_shared:  # documents of a row would see each other
                rows += packer.finish()
        return rows + packer.finish()

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the mean distance over tokens, answers and rows; it does not depend on how a batch is divided."""
        losses = outputs.view_losses[0] if outputs.view_losses else None
        return {} if losses is None else {"divergence": (losses * self._shares).sum()}

    def trained_labels(self, stage: Stage, batch: Batch) -> Tensor | None:
        """Return which labels belong to no demonstration, so are trained as usual."""
        return None if self._replaced is None else ~self._replaced

    @torch.no_grad()
    def after_step(self, stage: Stage) -> None:
        """Move the teacher towards the student."""
        if self.config.rate and self._teacher is not None:
            with stage.as_plain():
                student = dict(stage.model.named_parameters())
                for name, parameter in self._teacher.named_parameters():
                    parameter.lerp_(student[name].to(parameter), self.config.rate)

    def end_domain(self, stage: Stage) -> None:
        """Drop the teacher; the next domain begins with another one."""
        if self._read and not self._learnt:
            stage.notes.append(
                f"Method '{self.label}' found no complete answer to a question in '{stage.domain}', which was learnt "
                "as without it. Give the domain chats (`messages_column`) or prompts with answers (`target_column`)."
            )
        self._teacher, self._replaced = None, None
