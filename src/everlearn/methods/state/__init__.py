"""The state of a method: what its class declares is saved, loaded and checked by one rule.

    class NearBase(Method):
        _anchor = Tensors("anchor/", parameters=True)
        _learnt = Fact("domains", list[str], beside="_anchor")

``_anchor`` is {} at first and saved as "anchor/<name>"; ``_learnt`` is [] at first. A memory with an unknown key,
another type, NaN or infinity, other names or shapes than the trained parameters, or with only one of the two is refused
with a sentence that names the file and the key.
"""

from everlearn.methods.state.facts import Fact, Nested
from everlearn.methods.state.memory import Kind, Memory, MemoryReader
from everlearn.methods.state.piece import StatePiece, fit_state, load_state, save_state
from everlearn.methods.state.rows import TextRows
from everlearn.methods.state.tensors import ByDomain, OneTensor, Tensors

__all__ = [
    "ByDomain",
    "Fact",
    "Kind",
    "Memory",
    "MemoryReader",
    "Nested",
    "OneTensor",
    "StatePiece",
    "Tensors",
    "TextRows",
    "fit_state",
    "load_state",
    "save_state",
]
