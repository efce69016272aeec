"""Fine-tuning tricks: changes of the training step that store nothing of earlier domains.

They change the step itself (the optimizer, learning rates, the trained layers, the weights that a pass reads), so they
need no pass over old text and no memory; some use the model at the beginning of the domain, or the pre-trained one
(:mod:`everlearn.methods.engine.anchor`).
"""

KINDS = ("trick",)
