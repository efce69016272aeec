"""Merge the weights of several models into one, after training, tensor by tensor from disk.

A merging method is one class (:mod:`base` is their interface; :mod:`means`, :mod:`task_vectors`), which
gets the same tensor of every checkpoint in float64. :mod:`checkpoints` opens the checkpoints and refuses those that do
not fit together, :mod:`measurement` measures losses or Fisher information for weights, :mod:`writing` writes the result
like ``save_pretrained``.
"""

from everlearn.merging import means, task_vectors  # noqa: F401  registers their methods
from everlearn.merging.base import MERGE_METHODS, MergeMethod, TensorGroup, make_merge_method
from everlearn.merging.checkpoints import Opened, open_checkpoints
from everlearn.merging.means import WiSELine
from everlearn.merging.measurement import Measurements, measure
from everlearn.merging.writing import MergedModel, write_merged

__all__ = [
    "MERGE_METHODS",
    "Measurements",
    "MergeMethod",
    "MergedModel",
    "Opened",
    "TensorGroup",
    "WiSELine",
    "make_merge_method",
    "measure",
    "open_checkpoints",
    "write_merged",
]
