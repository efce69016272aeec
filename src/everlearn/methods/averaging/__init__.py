"""Methods that train plainly and end a domain with weights between the initial and the trained ones.

Nothing is added to a step, and nothing is stored besides the checkpoints of the stages. Existing models are merged by
``everlearn merge`` (:mod:`everlearn.merging`).
"""

KINDS = ("prior-focused",)
