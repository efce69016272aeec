"""Methods that add a penalty on the weights to the loss.

:mod:`penalty` is importance × anchor × norm: a method says in one file what its importance is; anchors and norms
(:mod:`norms`) are options, and published choices of them are variants, not files. What matters is measured when a
domain ends and kept as memory; the penalty is computed in each step from the parameters as this process holds them.
:mod:`adaptation` is such a penalty beside a teacher.
"""

KINDS = ("prior-focused",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
