"""Fine-tuning tricks: other ways to train, which keep nothing of earlier domains.

A method is one file. What it changes is the step itself (the optimizer, its rates, which layers move, what a pass
reads instead of a weight), so it needs no pass over old text and no memory; what some of them hold on to is the model
that the domain began with, or the pre-trained one (:mod:`everlearn.methods.engine.anchor`).
"""

KINDS = ("trick",)
"""Of its methods, where a class does not say otherwise."""
