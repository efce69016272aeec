"""Hold the differences between two checkpoints as data, and judge them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from everlearn.diagnostics.diff.tasks import TaskDifference
from everlearn.diagnostics.diff.texts import TextDifference
from everlearn.evaluation.estimate import Estimate
from everlearn.model.weight_movement import Moved, together, total_movement

VANISHING = 0.0005
"""Bits per byte that three decimals do not show; differences between number formats and kernels are smaller."""
Word = Literal["forgot", "lost within tolerance", "learnt", "no difference", "unknown"]


def judge(worse: Estimate, tolerated: float = 0.0) -> Word:
    """Return the verdict on a difference.

    Args:
        worse: how much worse the later model is, with the interval of a paired bootstrap.
        tolerated: a loss is within tolerance if its interval lies below this.
    """
    if worse.value is None or worse.sign is None:
        return "unknown"
    if abs(worse.value) < VANISHING:
        return "no difference"
    if worse.sign > 0:
        return "lost within tolerance" if worse.above(tolerated) is False else "forgot"
    return "learnt" if worse.sign < 0 else "no difference"


@dataclass(frozen=True)
class ComparedModels:
    """The differences between two checkpoints.

    Attributes:
        before: label of the earlier model.
        after: label of the later model.
        kind: masked, causal or text-to-text.
        block_size: tokens per row.
        tolerated: bits per byte: a text does not count as forgotten if the whole interval of its loss lies below.
        texts: the difference on each text.
        tasks: the difference on each end task.
        layers: how far each part of each layer moved; None if the weights cannot be compared.
        notes: sentences for the reader.
    """

    before: str
    after: str
    kind: str
    block_size: int
    tolerated: float
    texts: list[TextDifference]
    tasks: list[TaskDifference]
    layers: list[Moved] | None
    notes: list[str] = field(default_factory=list)

    @property
    def verdicts(self) -> dict[str, Word]:
        """Return the verdict on each text and task: forgot, lost within tolerance, learnt, no difference or unknown."""
        of_texts = {text.name: judge(text.difference, self.tolerated) for text in self.texts}
        return of_texts | {task.name: judge(task.loss) for task in self.tasks}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        parts = self.layers
        layers = [] if parts is None else [*together(parts).values(), total_movement(parts)]
        return {
            **{name: getattr(self, name) for name in ("before", "after", "kind", "block_size", "tolerated")},
            "texts": [{"verdict": self.verdicts[text.name], **asdict(text)} for text in self.texts],
            "tasks": [{"verdict": self.verdicts[task.name], **asdict(task)} for task in self.tasks],
            "layers": parts
            and [
                {"layer": part.layer or "all", "relative": part.relative, "cosine": part.cosine, "share": part.share}
                for part in layers
            ],
            "parts": parts and [asdict(part) for part in parts],
            "notes": self.notes,
        }
