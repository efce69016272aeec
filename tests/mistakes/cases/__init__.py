"""Mistakes by subject, one file each; the package above says how they are written."""
