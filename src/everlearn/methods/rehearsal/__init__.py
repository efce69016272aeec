"""Methods that train on old text again.

A method is one file. What is kept is drawn by a :class:`~everlearn.data.reservoir.Reservoir`, seeded by names, and is
the method's memory; what is mixed into training is exact to its share of the tokens
(:class:`~everlearn.data.mixing.Mixture`) or, as extra rows of a step, declared as cost. Such a method declares
``needs.old_data``.
"""

KINDS = ("replay",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
