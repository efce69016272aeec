"""How large the weights of each stage are."""

from everlearn.diagnostics.registry import analysis
from everlearn.learner import ContinualLearner
from everlearn.report.sections import Section
from everlearn.report.tables import Table, TableCell


@analysis("norms")
def norms(learner: ContinualLearner) -> Section:
    """Show the norm of all weights after each stage."""
    rows = []
    for index in range(len(learner.recipe.domains) + 1):
        weights = learner.model_after(index).parameters()
        norm = sum(float(weight.detach().double().square().sum()) for weight in weights) ** 0.5
        rows.append((str(index), (TableCell(f"{norm:.4f}"),)))
    return Section("Norms", "The root of the sum of squares.", tables=[Table("Norm", ("Stage", "Norm"), tuple(rows))])
