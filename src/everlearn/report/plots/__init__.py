"""Make matplotlib figures by name, for programs and papers; the report draws its own figures as SVG."""

from everlearn.report.plots.registry import PLOTS, Plot, plot, plotted
from everlearn.report.plots.runs import tradeoff, training
from everlearn.report.plots.stream import domains, general, matrix

__all__ = ["PLOTS", "Plot", "domains", "general", "matrix", "plot", "plotted", "tradeoff", "training"]
