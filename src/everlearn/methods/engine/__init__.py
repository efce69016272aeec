"""Apply a list of methods to a training, whatever the trainer, and common parts of the methods.

:class:`~everlearn.methods.engine.protection.Protection` is the engine: every hook of every method is called here, in
phases, so that the order in a list changes nothing. The other modules implement parameter transforms, gradients of
extra rows, modules that are attached to a model, and external trainers. Nothing in this package knows a particular
method; a change here affects all of them, and the conformance tests (`tests/conformance`) run every method against it,
FSDP2 and accumulation included.
"""
