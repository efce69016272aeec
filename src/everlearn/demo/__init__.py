"""``everlearn demo``."""
