"""Fine-tuning tricks: changes of the training step that store nothing of earlier domains.

A method is one file. It changes the step itself (the optimizer, learning rates, the trained layers, the weights that a
pass reads), so it needs no pass over old text and no memory; some of them keep the model at the beginning of the
domain, or the pre-trained one (:mod:`everlearn.methods.engine.anchor`).
"""

KINDS = ("trick",)
"""Kinds of its methods, unless a class sets its own."""
