"""The benchmarks of this repository, as a plugin of everlearn.

The package contains benchmark suites with the numbers and claims of papers, and code that judges the claims by
measurements. It also contains the analysis of transfer over long streams (arXiv 2402.17400), an LSTM and a CNN as base
models, end tasks in which a model generates programs, and the commands ``bench`` and ``demo``. The package
``everlearn`` never imports this one. It finds it by its entry points, as it finds every plugin.
"""
