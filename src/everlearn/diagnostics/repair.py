"""Find the largest part of an update at which a text known before loses no more than a budget.

On the line θ(s) = θ_old + s (θ_new − θ_old), with L the loss in bits per byte,

    s* = the largest s in [0, 1] with L(θ(s)) − L(θ_old) ≤ budget

on one half of the held-out text, the calibration half. The loss at s* is then measured on the other half, which the
search did not use. The loss need not increase along the whole line, so the search goes back from s = 1 in equal steps
until one is within the budget, and bisects the last step from there, with forward passes only. (The gate of arXiv
2510.16089 bisects a scale for each single edit.)
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from everlearn.data.blocks import PackedBlocks
from everlearn.data.columns import split_to_read
from everlearn.data.corpus import Corpus
from everlearn.data.prepare import prepare
from everlearn.data.tokenize import Encoder
from everlearn.diagnostics.checkpoint_distance import Pair, limited, pair_of
from everlearn.diagnostics.interpolation import (
    BEFORE,
    LEARNT,
    blender,
    check_in_weights,
    ends_of,
    everywhere,
    looked_at_once,
)
from everlearn.errors import DataError, RecipeError, did_you_mean
from everlearn.evaluation import METRICS, Cell, resample
from everlearn.evaluation.build import BASE
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.held_out_rows import facts_of_rows
from everlearn.learner import ContinualLearner
from everlearn.merging import MergedModel, WiSELine, open_checkpoints, write_merged
from everlearn.options import path_or_id
from everlearn.run.progress import Reporter
from everlearn.run.writable import check_new
from everlearn.tasks.held_out import HeldOut, HeldOutText

if TYPE_CHECKING:
    from everlearn.run.scoring import Scorer

STEPS, PRECISION = 8, 0.01
"""Number of equal steps from s = 1; length at which bisection stops."""
METRIC = METRICS["bits_per_byte"]
TEXT = "text"
"""Name of a text that is given by its path."""


@dataclass(frozen=True)
class Remains:
    """The remaining gain of a domain at the step.

    Attributes:
        role: known before the update, or learnt in it.
        learnt: gain of the complete update in bits per byte (below 0: lost).
        left: gain at the step in bits per byte.
        share: the second over the first; unknown if the two ends do not clearly differ.
    """

    role: str
    learnt: Estimate
    left: Estimate
    share: Estimate


@dataclass(frozen=True)
class Repair:
    """The result of the search.

    Attributes:
        since: label of the earlier checkpoint.
        until: label of the later checkpoint.
        text: the held-out set to which the budget applies.
        budget: bits per byte that it may lose.
        sure: whether the upper end of the loss's 95 % interval, rather than its mean, had to be within the budget.
        step: s*.
        curve: s → bits per byte lost on the calibration half, in the order of the search.
        blocks: number of blocks of the calibration half, and of the other half.
        whole: loss of the complete update, on the other half.
        lost: loss at s*, on the other half.
        remains: domain → its remaining gain.
    """

    since: str
    until: str
    text: str
    budget: float
    sure: bool
    step: float
    curve: dict[float, Estimate]
    blocks: tuple[int, int]
    whole: Estimate
    lost: Estimate
    remains: dict[str, Remains] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Return whether the budget holds on the half that the search did not use."""
        return _number(self.lost.value) <= self.budget

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        curve = [{"step": step, **asdict(lost)} for step, lost in sorted(self.curve.items())]
        return {**asdict(self), "curve": curve, "kept": self.kept}


def largest_step(lost: Callable[[float], float], budget: float) -> float:
    """Return the largest s in [0, 1] at which at most `budget` is lost; it is at most :data:`PRECISION` too low.

    Args:
        lost: s → loss; 0 at s = 0. It is called once for each s.
        budget: 0 or more.
    """
    beyond = within = 1.0
    while within > 0 and lost(within) > budget:
        beyond, within = within, within - 1 / STEPS
    while beyond - within > PRECISION:
        middle = (beyond + within) / 2
        if lost(middle) > budget:
            beyond = middle
        else:
            within = middle
    return within


def repair(
    run: str | Path,
    budget: float,
    folder: str | Path | None = None,
    *,
    on: str | None = None,
    text: str | Path | None = None,
    since: str = BASE,
    until: str | None = None,
    blocks: int | None = None,
    sure: bool = False,
    reporter: Reporter | None = None,
) -> Repair:
    """Find how much of a run's weight update can be kept if a text may lose at most `budget` bits per byte.

    The update is scaled by a factor between 0 and 1; nothing is trained.

    ```python
    found = everlearn.repair("runs/first", 0.02, "repaired")
    ```

    Args:
        run: the run's folder, which is not changed.
        budget: bits per byte that the text may lose.
        folder: new folder for the repaired model, in the form of ``save_pretrained``. Default: write nothing.
        on: the held-out set to which the budget applies. Default: the run's general text.
        text: another text for the budget, instead of `on`: a file, a folder, or a hub id.
        since: start of the update: a domain, or `base`.
        until: its end. Default: the last stage.
        blocks: maximum blocks of each held-out set; half of those of the budgeted set are used for the search.
        sure: require the upper end of the loss's 95 % interval to be within the budget.
        reporter: shows progress; None for no output.

    Raises:
        RecipeError: there is no such set or stage, or no text at all, or the budget is negative or not finite.
        MethodError: a method evaluates with more than the checkpoint.
        ModelError: the model grew, or a stage's weights were removed.
        RunError: there is no such run, or `folder` exists already.
    """
    if on is not None and text is not None:
        raise RecipeError("`on` names a held-out set of the run, and `text` a text in its place. Leave one out.")
    if folder is not None:
        check_new(Path(folder))
    learner = ContinualLearner.open(run, reporter)
    pair = pair_of(learner, since, until)
    result = search_repair(learner, pair, budget, on=on, text=text, blocks=blocks, sure=sure)
    if folder is not None:
        save_repaired(learner, pair, result, Path(folder))
    return result


def search_repair(
    learner: ContinualLearner,
    pair: Pair,
    budget: float,
    *,
    on: str | None = None,
    text: str | Path | None = None,
    blocks: int | None = None,
    sure: bool = False,
) -> Repair:
    """Search for the largest step, and measure its loss and the domains' remaining gains; the run is not changed.

    Args:
        learner: learner of a run whose two stages have their weights.
        pair: the two stages.
        budget: as in :func:`repair`, like the other options.
        on: the held-out set to which the budget applies.
        text: another text for the budget.
        blocks: maximum blocks of each held-out set.
        sure: require the upper end of the interval to be within the budget.

    Raises:
        RecipeError: there is no such set, or no text at all, or the budget is negative or not finite.
        MethodError: a method evaluates with more than the checkpoint.
        ModelError: the model grew, or a stage's weights were removed.
    """
    if not (math.isfinite(budget) and budget >= 0):
        raise RecipeError(f"`--budget` is {budget}; it must be a finite number of bits per byte, 0 or more.")
    text = None if text is None else path_or_id(text, "--text")
    check_in_weights(learner, "repair a run whose methods leave plain models")
    scorer = learner.scorer()
    with tempfile.TemporaryDirectory() as thrown_away:
        path = _budgeted(learner, scorer, on, text, Path(thrown_away))
        search, test = (HeldOutText(path, None, blocks, half) for half in (0, 1))
        own = None if text is not None else path.stem  # a domain may have the same name as the given text
        others = [limited(scorer, n, blocks or 2**31) for n in scorer.names() if n in scorer.domains and n != own]
        how, folder = scorer.conditions(pair.until), scorer.shared_folder()
        old, model = ends_of(learner, pair)
        since, until = pair.labels(learner)
        curve: dict[float, Estimate] = {}
        with (
            blender(model, old) as put,
            learner.reporter.activity(f"From {since} to {until}", STEPS + 6) as done,
        ):

            def look(step: float, *tasks: HeldOutText) -> list[Cell]:
                put(everywhere(step))
                return looked_at_once(folder, model, tasks, how)

            (start,) = look(0.0, search)

            def lost(step: float) -> float:
                (cell,) = look(step, search)
                curve[step] = _lost(start, cell)
                done(len(curve))
                return _number(curve[step].high if sure else curve[step].value)

            step = largest_step(lost, budget)
            before, at, after = (look(s, test, *others) for s in (0.0, step, 1.0))
    cells_of = {task.name: cells for task, *cells in zip(others, before[1:], at[1:], after[1:], strict=True)}
    return Repair(
        since,
        until,
        path.stem,
        budget,
        sure,
        step,
        curve,
        (len(search.held_out.blocks), len(test.held_out.blocks)),
        _lost(before[0], after[0]),
        _lost(before[0], at[0]),
        {
            name: _remains(BEFORE if scorer.domains.index(name) < pair.since else LEARNT, *cells)
            for name, cells in cells_of.items()
            if scorer.domains.index(name) < pair.until
        },
    )


def save_repaired(learner: ContinualLearner, pair: Pair, result: Repair, folder: Path) -> MergedModel:
    """Write the model at the step as ``save_pretrained`` would, reading tensors one by one from the stages.

    Args:
        learner: learner of the run.
        pair: the two stages.
        result: the result of :func:`search_repair`.
        folder: a new folder.
    """
    with tempfile.TemporaryDirectory() as thrown_away:
        scratch = Path(thrown_away)
        ends = [(label, learner.saved_after(index, scratch / f"from-{index}"))
                for label, index in zip(pair.labels(learner), (pair.since, pair.until), strict=True)]  # fmt: skip
        base, model = open_checkpoints(ends, scratch)
        method = WiSELine(alpha=result.step)
        return write_merged(folder, method, [model], base, more={"repair": result.to_json()})


def _budgeted(
    learner: ContinualLearner, scorer: Scorer, on: str | None, text: str | Path | None, scratch: Path
) -> Path:
    """Return the file with the blocks of the text to which the budget applies."""
    if text is not None:
        format_ = learner.setting()
        prepared = prepare(
            Corpus(path=str(text), split=split_to_read(str(text), "--text")),
            format_.tokenizer,
            format_.kind,
            format_.block_size,
            seed=learner.recipe.run.seed,
            cache=learner.recipe.data.cache,
            name=TEXT,
            isolated=format_.objective.isolate,
        )
        if not isinstance(prepared.train, PackedBlocks):
            raise DataError(f"`--text` is '{text}', which is a stream. Name a file.")
        path = scratch / f"{TEXT}.safetensors"
        every, encoder = np.arange(len(prepared.train)), Encoder(format_.tokenizer, format_.kind)
        rows = facts_of_rows(prepared.train, every, encoder, prepared.bytes_per_token, in_order=True)
        HeldOut(prepared.train, prepared.bytes_per_token, rows).save(path)
        return path
    general = learner.recipe.general
    name = on or (general.name if general is not None else None)
    if name is None:
        raise RecipeError(
            "The run has no general text (`general`) to which a budget could apply: name a text (`--text FILE`)."
        )
    if name not in scorer.names():
        raise RecipeError(
            f"`--on` is '{name}', which is not a held-out set of the run.{did_you_mean(name, scorer.names())}"
        )
    return scorer.held_out(name).path


def _lost(before: Cell, after: Cell) -> Estimate:
    """Return the loss in bits per byte, with its interval over the held-out text, paired."""
    return resample([before, after], [METRIC], seed=("repair", before.task))[METRIC.name].change()


def _remains(role: str, before: Cell, at: Cell, after: Cell) -> Remains:
    scores = resample([before, at, after], [METRIC], seed=("repair", before.task))[METRIC.name]
    learnt, share = scores.change(0, 2), Estimate()
    if learnt.sign:
        share = scores.estimate(lambda u: (u[..., 0] - u[..., 1]) / (u[..., 0] - u[..., 2]))
    return Remains(role, learnt, scores.change(0, 1), share)


def _number(value: float | None) -> float:
    return float("inf") if value is None else value
