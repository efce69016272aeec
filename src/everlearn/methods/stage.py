"""What a method sees: a domain's training (:class:`Stage`), a test (:class:`Reading`), the stream's earlier models."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from everlearn.data.blocks import BlockSource
from everlearn.data.loader import sample_batches
from everlearn.data.phases import Phase, in_silence
from everlearn.errors import MethodError
from everlearn.model.anatomy import Anatomy, anatomy
from everlearn.model.objectives import Objective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Batch = dict[str, Tensor]


class Checkpoints:
    """The plain models of a stream so far, read from disk when they are asked for and kept by nobody.

    ``checkpoints[0]`` is the base model, ``checkpoints[k]`` the model after domain k, ``checkpoints[-1]`` the last one
    that is finished. Each is a new model in float32 on the CPU, in evaluation mode.

    Args:
        count: how many there are.
        load: makes one, given its number.
    """

    def __init__(self, count: int = 0, load: Callable[[int], nn.Module] | None = None) -> None:
        self._count, self._load = count, load

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> nn.Module:
        """The model after so many domains.

        Raises:
            MethodError: there is none of that number; outside a run folder there is none at all.
        """
        if self._load is None:
            raise MethodError("Earlier models are kept in a run folder (`everlearn run`), and this training has none.")
        if not -self._count <= number < self._count:
            raise MethodError(f"There is no checkpoint {number}: 0 is the base model, the last is {self._count - 1}.")
        return self._load(number % self._count).eval()


@dataclass(frozen=True)
class Reading:
    """What a model is about to be tested on, as a method sees it (``Method.test_model``).

    Attributes:
        domain: where the text comes from; None for general text and general end tasks. Only a method that declares
            ``needs.domain_id_test`` may look at it.
        learnt: names of the domains learnt so far, in order.
        objective: of the run.
        language_model: gives the plain checkpoint with its language-model head; not to be changed for good.
        batches: unlabelled text of what is tested, as the objective collates it; at most so many blocks.
        checkpoints: the models up to the one that is tested, which is the last.
    """

    domain: str | None
    learnt: tuple[str, ...]
    objective: Objective
    language_model: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


@dataclass
class Stage:
    """One domain's training, as a method sees it.

    Attributes:
        index: 1 for the first domain.
        domain: its name.
        earlier: names of the domains learnt before, in order.
        model: the model without any distributed wrapper, at the weights that the stage started from when
            ``begin_domain`` runs, and trained when ``end_domain`` runs.
        source: this domain's training blocks as the user gave them (before any method mixed anything in).
        general: blocks of the general corpus, when the recipe names one.
        batch_size: rows per batch of :meth:`batches`.
        rows_per_step: training rows of all processes and micro-batches in one optimizer step.
        seed: of the run. Hooks before and after the steps already run under a seed of their own, so plain torch
            randomness is reproducible there; what a hook of a step draws so would shift the training's dropout.
        steps: optimizer steps that this stage will take.
        step: optimizer steps that it has taken: 0 during the first one and `steps` at the end, resumed or not. It goes
            up when ``after_step`` has run.
        row: number of the first row of the present micro-batch in the stage's global order, over all processes.
        checkpoints: the models before this stage; ``checkpoints[-1]`` is the one that it starts from.
        optimizer: of the stage, once there is one.
        notes: sentences for the log and the results, such as that a pass had fewer blocks than were asked for.
        folder: where a method may keep what is dear to make again while the stage is not finished: all processes read
            it, and it is removed with the stage's checkpoints. None outside a run folder.
        log: takes a line for ``metrics.jsonl``, such as what a method measured after a step (its ``step`` is in it);
            where there is no run folder, nothing becomes of it.
        as_tested: puts back into a copy of the plain model what the methods read a text with (``Method.test_model``);
            None where a plain model is all there is. The engine sets it.
        phase: opens a phase that people see, for a loop over many rows; passes over :meth:`batches` do it themselves.
        host: the present micro-batch as it was collated, on the host, so that looking at it waits for no device; None
            where a trainer does not say.
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
    host: Batch | None = None
    _acting: str = "Reading"
    _passes: list[Generator[Batch]] = field(default_factory=list, repr=False)

    @property
    def anatomy(self) -> Anatomy:
        """Where heads, neurons and projections are; raises ``ModelError`` for an unknown architecture."""
        return anatomy(self.model)

    @property
    def first(self) -> bool:
        """Whether this is the first domain of the stream."""
        return self.index == 1

    @property
    def learning_rate(self) -> float:
        """The rate of the present step, as the schedule left it (of the first parameter group where they differ).

        Raises:
            MethodError: there is no optimizer yet.
        """
        if self.optimizer is None:
            raise MethodError("There is no learning rate before the first step: the optimizer is not made yet.")
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def answering(self) -> nn.Module:
        """What answers a text before the domain is learnt, not to be changed: the plain model, or a copy of it with
        what methods of the list have kept beside it (experts, shared adapters, prompts)."""
        return self.model if self.as_tested is None else self.as_tested(copy.deepcopy(self.model))

    @contextlib.contextmanager
    def acting(self, text: str) -> Iterator[None]:
        """Name what is done inside; the engine does it around each hook.

        Passes that were begun inside and left half-way end here; those of the caller go on.
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
        """Collated batches of the first `blocks` blocks of a seeded pass over this domain (or another source).

        The pass is separate from training: it neither moves the training data forward nor depends on where it is.
        The last batch may be smaller. Tensors are on the model's device. A pass that has fewer blocks than were asked
        for is read once, which :attr:`notes` then says.
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
        note = f"'{source.name}' has {read:,} rows, which is what methods read of it where they ask for {blocks:,}."
        if read < blocks and note not in self.notes:
            self.notes.append(note)
