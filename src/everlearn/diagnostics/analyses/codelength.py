"""Online codelength of the training text, as the run logged it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from everlearn.comparison.formatting import MISSING, fixed
from everlearn.comparison.training_log import in_stages
from everlearn.diagnostics.registry import Findings, analysis
from everlearn.evaluation.estimate import number
from everlearn.evaluation.results import StageFacts, read
from everlearn.learner import ContinualLearner
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell
from everlearn.tasks.held_out import HeldOut

if TYPE_CHECKING:
    from everlearn.run.folder import RunFolder


_TENTH = 0.1
"""Share of the steps in the columns `first tenth` and `last tenth`."""


@dataclass(frozen=True)
class Prequential:
    """The codelength of a domain's text.

    Attributes:
        domain: name of the domain.
        steps: number of steps of the first pass over the text; of all passes if their length is unknown.
        once: whether these are the steps of the first pass; false for streams.
        nats: mean nats per label.
        bits_per_byte: bits per byte of text; None if the bytes are unknown because nothing is held out.
        first: bits per byte (nats if bytes are unknown) over the first tenth of the steps.
        last: the same over the last tenth.
    """

    domain: str
    steps: int
    once: bool
    nats: float
    bits_per_byte: float | None
    first: float
    last: float


def prequential(run: RunFolder) -> list[Prequential]:
    """Return the codelength of every stage that has a training log."""
    logged: dict[int, dict[int, float]] = {}
    for stage, step, line in in_stages(run.metrics()):
        if (loss := number(line.get("loss"))) is not None:
            logged.setdefault(stage, {})[step] = loss
    codelengths = []
    for index, domain in enumerate(run.recipe().domains, 1):
        place = run.stage(index, domain.name) / "stage.json"
        if logged.get(index) and place.is_file():
            held_out = run.sets / f"{domain.name}.safetensors"
            width = HeldOut.load(held_out).bytes_per_token if held_out.is_file() else None
            codelengths.append(_of_stage(domain.name, logged[index], read(StageFacts, place).pass_steps, width))
    return codelengths


def _of_stage(domain: str, losses: dict[int, float], pass_steps: int | None, width: float | None) -> Prequential:
    """Return the codelength of a stage; each logged loss is the mean since the previous line."""
    steps = sorted(losses)
    if pass_steps is not None:
        steps = [step for step in steps if step <= pass_steps] or steps[:1]
    lines = [(step - before, losses[step]) for before, step in zip([0, *steps], steps, strict=False)]
    scale = 1.0 if width is None else 1 / (math.log(2) * width)
    nats = _mean(lines)
    return Prequential(
        domain,
        steps[-1],
        pass_steps is not None and steps[-1] <= pass_steps,
        nats,
        None if width is None else nats * scale,
        scale * _mean(_until(lines, _TENTH * steps[-1])),
        scale * _mean(_until(lines[::-1], _TENTH * steps[-1])),
    )


def _until(lines: list[tuple[int, float]], steps: float) -> list[tuple[int, float]]:
    """Return the first lines that cover at least `steps` steps."""
    chosen: list[tuple[int, float]] = []
    for line in lines:
        if chosen and sum(count for count, _ in chosen) >= steps:
            break
        chosen.append(line)
    return chosen


def _mean(lines: list[tuple[int, float]]) -> float:
    return sum(count * loss for count, loss in lines) / sum(count for count, _ in lines)


def table(stages: list[Prequential]) -> Table:
    """Make a table with a row for each stage."""
    rows = []
    for each in stages:
        numbers = (each.bits_per_byte, *((each.first, each.last) if each.bits_per_byte is not None else (None, None)))
        cells = [TableCell(fixed(value)) for value in (*numbers, each.nats)]
        steps = f"{each.steps:,}" if each.once else f"{each.steps:,} (all: passes are not known)"
        rows.append((each.domain, (*cells, TableCell(steps))))
    header = ("Domain", "bits/byte", "first tenth", "last tenth", "nats/label", "steps of the first pass")
    caption = (
        f"Each batch is scored before it is learnt from, with dropout as in training. {MISSING}: bytes are not known."
    )
    return Table("Online codelength of the training text", header, tuple(rows), caption)


@analysis("codelength", recorded=True)
def codelength(learner: ContinualLearner) -> Findings:
    """Show the online codelength of the training text: each batch scored before it was learnt from."""
    stages = prequential(learner.folder)
    sections = [Section("Codelength of the training text", tables=[table(stages)])] if stages else []
    return Findings(sections, {"online_codelength": [asdict(each) for each in stages]})
