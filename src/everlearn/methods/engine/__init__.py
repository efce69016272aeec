"""What applies a list of methods to a step, and what their parts have in common."""
