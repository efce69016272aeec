"""everlearn: teach a language model one domain after another, and show that it forgot nothing."""

__version__ = "0.1.0"
