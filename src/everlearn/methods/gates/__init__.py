"""Methods that learn which units a domain may use, and hold what is used.

A method is one file; :mod:`hard_attention` has the equations of HAT (gates, their annealing, what may still change) and
:mod:`hard_attention_method` what every such method does with them, on the model's own units or in the small networks of
:mod:`gated_mlp`. A new method chooses the sites and adds its own losses.
"""

KINDS = ("isolation",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
