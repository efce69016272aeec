"""The error of a sandbox that cannot hold."""

from everlearn.errors import EverlearnError


class SandboxError(EverlearnError):
    """Programs that a model writes cannot be run safely here."""
