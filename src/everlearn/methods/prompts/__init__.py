"""Methods that prepend trained vectors to a text.

:mod:`soft_prompt` and :mod:`domain_prompt` are the prompts themselves. A prompt is attached for a stage or a test like
an adapter, does not change the positions of labels, and declares by how much it shortens the longest input.
"""

KINDS = ("isolation",)
