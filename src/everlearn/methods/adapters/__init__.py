"""Methods that add adapters or low-rank matrices.

A method is one file; :mod:`bottleneck` is the adapter itself, which the family `gates` uses too. The added modules are
an :class:`~everlearn.methods.engine.attachment.Attachment` (or a PEFT adapter) that is removed when the stage ends:
between stages a model is plain, and the added tensors are the memory of the method.
"""

KINDS = ("isolation",)
