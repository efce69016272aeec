"""Verdicts on sentences of papers, from the cells of a grid."""
