"""Methods that add adapters or low-rank matrices.

A method is one file; :mod:`bottleneck` is the adapter itself, which the family `gates` uses too. What a domain adds is
an :class:`~everlearn.methods.engine.attachment.Attachment` (or a PEFT adapter) that is taken out when the stage ends:
between stages a model is a plain one, and the added tensors are the method's memory.
"""

KINDS = ("isolation",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
