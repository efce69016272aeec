"""Methods that hold back a part of the update.

A method is one file; a mask is a factor for each parameter, made once for a stage or anew for each step, and applied by
the engine to the gradient or to the update. The parts of DAS (its options, its mask, its contrast) are files of their
own because its variants differ in them.
"""

KINDS = ("isolation",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
