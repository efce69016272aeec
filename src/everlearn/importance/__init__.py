"""What matters to a model: exact gradients of unit gates, Fisher information, output magnitudes."""

from everlearn.importance.absolute import absolute_gradients
from everlearn.importance.fisher import fisher
from everlearn.importance.magnitude import OutputMagnitude
from everlearn.importance.proxy import general_importance, proxy_kl_per_sample
from everlearn.importance.scores import accumulate, normalise
from everlearn.importance.units import unit_importance

__all__ = [
    "OutputMagnitude",
    "absolute_gradients",
    "accumulate",
    "fisher",
    "general_importance",
    "normalise",
    "proxy_kl_per_sample",
    "unit_importance",
]
