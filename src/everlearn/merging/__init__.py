"""Merge the weights of several models into one, after training, tensor by tensor from disk.

A merging method is one class (:mod:`ways`, :mod:`task_vectors`, :mod:`between`), which gets the same tensor of every
checkpoint in float64. :mod:`checkpoints` opens the checkpoints and refuses those that do not fit together,
:mod:`evidence` measures losses or Fisher information for weights, :mod:`writing` writes the result like
``save_pretrained``.
"""

from everlearn.merging import between, task_vectors  # noqa: F401  registers their methods
from everlearn.merging.checkpoints import Opened, open_checkpoints
from everlearn.merging.evidence import Evidence, measure
from everlearn.merging.ways import WAYS, Same, Way, WiSELine, make_way
from everlearn.merging.writing import MergedModel, write_merged

__all__ = [
    "WAYS",
    "Evidence",
    "MergedModel",
    "Opened",
    "Same",
    "Way",
    "WiSELine",
    "make_way",
    "measure",
    "open_checkpoints",
    "write_merged",
]
