"""Online codelength of the training text, as the run logged it."""

from __future__ import annotations

from everlearn.diagnostics.registry import Findings, analysis
from everlearn.diagnostics.training_codelength import prequential, table
from everlearn.learner import ContinualLearner
from everlearn.report.sections import Section


@analysis("codelength", recorded=True)
def codelength(learner: ContinualLearner) -> Findings:
    """Show the online codelength of the training text: each batch scored before it was learnt from."""
    found = prequential(learner.folder)
    sections = [Section("Codelength of the training text", tables=[table(found)])] if found else []
    return Findings(sections, {"online_codelength": [each.to_json() for each in found]})
