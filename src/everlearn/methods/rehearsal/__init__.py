"""Methods that train on old text again.

A method is one file. Stored rows are sampled by a :class:`~everlearn.data.reservoir.Reservoir`, seeded by names, and
are the memory of the method; the rows mixed into training have an exact share of the tokens
(:class:`~everlearn.data.mixing.Mixture`) or, as extra rows of a step, are declared as cost. Such a method declares
``needs.old_data``.
"""

KINDS = ("replay",)
"""Kinds of its methods, unless a class sets its own (:data:`everlearn.methods.base.KINDS`)."""
