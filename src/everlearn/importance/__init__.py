"""Importance measures: exact gradients of unit gates, Fisher information, and output magnitudes."""

from everlearn.importance.curvature import label_directions, label_fisher, labels_of_the_model
from everlearn.importance.fisher_forms import Diagonal, Importance, Kronecker, kronecker_fisher
from everlearn.importance.gradient_moments import gradient_moment
from everlearn.importance.magnitude import OutputMagnitude
from everlearn.importance.normalisation import accumulate, normalise
from everlearn.importance.proxy import general_importance, proxy_kl_per_sample
from everlearn.importance.training_fisher import TrainingFisher
from everlearn.importance.units import unit_importance

__all__ = [
    "Diagonal",
    "Importance",
    "Kronecker",
    "OutputMagnitude",
    "TrainingFisher",
    "accumulate",
    "general_importance",
    "gradient_moment",
    "kronecker_fisher",
    "label_directions",
    "label_fisher",
    "labels_of_the_model",
    "normalise",
    "proxy_kl_per_sample",
    "unit_importance",
]
