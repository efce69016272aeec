"""How far each layer moved in each stage, as the run recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from everlearn.comparison.formatting import fixed
from everlearn.data.corpus import Domain
from everlearn.diagnostics.registry import Findings, analysis
from everlearn.learner import ContinualLearner
from everlearn.model.weight_movement import Moved, Movement, movements, together
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell


@analysis("movement", recorded=True)
def movement(learner: ContinualLearner) -> Findings:
    """Show how far each layer moved in each stage."""
    moved = movements(learner.folder.path)
    tables = [moved_table(moved, learner.recipe.domains)] if moved else []
    return Findings(
        [Section("How far each layer moved", _ASIDE, tables=tables)] if tables else [],
        {"moved": {stage: asdict(each) for stage, each in moved.items()}},
    )


_ASIDE = "The change of a layer's weights in each stage, and in the whole stream, relative to the weights before it."


def moved_table(moved: Mapping[int, Movement], domains: Sequence[Domain]) -> Table:
    """Return a table of how far each layer moved in each stage, and in total since the base model."""
    columns = [(domains[number - 1].name, each.since_before) for number, each in moved.items()]
    columns += [("since the base", each.since_base) for each in list(moved.values())[-1:]]
    by_layer = [(name, together(parts or ())) for name, parts in columns]
    layers = dict.fromkeys(layer for _, movement in by_layer for layer in movement)
    return Table(
        "How far each layer moved, ‖ΔW‖/‖W‖",
        ("Layer", *(name for name, _ in by_layer)),
        tuple((layer, tuple(TableCell(_percent(movement.get(layer))) for _, movement in by_layer)) for layer in layers),
    )


def _percent(part: Moved | None) -> str:
    return "–" if part is None or part.relative is None else f"{fixed(100 * part.relative, 2)} %"
