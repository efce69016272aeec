"""Methods that prepend trained vectors to a text.

A method is one file; :mod:`domain_prompt` is the prompt itself. It is attached for a stage or a test like an adapter,
does not change the positions of labels, and declares by how much it shortens the longest input.
"""

KINDS = ("isolation",)
"""Kinds of its methods, unless a class sets its own (:data:`everlearn.methods.base.KINDS`)."""
