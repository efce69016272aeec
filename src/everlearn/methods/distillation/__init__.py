"""Methods that stay near what an earlier model made of a text.

A method is one file; :mod:`teacher` promises a frozen model that computes as the trained one does (its precision, its
adapters aside), for every family. A teacher costs a copy of the weights and a forward pass, which the method declares.
"""

KINDS = ("data-focused",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
