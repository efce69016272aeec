"""Fixtures of the fuzzers."""

from whole_runs import no_report

__all__ = ["no_report"]
