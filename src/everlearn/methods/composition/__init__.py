"""Methods that keep a module or a model for each domain and let a text read a mixture of them.

A method is one file. :mod:`composed` promises the weights of a text over the domains (a query, keys, a softmax), for a
row at once or, in a decoder, for a token from what came before it; :mod:`low_rank_blocks` and :mod:`prefixes` are what
is mixed. Modules and keys of earlier domains stand in the model as parameters that are not trained, so no optimizer
holds anything of them. :mod:`beside_layers` promises networks beside the layers of a frozen model; :mod:`ensemble`
mixes what whole models say.
"""

KINDS = ("isolation",)
"""Of its methods, where a class does not say otherwise (:data:`everlearn.methods.base.KINDS`)."""
