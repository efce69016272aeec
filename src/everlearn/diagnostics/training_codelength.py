"""The training curve as a codelength: what it takes to send a domain's text by a model that learns on the way.

Each batch is scored before the update that it causes, so the mean of the training losses over the first pass is the
online (prequential) codelength of its labels, in bits a byte (A. P. Dawid 1984; arXiv 1901.11373). It costs nothing.
Dropout, which is on while training, makes it larger than the code of the same model would be, and a masked model sends
the masked tokens alone. From the second pass on text is no news, and is left out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from everlearn.comparison.formatting import MISSING, fixed
from everlearn.evaluation.estimate import number
from everlearn.evaluation.results import StageFacts, read
from everlearn.report.tables import Table, TableCell
from everlearn.tasks.held_out import HeldOut

if TYPE_CHECKING:
    from everlearn.run.folder import RunFolder

_FIRST = 0.1
"""Of the steps: how well the text was known when it began to be learnt."""


@dataclass(frozen=True)
class Prequential:
    """A domain's text as it was learnt.

    Attributes:
        domain: its name.
        steps: that count: of the first pass.
        once: whether these are known to be of the first pass; not in streams.
        nats: mean over the labels.
        bits_per_byte: the same in bits a byte of text; None where nothing is held out, so that bytes are not known.
        first: bits a byte (nats where these are not known) over the first tenth of the steps.
        last: over the last tenth.
    """

    domain: str
    steps: int
    once: bool
    nats: float
    bits_per_byte: float | None
    first: float
    last: float

    def to_json(self) -> dict[str, Any]:
        """For another program."""
        return asdict(self)


def prequential(run: RunFolder) -> list[Prequential]:
    """Of every stage that has a training log."""
    logged: dict[int, dict[int, float]] = {}
    for line in run.metrics():
        stage, step = number(line.get("stage")), number(line.get("step"))
        loss = number(line.get("loss"))
        if stage is not None and step is not None and loss is not None:
            logged.setdefault(int(stage), {})[int(step)] = loss
    found = []
    for index, domain in enumerate(run.recipe().domains, 1):
        place = run.stage(index, domain.name) / "stage.json"
        if logged.get(index) and place.is_file():
            held_out = run.sets / f"{domain.name}.safetensors"
            width = HeldOut.load(held_out).bytes_per_token if held_out.is_file() else None
            found.append(_of_stage(domain.name, logged[index], read(StageFacts, place).pass_steps, width))
    return found


def _of_stage(domain: str, losses: dict[int, float], pass_steps: int | None, width: float | None) -> Prequential:
    """Each line is the mean since the line before."""
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
        scale * _mean(_until(lines, _FIRST * steps[-1])),
        scale * _mean(_until(lines[::-1], _FIRST * steps[-1])),
    )


def _until(lines: list[tuple[int, float]], steps: float) -> list[tuple[int, float]]:
    """The first lines that cover so many steps."""
    found: list[tuple[int, float]] = []
    for line in lines:
        if found and sum(count for count, _ in found) >= steps:
            break
        found.append(line)
    return found


def _mean(lines: list[tuple[int, float]]) -> float:
    return sum(count * loss for count, loss in lines) / sum(count for count, _ in lines)


def table(found: list[Prequential]) -> Table:
    """A row a stage."""
    rows = []
    for each in found:
        numbers = (each.bits_per_byte, *((each.first, each.last) if each.bits_per_byte is not None else (None, None)))
        cells = [TableCell(fixed(value)) for value in (*numbers, each.nats)]
        steps = f"{each.steps:,}" if each.once else f"{each.steps:,} (all: passes are not known)"
        rows.append((each.domain, (*cells, TableCell(steps))))
    header = ("Domain", "bits/byte", "first tenth", "last tenth", "nats/label", "steps of the first pass")
    caption = (
        f"Each batch scored before it is learnt from, with dropout as in training. {MISSING}: bytes are not known."
    )
    return Table("Online codelength of the training text", header, tuple(rows), caption)
