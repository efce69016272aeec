"""Methods that grow the model.

A method is one file; :mod:`growth` creates a larger model that computes the same function as the smaller one, or as
closely as the architecture allows (see its docstring), and :mod:`recovery` adds a teacher to the loss inside a forward
pass. A method declares from which stage on it grows (``grows``), since other methods may depend on shapes.
"""

KINDS = ("isolation",)
"""Kinds of its methods, unless a class sets its own (:data:`everlearn.methods.base.KINDS`)."""
