"""Methods that mask a part of the update.

A mask is a factor for each parameter, computed once for a stage or for each step, and applied by the engine to the
gradient or to the update. The parts of DAS (options, mask, contrastive loss) are separate files because its variants
differ in them.
"""

KINDS = ("isolation",)
