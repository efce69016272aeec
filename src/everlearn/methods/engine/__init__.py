"""What applies a list of methods to a training, whoever trains, and what their parts have in common.

:class:`~everlearn.methods.engine.protection.Protection` is the engine: every hook of every method runs here, in
phases, so that the order in a list changes nothing. Parameter transforms, extra rows' gradients, what is attached to
a model and who else trains stand beside it. Nothing in here knows a method; a change here is a change to all of them,
and the conformance tests (`tests/conformance`) run every method against it, FSDP2 and accumulation included.
"""
