"""Methods that keep the outputs of the model close to those of an earlier model.

A method is one file; :mod:`teacher` provides a frozen model that computes like the trained one (same precision, without
its adapters), for every family. A teacher costs a copy of the weights and a forward pass, which the method declares.
"""

KINDS = ("data-focused",)
"""Kinds of its methods, unless a class sets its own (:data:`everlearn.methods.base.KINDS`)."""
