"""Methods that keep the outputs of the model close to those of an earlier model.

:mod:`teacher` provides a frozen model with the precision of the trained one and without its adapters, for all families.
A teacher costs a copy of the weights and a forward pass, which the method declares.
"""

KINDS = ("data-focused",)
