"""Methods that add a penalty on the weights to the loss.

A method is one file: what matters is measured when a domain ends and kept as memory, the penalty is computed in each
step from the parameters as this process holds them.
"""

KINDS = ("prior-focused",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
