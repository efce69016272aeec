"""What matters to a model: unit gates and their exact gradients, Fisher information, output magnitudes."""

from everlearn.importance.fisher import fisher
from everlearn.importance.gates import Gates, row_gates
from everlearn.importance.magnitude import OutputMagnitude
from everlearn.importance.proxy import general_importance, proxy_kl_per_sample
from everlearn.importance.scores import accumulate, normalise
from everlearn.importance.units import unit_importance

__all__ = [
    "Gates",
    "OutputMagnitude",
    "accumulate",
    "fisher",
    "general_importance",
    "normalise",
    "proxy_kl_per_sample",
    "row_gates",
    "unit_importance",
]
