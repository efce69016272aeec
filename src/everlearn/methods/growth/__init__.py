"""Methods that grow the model.

:mod:`net2net` creates a larger model that computes the same function as the smaller one, or as closely as the
architecture allows (see its docstring), and :mod:`recovery` adds a teacher to the loss inside a forward pass. A method
declares from which stage on it grows (``grows``), since other methods may depend on shapes.
"""

KINDS = ("isolation",)
