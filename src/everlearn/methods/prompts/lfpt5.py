"""LFPT5: one prompt carried through the stream, trained to solve its domains and to write examples of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.data.tokenize import Encoder
from everlearn.errors import MethodError
from everlearn.evaluation.decoding import Ending, continuation, decode
from everlearn.methods.base import (
    FORWARD,
    Batch,
    Cost,
    Memory,
    Method,
    MethodConfig,
    Needs,
    Reading,
    Setting,
    Stage,
    register,
)
from everlearn.methods.engine.attachment import attached, detach, freeze_base
from everlearn.methods.prompts.own_examples import WrittenPairs, WrittenTexts
from everlearn.methods.prompts.soft_prompt import (
    SoftPrompt,
    at_rate,
    check_memory,
    check_prompt,
    check_stage_length,
    word_embeddings,
)
from everlearn.model.anatomy import kind_of
from everlearn.model.modes import evaluating
from everlearn.model.objectives import IGNORE
from everlearn.seeding import seed_for, seeded

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs

PROMPT = "prompt"
FREQUENT = 5000
"""Vocabularies are ordered by frequency, more or less: the first so many words are frequent ones."""
DRAWS = 4
"""Rows that an encoder-decoder writes at most for each example wanted; those without a separator are thrown away."""


@register
class LFPT5(Method):
    """LFPT5 (arXiv 2110.07298): lifelong learning by tuning one prompt that also generates examples of earlier domains.

    The model is frozen; n vectors P are trained through the whole stream, read behind the text by an encoder and before
    it by a decoder. Before domain t > 1 the model, with P as it is, writes pseudo-samples of each earlier domain: an
    encoder-decoder is asked for a domain and answers "prompt, separator, answer". While t is learnt

        L = L_task + lm · L_lm + pseudo · (L_task + lm · L_lm)(x̃) + divergence · Σ KL(p_before(·|x̃) ‖ p(·|x̃))

    with L_lm the loss of writing the batch's own examples when asked for the domain, x̃ some of the pseudo-samples, and
    the divergence summed over the tokens of an answer (mean over x̃); p_before is the model behind P as the domain found
    it. A decoder that learns text writes it without being asked and needs no L_lm. No domain id is needed at test.

    Pseudo-samples are in memory while a domain is learnt, in its checkpoints too, and gone when it ends. They are the
    model's own words, which may repeat what it was trained on.
    """

    name = "lfpt5"
    title = "LFPT5"
    paper = "https://arxiv.org/abs/2110.07298"
    kinds = ("isolation", "replay", "data-focused")
    needs = Needs(
        extra_parameters=True,
        importance_pass=True,
        objectives=frozenset({"causal", "text-to-text"}),
        peft=False,
        anatomy=True,
        memory="parameters",
    )
    freezes = True

    class Config(MethodConfig):
        """Options of LFPT5."""

        n_tokens: int = Field(300, ge=1)
        """n."""
        words: list[str] = Field(default_factory=list)
        """P begins with the mean embedding of each of these (the authors: names of task and labels), and goes on with
        random ones of the 5,000 first words of the vocabulary."""
        lm: float = Field(0.25, ge=0, allow_inf_nan=False)
        """Weight of writing examples; 0.25 in the authors' code."""
        pseudo: float = Field(1.0, ge=0, allow_inf_nan=False)
        """Weight of what is learnt from pseudo-samples; the authors have them among the training data."""
        divergence: float = Field(0.01, ge=0, allow_inf_nan=False)
        """Weight of the KL divergence; 0.01 in the authors' script, where the rest is weighted by 0.99."""
        samples: int = Field(16, ge=1)
        """Pseudo-samples of each earlier domain; the authors keep 2 of each class."""
        pseudo_batch: int = Field(4, ge=1)
        """Pseudo-samples in a step."""
        pseudo_tokens: int = Field(128, ge=2)
        """Tokens that are written at most for one."""
        top_k: int = Field(64, ge=1)
        """They are drawn among so many at each step."""
        repetition_penalty: float = Field(2.5, ge=1, allow_inf_nan=False)
        """Log-probabilities of tokens that were written already are multiplied by it."""
        question: str = "__gen__ {domain}"
        """What an encoder-decoder is asked for an example; "{domain}" is the domain's name."""
        separator: str = Field("__ans__", min_length=1)
        """Between prompt and answer in what it writes."""
        learning_rate: float | None = Field(0.5, gt=0, allow_inf_nan=False)
        """Of P on the run's schedule; 0.5 is the authors', with Adafactor (`train.optim`). null takes
        `train.learning_rate`."""
        weight_decay: float | None = Field(1e-5, ge=0, allow_inf_nan=False)
        """1e-5 is the authors'; null takes `train.weight_decay`."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the classification head: prompt and model stay."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, importance_pass=self._uses_pseudo)
        self._prompt: Tensor | None = None
        self._pseudo: dict[str, list[Block]] | None = None

    def check(self, setting: Setting) -> None:
        """The prompt must fit, and rows must be examples that a model can write one by one."""
        super().check(setting)
        if setting.objective.name == "text-to-text" and kind_of(setting.model) == "decoder":
            raise MethodError(
                f"Method '{self.label}' teaches a model to write single examples, but with `objective: text-to-text` a "
                "decoder's are packed into rows. Set `objective: causal`, or take an encoder-decoder (`model.path`)."
            )
        check_prompt(self, setting, self.config.n_tokens)

    def cost(self, model: nn.Module) -> Cost:
        """The prompt, and as it was; pseudo-samples of one domain in 12 bytes a token, while a later one is learnt.

        In a step an encoder-decoder's lessons, and what is learnt from pseudo-samples as one pass over the batch, which
        has more rows than they. Writing one counts as a forward pass over a row, however short it is."""
        config, numbers = self.config, self.config.n_tokens * word_embeddings(model).shape[1]
        pairs = kind_of(model) == "encoder-decoder"
        samples = config.samples if self._uses_pseudo else 0
        return Cost(
            memory_bytes=4 * numbers + 12 * samples * (config.pseudo_tokens + 8),
            disk_bytes=4 * numbers,
            parameters=numbers,
            passes_per_step=(pairs and config.lm > 0) + self._uses_pseudo + FORWARD * (config.divergence > 0),
            passes_per_earlier=math.ceil(FORWARD * samples * (DRAWS if pairs else 1)),
            at_most=pairs and self._uses_pseudo,
        )

    # -- a domain ----------------------------------------------------------------------------------------------

    def attach(self, stage: Stage) -> None:
        """The prompt as it is, before everything else frozen; with it the model writes its pseudo-samples."""
        check_stage_length(self, stage, self.config.n_tokens)
        start = self._new(stage) if self._prompt is None else self._prompt
        CarriedPrompt(start).attach(stage.model, self.name, freeze=True)
        if self._pseudo is None:
            self._pseudo = self._write(stage) if self._uses_pseudo else {}

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The prompt's learning rate and weight decay."""
        return at_rate(groups, self.config.learning_rate, self.config.weight_decay)

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """What is learnt beside the batch's own task; the passes' dropout is no part of the batch's."""
        with seeded(stage.seed, self.name, stage.index, stage.step, stage.row):
            losses = self._of_writing(stage, [(block, stage.domain) for block in _blocks(batch)], "lm", self.config.lm)
            drawn_rows = self._drawn(stage)
            if drawn_rows:
                weight = self.config.pseudo * self.config.lm
                losses |= self._of_writing(stage, drawn_rows, "pseudo_lm", weight)
                losses |= self._of_solving(stage, [block for block, _ in drawn_rows])
        return losses

    def detach(self, stage: Stage) -> None:
        """Keep the prompt, throw the pseudo-samples away, and leave the base model."""
        self._prompt = detach(stage.model, self.name).vectors.detach().cpu().clone()
        self._pseudo = None

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """The prompt, for text of any domain; fine-tuning may change it."""
        if self._prompt is None:
            return model
        check_memory(self, model, self._prompt)
        prompt = CarriedPrompt(self._prompt)
        if self.config.freeze_base_at_end_task:
            freeze_base(model)
            prompt.requires_grad_(False)
        prompt.attach(model, self.name)
        return model

    # -- losses ------------------------------------------------------------------------------------------------

    def _of_writing(
        self, stage: Stage, rows: Sequence[tuple[Block, str]], name: str, weight: float
    ) -> dict[str, Tensor]:
        """The mean loss of writing these examples when asked for their domains."""
        writer = self._writer(stage)
        lessons = [writer.lesson(block, domain) for block, domain in rows] if weight else []
        found = [lesson for lesson in lessons if lesson is not None]
        if not found:
            return {}
        return {name: weight * stage.objective.per_sample_loss(stage.model, self._collated(stage, found)).mean()}

    def _of_solving(self, stage: Stage, rows: Sequence[Block]) -> dict[str, Tensor]:
        """The task's loss on pseudo-samples, and how far their answers are from those of the prompt before."""
        batch = self._collated(stage, rows)
        real = batch["labels"] != IGNORE
        now = stage.objective.log_probabilities(stage.model, batch)
        losses = {}
        if self.config.pseudo:
            nats = -now.gather(-1, batch["labels"].clamp(min=0)[..., None])[..., 0] * real
            losses["pseudo"] = self.config.pseudo * (nats.sum(1) / real.sum(1).clamp(min=1)).mean()
        if self.config.divergence:
            prompt: CarriedPrompt = attached(stage.model, self.name)
            with torch.no_grad(), evaluating(stage.model), prompt.as_before():
                before = stage.objective.log_probabilities(stage.model, batch)
            each = (before.exp() * (before - now)).sum(-1) * real
            losses["divergence"] = self.config.divergence * each.sum(1).mean()
        return {key: value.float() for key, value in losses.items()}

    # -- pseudo-samples ----------------------------------------------------------------------------------------

    @property
    def _uses_pseudo(self) -> bool:
        return self.config.pseudo > 0 or self.config.divergence > 0

    def _writer(self, stage: Stage) -> WrittenPairs | WrittenTexts:
        kind = kind_of(stage.model)
        encoder = Encoder(stage.tokenizer, kind)
        if kind == "decoder":
            return WrittenTexts(encoder)
        return WrittenPairs(encoder, self.config.question, self.config.separator)

    def _write(self, stage: Stage) -> dict[str, list[Block]]:
        """Pseudo-samples of each earlier domain, written with the prompt as it is."""
        writer, wanted = self._writer(stage), self.config.samples
        decoder = kind_of(stage.model) == "decoder"
        most = min(self.config.pseudo_tokens, stage.source.block_tokens or self.config.pseudo_tokens)
        end = stage.tokenizer.eos_token_id
        found: dict[str, list[Block]] = {}
        with torch.no_grad(), evaluating(stage.model):
            for domain in stage.earlier:
                asked, blocks = writer.asked(domain), list[Block]()
                draws = torch.rand(DRAWS * wanted, most, dtype=torch.float64)
                while len(draws) and len(blocks) < wanted:
                    count = min(stage.batch_size, wanted - len(blocks))
                    part, draws = draws[:count], draws[count:]
                    ids = torch.tensor([asked] * len(part), device=next(stage.model.parameters()).device)
                    steps = continuation(stage.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
                    ending = Ending(
                        most - len(asked) if decoder else most,
                        () if decoder else [end],
                        temperature=1,
                        draws=part,
                        top_k=self.config.top_k,
                        repetition_penalty=self.config.repetition_penalty,
                    )
                    rows = decode(steps, ending)
                    blocks += [block for row in rows if (block := writer.block(row)) is not None]
                found[domain] = blocks
                if len(blocks) < wanted:
                    stage.notes.append(
                        f"Method '{self.label}': of {DRAWS * wanted:,} examples of '{domain}' that the model wrote, "
                        f"{len(blocks):,} had a prompt and an answer ({wanted:,} were wanted)."
                    )
        return found

    def _drawn(self, stage: Stage) -> list[tuple[Block, str]]:
        """The pseudo-samples of a step, with their domains; the same in all its micro-batches."""
        rows = [(block, domain) for domain, blocks in (self._pseudo or {}).items() for block in blocks]
        if not rows:
            return []
        generator = np.random.default_rng(seed_for(stage.seed, self.name, stage.index, stage.step))
        return [rows[at] for at in generator.integers(0, len(rows), self.config.pseudo_batch)]

    def _collated(self, stage: Stage, blocks: Sequence[Block]) -> Batch:
        batch = stage.objective.collate(blocks, range(len(blocks)))
        device = next(stage.model.parameters()).device
        return {name: value.to(device) for name, value in batch.items()}

    def _new(self, stage: Stage) -> Tensor:
        """Mean embeddings of the words that were given, then random frequent ones."""
        words, n = word_embeddings(stage.model), self.config.n_tokens
        encoder = Encoder(stage.tokenizer, kind_of(stage.model))
        given = [words[ids].mean(0) for ids in encoder(self.config.words[:n])]
        drawn_words = torch.randint(min(FREQUENT, len(words)), (n - len(given),)).to(words.device)
        return torch.cat([*(each[None] for each in given), words[drawn_words]]).detach()

    # -- memory ------------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """The prompt; within a domain also its pseudo-samples, which a resumed one goes on with."""
        tensors = {} if self._prompt is None else {PROMPT: self._prompt}
        if self._pseudo is None:
            return Memory(tensors)
        for domain, blocks in self._pseudo.items():
            for number, block in enumerate(blocks):
                tensors |= {f"{domain}/{number}/{key}": torch.from_numpy(value) for key, value in block.items()}
        return Memory(tensors, {"pseudo": {domain: len(blocks) for domain, blocks in self._pseudo.items()}})

    def load_memory(self, memory: Memory) -> None:
        """Take it back."""
        self._prompt, self._pseudo = memory.tensors.get(PROMPT), None
        if "pseudo" in memory.facts:
            self._pseudo = {domain: [{} for _ in range(n)] for domain, n in memory.facts["pseudo"].items()}
            for path, value in memory.tensors.items():
                if path != PROMPT:
                    domain, number, key = path.rsplit("/", 2)
                    self._pseudo[domain][int(number)][key] = value.numpy()


class CarriedPrompt(SoftPrompt):
    """One prompt, and as it was when it was attached.

    Attributes:
        before: as it was, [n, E]; never trained.
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__(vectors)
        self.before = nn.Parameter(vectors.clone(), requires_grad=False)
        self._reads_before = False

    def place(self, model: nn.Module) -> None:
        self.behind = kind_of(model) == "encoder-decoder"
        super().place(model)

    def prompt(self) -> Tensor:
        return self.before if self._reads_before else self.vectors

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Inside, texts are read with the prompt as it was."""
        self._reads_before = True
        try:
            yield
        finally:
            self._reads_before = False


def _blocks(batch: Batch) -> list[Block]:
    """The examples of an encoder-decoder's batch; none of a decoder's, which need no lesson."""
    if "decoder_input_ids" not in batch:
        return []
    rows = zip(*(batch[name].cpu().numpy() for name in ("input_ids", "attention_mask", "labels")), strict=True)
    return [
        {"input_ids": ids[mask > 0].astype(np.int32), "labels": labels[labels != IGNORE].astype(np.int32)}
        for ids, mask, labels in rows
    ]
