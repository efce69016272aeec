"""Methods that train on old text again.

Stored rows are sampled by a :class:`~everlearn.data.reservoir.Reservoir`, seeded by names, and are the memory of the
method. Replayed rows have an exact share of the training tokens (:class:`~everlearn.data.mixing.Mixture`) or, as extra
rows of a step, are declared as cost. A method that stores text declares ``needs.old_data``.
"""

KINDS = ("replay",)
