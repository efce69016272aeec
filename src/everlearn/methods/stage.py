"""What a method can access: the training of a domain (:class:`Stage`), a test (:class:`Reading`), earlier models."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from everlearn.data.blocks import BlockSource
from everlearn.data.loader import sample_batches
from everlearn.data.phases import Phase, in_silence
from everlearn.errors import MethodError
from everlearn.model.adapted import plain_view
from everlearn.model.anatomy import Anatomy, anatomy
from everlearn.model.objectives import Objective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, Tensor]


class Checkpoints:
    """The plain models of a stream so far, each loaded from disk on access and not cached.

    ``checkpoints[0]`` is the base model, ``checkpoints[k]`` the model after domain k, ``checkpoints[-1]`` the last
    finished one. Each access returns a new model in float32, in evaluation mode: in training on the CPU, in a test on
    the device of the tested model.

    Args:
        count: number of models.
        load: loads the model with a given number.
    """

    def __init__(self, count: int = 0, load: Callable[[int], nn.Module] | None = None) -> None:
        self._count, self._load = count, load

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> nn.Module:
        """Load the model after `number` domains.

        Raises:
            MethodError: there is no model of that number; outside a run folder there is none at all.
        """
        if self._load is None:
            raise MethodError("Earlier models are kept in a run folder (`everlearn run`), and this training has none.")
        if not -self._count <= number < self._count:
            raise MethodError(f"There is no checkpoint {number}: 0 is the base model, the last is {self._count - 1}.")
        return self._load(number % self._count).eval()

    def on(self, device: torch.device) -> Checkpoints:
        """Return the same models, each moved to a device when it is loaded."""
        load = self._load
        return Checkpoints(self._count, None if load is None else lambda number: load(number).to(device))


@dataclass(frozen=True)
class Reading:
    """The text that a model will be tested on (``Method.test_model``).

    Attributes:
        domain: the domain of the text; None for general text and general end tasks. Only a method that declares
            ``needs.domain_id_test`` may read it.
        learnt: names of the domains learnt so far, in order.
        objective: the objective of the run.
        language_model: returns the plain checkpoint with its language-model head; it must be restored after any change.
        batches: returns at most this many blocks of unlabelled test text, as collated batches.
        checkpoints: the models up to the tested one, which is the last.
    """

    domain: str | None
    learnt: tuple[str, ...]
    objective: Objective
    language_model: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


@dataclass
class Stage:
    """The training of one domain.

    Attributes:
        index: 1 for the first domain.
        domain: name of the domain.
        earlier: names of the domains learnt before, in order.
        model: the model without any distributed wrapper; it has the starting weights of the stage in ``begin_domain``,
            and is trained in ``end_domain``.
        tokenizer: the tokenizer of the model.
        objective: the training objective.
        source: the training blocks of this domain as the user provided them (before any method mixed others in).
        general: blocks of the general corpus, if the recipe names one.
        batch_size: rows per batch of :meth:`batches`.
        rows_per_step: training rows in one optimizer step, over all processes and micro-batches.
        seed: seed of the run. Hooks before and after the steps already run under a seed of their own, so plain torch
            randomness is reproducible there; random numbers drawn in the hooks of a step would change the dropout of
            the training.
        steps: number of optimizer steps of this stage.
        step: number of optimizer steps taken: 0 during the first one and `steps` at the end, resumed or not. It is
            incremented after ``after_step``.
        row: number of the first row of the current micro-batch in the global order of the stage, over all processes.
        checkpoints: the models before this stage; ``checkpoints[-1]`` is the one that it starts from.
        optimizer: the optimizer of the stage, once it exists.
        notes: sentences for the log and the results, such as that a pass had fewer blocks than requested.
        folder: where a method may store results that are expensive to recompute until the stage is finished: all
            processes read it, and it is removed with the checkpoints of the stage. None outside a run folder.
        log: writes a line to ``metrics.jsonl``, such as a measurement after a step (whose ``step`` is in it); without a
            run folder the line is dropped.
        as_tested: attaches the modules that methods add for evaluation to a copy of the plain model
            (``Method.test_model``); None if a plain model is used. The engine sets it.
        phase: opens a phase of the progress display, for a loop over many rows; passes over :meth:`batches` do it
            themselves.
        moved: names of the weights of the plain model that methods train by low-rank matrices; None if the trained
            parameters are those that require a gradient. The engine sets it.
        start: copies of the trained parameters at the beginning of the domain, with everything attached, if a method
            needs them (``Needs.start``). The engine sets it.
        rounded: number of the checkpoint to which a domain's adapter is added when it is trained on a quantised copy of
            it; None for others. The method with the adapter sets it.
        sharded: whether FSDP2 divides the model over the processes while it is trained.
        complete: the complete model, in the host's memory, while :attr:`model` is divided before the training; None
            otherwise. The engine sets it.
        host: the current micro-batch as collated, on the CPU, so that reading it needs no device synchronisation; None
            if the trainer does not provide it.
    """

    index: int
    domain: str
    earlier: tuple[str, ...]
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    objective: Objective
    source: BlockSource
    general: BlockSource | None
    batch_size: int
    seed: int
    steps: int
    rows_per_step: int = 1
    step: int = 0
    row: int = 0
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    optimizer: Optimizer | None = None
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None
    log: Callable[[dict[str, Any]], None] = lambda line: None
    as_tested: Callable[[nn.Module], nn.Module] | None = None
    phase: Phase = in_silence
    moved: frozenset[str] | None = None
    rounded: int | None = None
    sharded: bool = False
    complete: nn.Module | None = None
    host: Batch | None = None
    start: Mapping[str, Tensor] = field(default_factory=dict)
    _acting: str = "Reading"
    _passes: list[Generator[Batch]] = field(default_factory=list, repr=False)

    @property
    def anatomy(self) -> Anatomy:
        """Return the positions of heads, neurons and projections; raise ``ModelError`` for an unknown architecture."""
        return anatomy(self.model)

    @property
    def first(self) -> bool:
        """Return whether this is the first domain of the stream."""
        return self.index == 1

    @property
    def learning_rate(self) -> float:
        """The learning rate of the current step, as set by the schedule (of the first parameter group if they differ).

        Raises:
            MethodError: there is no optimizer yet.
        """
        if self.optimizer is None:
            raise MethodError("There is no learning rate before the first step: the optimizer is not made yet.")
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def answering(self) -> nn.Module:
        """Return the model as it would be evaluated before the domain is learnt; it must not be changed.

        It is the plain, complete model, or a copy with the experts, adapters or prompts that methods of the list store.
        """
        return self.undivided if self.as_tested is None else self.as_tested(copy.deepcopy(self.undivided))

    @property
    def undivided(self) -> nn.Module:
        """Return the complete model before the training, also while :attr:`model` is divided."""
        return self.model if self.complete is None else self.complete

    @contextlib.contextmanager
    def as_plain(self) -> Iterator[None]:
        """Replace :attr:`model` inside the block by a plain model with its effective weights (:func:`plain_view`)."""
        adapted = self.model
        with plain_view(adapted) as self.model:
            try:
                yield
            finally:
                self.model = adapted

    @contextlib.contextmanager
    def acting(self, text: str) -> Iterator[None]:
        """Set the name of the current activity inside the block; the engine does it around each hook.

        Passes that were started inside the block and not completed end here; those of the caller continue.
        """
        outer, self._passes = self._passes, []
        self._acting = text
        try:
            yield
        finally:
            while self._passes:
                self._passes.pop().close()
            self._passes, self._acting = outer, "Reading"

    def batches(self, blocks: int, source: BlockSource | None = None) -> Iterator[Batch]:
        """Yield collated batches of the first `blocks` blocks of a seeded pass over this domain (or another source).

        The pass is separate from training: it neither advances the training data nor depends on its position. The last
        batch may be smaller. Tensors are on the device of the model. A source with fewer blocks than requested is read
        once, which is recorded in :attr:`notes`.
        """
        batches = self._batches(blocks, source or self.source)
        self._passes.append(batches)
        return batches

    def _batches(self, blocks: int, source: BlockSource) -> Generator[Batch]:
        read, total = 0, blocks if source.size is None else min(blocks, source.size)
        with self.phase(f"{self._acting} on {source.name}", total) as done:
            for batch in sample_batches(
                source,
                self.objective,
                blocks=blocks,
                batch_size=self.batch_size,
                seed=self.seed,
                device=next(self.model.parameters()).device,
            ):
                read += len(next(iter(batch.values())))
                yield batch
                done(read)
            if read < total:
                done(total)
        note = f"'{source.name}' has {read:,} rows, fewer than the {blocks:,} that a method would read; it reads all."
        if read < blocks and note not in self.notes:
            self.notes.append(note)
