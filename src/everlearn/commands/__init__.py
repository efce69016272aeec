"""Compute the results that the commands print."""
