"""The benchmarks of this repository: the first plugin of everlearn, found as any other is.

Suites with published numbers and claims, the verdicts on these, the causal study of transfer, an LSTM and a CNN as
bases, end tasks of programs, and the verbs ``bench`` and ``demo``. The core never imports it.
"""
