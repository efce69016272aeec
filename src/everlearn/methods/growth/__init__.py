"""Methods that grow the model.

A method is one file; :mod:`growth` promises a larger model that computes what the smaller one did, or as near as the
architecture allows (its docstring says how near), and :mod:`recovery` a teacher's word inside a forward pass. A method
here says from which stage it grows (``grows``), since others may hold on to shapes.
"""

KINDS = ("isolation",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
