"""Methods that learn which units a domain may use, and protect the units in use.

:mod:`hard_attention` has the equations of HAT (gates, their annealing, protection of used units), and
:mod:`hard_attention_method` the common part of such methods, for units of the model itself or of the small networks in
:mod:`gated_mlp`. A new method chooses the sites and adds its own losses.
"""

KINDS = ("isolation",)
