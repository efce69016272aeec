"""Apply a list of methods to any trainer; common parts of the methods.

:class:`~everlearn.methods.engine.protection.Protection` is the engine: every hook of every method is called here, in
phases, so that the order in a list changes nothing. The other modules implement parameter transforms, gradients of
extra rows, modules that are attached to a model, and external trainers. No file of this package depends on a method,
and a change affects all methods: the conformance tests (`tests/conformance`) run every one, also with FSDP2 and
accumulation.
"""
