"""Methods that store a module or a model for each domain, and compute with a mixture of them.

:mod:`composed` computes the weights of a text over the domains (a query, keys, a softmax), for a row or, in a decoder,
for each token from the tokens before it; :mod:`low_rank_blocks` and :mod:`prefixes` are the mixed modules. Modules and
keys of earlier domains are frozen parameters of the model, so the optimizer has no state for them.
:mod:`beside_layers` implements networks beside the layers of a frozen model; :mod:`ensemble` mixes the predictions of
complete models.
"""

KINDS = ("isolation",)
