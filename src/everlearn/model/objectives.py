"""Training objectives: masked, causal and text-to-text losses, projected to the vocabulary at labels only.

All objectives produce batches of one form: the inputs of the model, ``labels`` [B, K] and, unless every position has a
label, ``positions`` [B, K], the position in the sequence at which each label is predicted. One forward pass then serves
all: the last hidden state is captured as it enters the vocabulary head, the labelled positions of the batch's rows are
kept, and the projection returns a loss for each label instead of logits. Extra rows of a method (its views) do not
reach the head unless they have labels. Everything happens inside ``model(...)``, so DDP and FSDP see an ordinary
forward pass.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from everlearn.errors import ModelError, RecipeError, did_you_mean
from everlearn.model.anatomy import head_path, kind_of
from everlearn.model.architectures import Tokens
from everlearn.model.content import CONTENT, content_of, counted
from everlearn.model.finding import output_embeddings
from everlearn.model.gates import row_gates
from everlearn.model.logit_scale import check_head
from everlearn.model.packed_rows import masks_isolate, why_not_isolated
from everlearn.model.routing import router_loss
from everlearn.model.shared_prompt import prompts_of
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import IGNORE as IGNORE
from everlearn.model.vocabulary_head import (
    AtHead,
    Labelled,
    LogitLoss,
    apart,
    at_head,
    certainties,
    config_of,
    drawn,
    likeliest,
    log_probabilities,
    logit_bias,
    logit_cap,
    text_config,
    the_features,
    unwrap,
)
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from everlearn.data.blocks import Block

Batch = dict[str, Tensor]
ANSWERS_TO = 8
"""Rows and masked answers are padded to a multiple of this, since on a CPU every new matrix shape is compiled."""
PROMPT_OF = "prompt_of"
"""Key of a batch in which an encoder reads a prompt once for many answers: the row of each answer's prompt, [B]."""
_NOT_FOR_THE_MODEL = frozenset({"labels", "positions", "plain_ids", PROMPT_OF, CONTENT})


@dataclass(frozen=True)
class View:
    """Extra rows of a method in the same forward pass as the batch.

    Attributes:
        inputs: model inputs for these rows, with the same keys as the batch, [b, S]. None for the rows of the batch
            itself, which run anyway; the view then adds another loss on them.
        gates: site name (:attr:`Site.name`) → a factor per unit, [units]; None leaves the units alone.
        labels: [b, K]; gives the rows a loss (:attr:`Outputs.view_losses`). None skips the projection to the
            vocabulary, which takes most of the time of a small model.
        positions: position at which each label is predicted, [b, K]; None if every position has a label.
        loss: function of the logits at the labels; None for cross-entropy. It may be called for parts of the labels,
            and again in the backward pass.
    """

    inputs: Batch | None
    gates: Mapping[str, Tensor] | None = None
    labels: Tensor | None = None
    positions: Tensor | None = None
    loss: LogitLoss | None = None


@dataclass
class Outputs:
    """The outputs of one forward pass.

    Attributes:
        losses: nats per label, [B, K]; 0 where there is no label.
        items: number of labels in the batch, a scalar on the device of the batch.
        hidden: last hidden state of the rows of the batch, which the vocabulary head reads, [B, S, H].
        views: the same for each view, in order, [b, S, H].
        view_losses: nats per label of each view, [b, K]; None for a view without labels.
        router_loss: the model's own loss for the balance of its experts, with its coefficient, if it computes one.
    """

    losses: Tensor
    items: Tensor
    hidden: Tensor
    views: list[Tensor] = field(default_factory=list)
    view_losses: list[Tensor | None] = field(default_factory=list)
    router_loss: Tensor | None = None

    @property
    def loss(self) -> Tensor:
        """Mean nats per label."""
        return self.losses.sum() / self.items.clamp(min=1)


@dataclass(frozen=True)
class Objective:
    """Base class of the objectives: subclasses turn blocks into batches, the loss is the same for all.

    Attributes:
        tokenizer: the tokenizer of the model.
        seed: seed of random masking; the mask of a row depends on (seed, row number) only.
        isolate: whether the documents of a packed block are hidden from each other.
        first_position: position id of the first token of a text; RoBERTa-type models count from the padding id upwards.
        why_shared: why the model cannot isolate documents; "" if it can.
    """

    tokenizer: PreTrainedTokenizerBase
    seed: int = 0
    isolate: bool = True
    first_position: int = 0
    why_shared: str = ""

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]]
    """Supported kinds of model: encoder, decoder, encoder-decoder."""

    @classmethod
    def check_kind(cls, kind: str, model: str) -> None:
        """Raise ``ModelError`` if the objective does not support a kind of model; `model` names the class."""
        if kind not in cls.kinds:
            raise ModelError(
                f"Objective '{cls.name}' needs a model of kind {' or '.join(sorted(cls.kinds))}, but '{model}' is of "
                f"kind {kind}. Change `objective` or `model.path`."
            )

    def check(self, model: nn.Module) -> None:
        """Raise ``ModelError`` if the model or tokenizer lacks what this objective needs."""
        self.check_kind(kind_of(model), type(model).__name__)
        if (last := output_embeddings(model)) is None:
            raise ModelError(
                f"'{type(model).__name__}' has no vocabulary head, which objective '{self.name}' needs. Choose a "
                "checkpoint with a language-model head (`model.path`)."
            )
        check_head(model, model.get_submodule(head_path(model)), last, logit_bias(model), logit_cap(model))

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        """Collate blocks into a batch; `rows` are their numbers in the global order, which seed random masking."""
        raise NotImplementedError

    @property
    def leaks(self) -> bool:
        """Return whether documents that share a packed row see each other."""
        return not self.isolate

    @property
    def predicted_share(self) -> float:
        """Share of the tokens of plain text that are predicted."""
        return 1.0

    def reseeded(self, *parts: object) -> Objective:
        """Return a copy of the objective with another seed for its random masking."""
        return replace(self, seed=seed_for(*parts))

    def inputs(self, batch: Mapping[str, Tensor]) -> Batch:
        """Return the entries of a batch that are arguments of the model."""
        return {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}

    def items(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of labels per row, [B]."""
        return (batch["labels"] != IGNORE).sum(1)

    def forward(
        self, model: nn.Module, batch: Mapping[str, Tensor], views: Sequence[View] = (), summed: bool = False
    ) -> Outputs:
        """Run one forward pass over the batch and all views.

        Args:
            model: the model, wrapped for distributed training or not.
            batch: a batch from :meth:`collate`, on the device of the model.
            views: extra rows; their inputs have the keys and lengths of the batch's.
            summed: whether the losses of the batch will be summed before they are differentiated; a hint, which makes
                this faster with a large vocabulary.
        """
        inputs, labels = self.inputs(batch), batch["labels"]
        more = [(view.inputs, view.gates) for view in views if view.inputs is not None]
        rows = [len(labels), *(len(next(iter(their.values()))) for their, _ in more)]
        if more:
            inputs = {name: torch.cat([inputs[name], *(their[name] for their, _ in more)]) for name in inputs}
        core = unwrap(model)
        gated: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if any(gates is not None for _, gates in more):
            gated = row_gates(core, [(rows[0], None), *((n, g) for n, (_, g) in zip(rows[1:], more, strict=True))])
        number = itertools.count(1)
        labelled = [Labelled(labels, batch.get("positions"), summed=summed)] + [
            Labelled(v.labels, v.positions, 0 if v.inputs is None else next(number), v.loss) for v in views
        ]
        shared = prompts_of(core, batch[PROMPT_OF]) if PROMPT_OF in batch else contextlib.nullcontext()
        with gated, shared, at_head(core, labelled, rows) as caught:
            output = model(**inputs, **self.options())
        own, *rest = apart(output.logits, labelled)
        hidden = caught[0].split(rows)
        of_views = [hidden[part.rows] for part in labelled[1:]]
        balance = router_loss(output, text_config(core))
        return Outputs(own, (labels != IGNORE).sum(), hidden[0], of_views, rest, balance)  # type: ignore[arg-type]

    def per_sample_loss(self, model: nn.Module, batch: Mapping[str, Tensor], loss: LogitLoss | None = None) -> Tensor:
        """Return the mean loss of each row over its labelled positions, [B].

        Logits are computed in chunks.

        Args:
            model: the model.
            batch: the batch, with its labels.
            loss: function from logits to losses, which replaces cross-entropy (in nats). It is also called for
                positions without a label; its values there are ignored.
        """
        labels = batch["labels"]
        losses = self._at_labels(model, batch, loss=loss).view(labels.shape)
        return losses.masked_fill(labels == IGNORE, 0).sum(1) / self.items(batch).clamp(min=1)

    def mean_loss(self, model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> float:
        """Return the mean nats per label over several batches, without dropout and gradients."""
        nats = items = 0.0
        with evaluating(model), torch.no_grad():
            for batch in batches:
                outputs = self.forward(model, batch)
                nats += float(outputs.losses.double().sum())
                items += int(outputs.items)
        return nats / max(items, 1)

    def log_probabilities(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the log-probabilities of the whole vocabulary at each label, [B, K, V] float64; for few labels."""
        return self._at_labels(model, batch, log_probabilities).view(*batch["labels"].shape, -1)

    def certainty(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the nats of each label, the nats of the most likely token and the entropy of the distribution.

        The shape is [3, B, K] in float64, 0 where there is no label; nothing is kept for a backward pass.
        """
        return self._three(model, batch, certainties)

    def likeliest(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the nats of each label, the id of the most likely token in its place and the nats of that token.

        The shape is [3, B, K] in float64, 0 where there is no label; nothing is kept for a backward pass.
        """
        three = self._three(model, batch, likeliest)
        three[1].round_()  # token ids, which a model's scale of its logits may have rounded
        return three

    def _three(self, model: nn.Module, batch: Mapping[str, Tensor], of: AtHead) -> Tensor:
        """Return three numbers for each label, computed by `of` at the head, [3, B, K]."""
        with torch.no_grad():
            values = self._at_labels(model, batch, of)
        return values.view(-1, 3).T.reshape(3, *batch["labels"].shape)

    def label_features(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the input of the vocabulary projection at each label, [B · K, H]; see :func:`logits_of`."""
        return self._at_labels(model, batch, the_features)

    def drawn_labels(
        self, model: nn.Module, batch: Mapping[str, Tensor], chances: Tensor, without: Sequence[int] = ()
    ) -> Tensor:
        """Sample a label for each labelled position from the distribution of the model, [B, K].

        Args:
            model: the model.
            batch: its labels only mark the positions.
            chances: [B, K] float64 in [0, 1); the label is the first token whose cumulative probability exceeds it.
            without: token ids that are never drawn.
        """
        labels = batch["labels"]
        with torch.no_grad():
            values = self._at_labels(model, batch, partial(drawn, chances=chances, without=without))
        return values.round().long().view(labels.shape).masked_fill_(labels == IGNORE, IGNORE)

    def _at_labels(
        self, model: nn.Module, batch: Mapping[str, Tensor], of: AtHead | None = None, loss: LogitLoss | None = None
    ) -> Tensor:
        """Run a forward pass and return what :func:`at_head` computes for the labels: losses, or the result of `of`."""
        labels = batch["labels"]
        with at_head(unwrap(model), [Labelled(labels, batch.get("positions"), loss=loss)], [len(labels)], of):
            values: Tensor = model(**self.inputs(batch), **self.options()).logits
        return values

    def hidden(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the last hidden state, which the vocabulary head reads, [B, S, H]; nothing is projected."""
        core = unwrap(model)
        some = next(iter(inputs.values()))
        labels = torch.full((len(some), 1), IGNORE, device=some.device)
        with at_head(core, [Labelled(labels, torch.zeros_like(labels))], [len(some)]) as caught:
            model(**inputs, **self.options())
        return caught[0]

    def longest_input(self, model: nn.Module) -> int | None:
        """Return the longest input in tokens that the positions of the model allow; None if there is no limit."""
        config = text_config(model)
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        return None if longest is None else int(longest) - self.first_position

    def options(self) -> dict[str, Any]:
        """Return keyword arguments that are passed to every forward pass of the model.

        By default they turn the key-value cache off. With a cache, transformers does not restrict attention to single
        documents, so the documents of a packed row would see each other.
        """
        return {"use_cache": False}


@dataclass(frozen=True)
class Masked(Objective):
    """Masked language modelling with a fixed number of masked positions per row.

    The number is fixed because on a CPU every new matrix shape is compiled and kept. Of the chosen positions 80 %
    become the mask token, 10 % a random token, and 10 % stay (arXiv 1810.04805, §3.1).

    In an example of prompt and answer, all tokens of the answer and its end are masked and predicted from the prompt
    (pattern-exploiting training, arXiv 2001.07676, with answers of any length, padded with additional masks:
    :func:`everlearn.data.packing.masks_for`).
    """

    probability: float = 0.15
    isolate: bool = False

    name: ClassVar[str] = "masked"
    kinds: ClassVar[frozenset[str]] = frozenset({"encoder"})

    def check(self, model: nn.Module) -> None:
        super().check(model)
        if self.tokenizer.mask_token_id is None:
            raise ModelError(
                f"Objective 'masked' needs a tokenizer with a mask token; '{self.tokenizer.name_or_path}' has none. "
                "Set `objective: causal`, or give a tokenizer with one (`model.tokenizer`)."
            )
        if self.isolate and not masks_isolate(model):
            kernel = config_of(model)._attn_implementation
            other = "" if kernel == "sdpa" else "to sdpa where the model has it, or set "
            raise ModelError(
                f"'{type(unwrap(model)).__name__}' with `model.attn_implementation: {kernel}` does not keep packed "
                f"documents apart by a mask. Set {other}`data.isolate_documents: false` (which plain text allows, and "
                "prompts with answers do not)."
            )

    @property
    def predicted_share(self) -> float:
        return self.probability

    def options(self) -> dict[str, Any]:
        return {}

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        plain = np.stack([block["input_ids"] for block in blocks]).astype(np.int64)
        own = [block.get("labels", block["input_ids"]) != IGNORE for block in blocks]
        answers = [
            None if learnt.all() else np.flatnonzero(learnt) for learnt in own
        ]  # plain text is learnt everywhere
        usual = max(1, round(self.probability * plain.shape[1]))
        longest = max((len(answer) for answer in answers if answer is not None), default=0)
        count = max(usual, -(-longest // ANSWERS_TO) * ANSWERS_TO)
        masked, positions = plain.copy(), np.zeros((len(blocks), count), np.int64)
        labels = np.full((len(blocks), count), IGNORE, np.int64)
        special = np.asarray(self.tokenizer.all_special_ids)
        for i, row in enumerate(rows):
            if (answer := answers[i]) is not None:
                positions[i, : len(answer)], labels[i, : len(answer)] = answer, plain[i, answer]
                masked[i, answer] = self.tokenizer.mask_token_id
                continue
            generator = np.random.Generator(np.random.PCG64(seed_for(self.seed, "mask", row)))
            chosen = np.flatnonzero(~np.isin(plain[i], special))
            chosen = np.sort(generator.permutation(chosen)[:usual])
            fate = generator.random(usual)[: len(chosen)]
            other = generator.integers(0, len(self.tokenizer), usual)[: len(chosen)]
            positions[i, : len(chosen)], labels[i, : len(chosen)] = chosen, plain[i, chosen]
            token = np.where(fate < 0.8, self.tokenizer.mask_token_id, np.where(fate < 0.9, other, plain[i, chosen]))
            masked[i, chosen] = token
        batch = {"input_ids": masked, "plain_ids": plain, "positions": positions, "labels": labels}
        tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
        if self.isolate:
            segments = torch.from_numpy(np.stack([block["segments"] for block in blocks]))
            tensors["attention_mask"] = (segments[:, :, None] == segments[:, None, :])[:, None]
            tensors["position_ids"] = _restarting(segments) + self.first_position
            if any(answer is not None for answer in answers):
                tensors[CONTENT] = content_of(blocks, IGNORE)
        return tensors


@dataclass(frozen=True)
class Causal(Objective):
    """Next-token prediction on packed blocks; positions restart with each document, which isolates them exactly.

    A block with labels (prompts with answers, chats) is learnt where it has them.
    """

    name: ClassVar[str] = "causal"
    kinds: ClassVar[frozenset[str]] = frozenset({"decoder"})

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        if any("labels" in block for block in blocks):
            return _where_labelled(blocks)
        ids = torch.from_numpy(np.stack([block["input_ids"] for block in blocks]).astype(np.int64))
        segments = torch.from_numpy(np.stack([block["segments"] for block in blocks]))
        labels = torch.full_like(ids, IGNORE)
        same = segments[:, 1:] == segments[:, :-1] if self.isolate else torch.ones_like(ids[:, 1:], dtype=torch.bool)
        for row, block in enumerate(blocks):
            if "scored" in block:  # an overlapping window: its other tokens are context
                same[row] &= torch.from_numpy(block["scored"][1:]).bool()
        labels[:, :-1] = torch.where(same, ids[:, 1:], IGNORE)
        batch = {"input_ids": ids, "labels": labels}
        if self.isolate:
            batch["position_ids"] = _restarting(segments)
        return batch


@dataclass(frozen=True)
class TextToText(Objective):
    """Prediction of an answer from a prompt, with loss on the answer only, for encoder-decoder and causal models."""

    name: ClassVar[str] = "text-to-text"
    kinds: ClassVar[frozenset[str]] = frozenset({"decoder", "encoder-decoder"})
    decoder_start: int | None = None
    """First decoder token of an encoder-decoder model; None for a causal model."""

    @property
    def leaks(self) -> bool:
        """False: examples are separate rows, or isolated as in causal packing."""
        return False

    def collate(self, blocks: Sequence[Block], rows: Sequence[int]) -> Batch:
        if self.decoder_start is None:
            return _where_labelled(blocks)
        pad = self.tokenizer.pad_token_id
        ids = _padded([block["input_ids"] for block in blocks], pad)
        labels = _padded([block["labels"] for block in blocks], IGNORE)
        shifted = labels.new_full(labels.shape, self.decoder_start)
        shifted[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORE, pad)
        return {"input_ids": ids, "attention_mask": (ids != pad).long(), "decoder_input_ids": shifted, "labels": labels}


def where_text_is(batch: Mapping[str, Tensor]) -> dict[Tokens, Tensor]:
    """Return which tokens are text and not padding, [B, S] bool, of the input and of the answer; no entry: all are."""
    masks: dict[Tokens, Tensor] = {}
    if (real := counted(batch)) is not None:
        masks["input"] = real.bool()
    if "decoder_input_ids" in batch:
        masks["answer"] = batch["labels"] != IGNORE
    return masks


def row_means(losses: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over the labels of each row, then over rows, [B, K] → [].

    It does not depend on how a batch is divided into micro-batches.
    """
    return (losses.sum(1) / (labels != IGNORE).sum(1).clamp(min=1)).mean()


OBJECTIVES: dict[str, type[Objective]] = {cls.name: cls for cls in (Masked, Causal, TextToText)}
DEFAULT_OBJECTIVE = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "text-to-text"}


def make_objective(
    name: str | None,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int = 0,
    mask_probability: float = 0.15,
    isolate: bool | None = None,
    examples: bool = False,
) -> Objective:
    """Create the objective of a run and check it against the model.

    Args:
        name: masked, causal or text-to-text; None for the default of the kind of model.
        model: the model that is trained.
        tokenizer: the tokenizer of the model.
        seed: seed of random masking.
        mask_probability: share of tokens that are masked, for the masked objective.
        isolate: whether to hide packed documents from each other; None does so wherever it costs nothing (all but
            encoders, and models that cannot: :func:`why_not_isolated`), and for examples always.
        examples: whether the training data holds prompts with answers.

    Raises:
        RecipeError: there is no such objective.
        ModelError: the model or tokenizer does not fit.
    """
    name = name or DEFAULT_OBJECTIVE[kind_of(model)]
    if name not in OBJECTIVES:
        raise RecipeError(f"There is no objective '{name}' (`objective`).{did_you_mean(name, OBJECTIVES)}")
    options: dict[str, Any] = {"seed": seed}
    if isolate is not None and name == TextToText.name:
        raise RecipeError(
            "`data.isolate_documents` has no effect on objective 'text-to-text', whose examples never see each other. "
            "Remove it."
        )
    if name != Masked.name and kind_of(model) == "decoder" and (why := why_not_isolated(model)):
        if isolate or name == TextToText.name or examples:
            what, instead = ("`data.isolate_documents: true`", "Remove it")
            if name == TextToText.name or examples:
                what, instead = ("A domain with answers, which are packed into rows,", "Train on plain text")
            raise ModelError(
                f"{what} needs documents that do not see each other, which '{type(model).__name__}' cannot do: {why}. "
                f"{instead}, or choose another `model.path`."
            )
        isolate, options["why_shared"] = False, why
    if isolate is not None:
        options["isolate"] = isolate
    if examples and isolate is False and name != TextToText.name:
        raise RecipeError(
            "`data.isolate_documents` is false, but the model would read the prompts and answers of other examples in "
            "the same row. Remove it."
        )
    if name == Masked.name:
        options |= {"isolate": True} if examples else {}
        table = next((m for n, m in model.named_modules() if n.endswith("position_embeddings")), None)
        padding = getattr(table, "padding_idx", None)
        options |= {"probability": mask_probability, "first_position": 0 if padding is None else padding + 1}
    if name == TextToText.name and kind_of(model) == "encoder-decoder":
        options["decoder_start"] = decoder_start(model)
    objective = OBJECTIVES[name](tokenizer, **options)
    objective.check(model)
    return objective


def decoder_start(model: nn.Module) -> int:
    """Return the token with which an encoder-decoder begins every answer.

    Raises:
        ModelError: the configuration does not name it.
    """
    config = config_of(model)
    missing = not hasattr(config, "decoder_start_token_id")
    start = text_config(model).bos_token_id if missing else config.decoder_start_token_id
    if start is None:
        raise ModelError(
            "The model's config.json lacks `decoder_start_token_id`, with which every answer begins. Set "
            "`model.config: {decoder_start_token_id: …}` (in mBART the token of the language that is written)."
        )
    return int(start)


def _where_labelled(blocks: Sequence[Block]) -> Batch:
    """Return a decoder's batch of packed blocks, with loss at a block's labels, or everywhere if it has none."""
    ids = torch.from_numpy(np.stack([block["input_ids"] for block in blocks]).astype(np.int64))
    segments = torch.from_numpy(np.stack([block["segments"] for block in blocks]))
    learnt = [block.get("labels", block["input_ids"])[1:] for block in blocks]
    # A label at t is predicted at t - 1, which must be of the same document.
    places = [
        np.flatnonzero((own != IGNORE) & (np.diff(block["segments"]) == 0))
        for own, block in zip(learnt, blocks, strict=True)
    ]
    return {
        "input_ids": ids,
        "position_ids": _restarting(segments),
        CONTENT: content_of(blocks, IGNORE),
        "positions": _padded(places, 0),
        "labels": _padded([own[at] for own, at in zip(learnt, places, strict=True)], IGNORE),
    }


def _restarting(segments: Tensor) -> Tensor:
    """Return positions that restart at 0 with each segment, [B, S]."""
    index = torch.arange(segments.shape[1]).expand_as(segments)
    starts = torch.zeros_like(index)
    starts[:, 1:] = torch.where(segments[:, 1:] != segments[:, :-1], index[:, 1:], 0)
    return index - starts.cummax(1).values


def _padded(rows: Sequence[np.ndarray], value: int) -> Tensor:
    """Pad rows to one int64 tensor, whose width is a multiple of :data:`ANSWERS_TO`."""
    width = max(1, -(-max(len(row) for row in rows) // ANSWERS_TO) * ANSWERS_TO)
    out = torch.full((len(rows), width), value, dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.from_numpy(np.asarray(row, dtype=np.int64))
    return out
