"""Methods that add a penalty on the weights to the loss.

:mod:`penalty` is importance × anchor × norm: a method defines its importance in one file; anchors and norms
(:mod:`norms`) are options, and published choices of them are variants, not files. Importance is measured when a domain
ends and stored as memory; the penalty is computed in each step from the local parameters of the process.
:mod:`penalty_and_teacher` combines such a penalty with a teacher.
"""

KINDS = ("prior-focused",)
