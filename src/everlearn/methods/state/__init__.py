"""Save, load and check the state that the class of a method declares.

    class NearBase(Method):
        _anchor = Tensors("anchor/", parameters=True)
        _learnt = Fact("domains", list[str], beside="_anchor")

``_anchor`` is {} at first and saved as "anchor/<name>"; ``_learnt`` is [] at first. A memory is refused, with the file
and the key in the message, if it has an unknown key, another type, NaN or infinity, other names or shapes than the
trained parameters, or only one of the two.
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
