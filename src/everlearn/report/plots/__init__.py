"""Pictures for programs and papers: matplotlib figures by name, to restyle and to save. The page draws its own."""

from everlearn.report.plots.registry import PLOTS, Plot, plot, plotted
from everlearn.report.plots.runs import standing, training
from everlearn.report.plots.stream import domains, general, matrix

__all__ = ["PLOTS", "Plot", "domains", "general", "matrix", "plot", "plotted", "standing", "training"]
