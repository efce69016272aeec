"""Fixtures of the fuzzers."""

from whole_runs import cheap_collections, no_report

__all__ = ["cheap_collections", "no_report"]
