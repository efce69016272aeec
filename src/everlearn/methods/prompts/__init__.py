"""Methods that put trained vectors in front of a text.

A method is one file; :mod:`domain_prompt` is the prompt itself. It is attached for a stage or a test like an adapter,
changes no position of the text's own labels, and says how many positions it takes from the longest input.
"""

KINDS = ("isolation",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
