"""What two checkpoints differ in, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from everlearn.diagnostics.diff.tasks import TaskDifference
from everlearn.diagnostics.diff.texts import TextDifference
from everlearn.diagnostics.diff.verdict import Word, judge
from everlearn.model.movement import Moved, together, whole


@dataclass(frozen=True)
class ComparedModels:
    """What two checkpoints differ in.

    Attributes:
        before: label of the earlier one.
        after: of the later one.
        kind: masked, causal or text-to-text.
        block_size: tokens of a row.
        tolerated: bits per byte that a text may lose before it counts as forgotten.
        texts: the difference on each text.
        tasks: on each end task.
        layers: how far each part of each layer moved; None where the weights cannot be compared.
        notes: sentences that a reader should know.
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
        """Text or task → forgot, lost within tolerance, learnt, no difference or unknown."""
        of_texts = {text.name: judge(text.difference, self.tolerated) for text in self.texts}
        return of_texts | {task.name: judge(task.loss) for task in self.tasks}

    def to_json(self) -> dict[str, Any]:
        """For another program."""
        parts = self.layers
        layers = [] if parts is None else [*together(parts).values(), whole(parts)]
        return {
            **{name: getattr(self, name) for name in ("before", "after", "kind", "block_size", "tolerated")},
            "texts": [{"verdict": self.verdicts[text.name], **text.to_json()} for text in self.texts],
            "tasks": [{"verdict": self.verdicts[task.name], **task.to_json()} for task in self.tasks],
            "layers": parts
            and [
                {"layer": part.layer or "all", "relative": part.relative, "cosine": part.cosine, "share": part.share}
                for part in layers
            ],
            "parts": parts and [asdict(part) for part in parts],
            "notes": self.notes,
        }
