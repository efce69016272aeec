"""Offer the results of a run to programs and notebooks: printed as a table, as data frames, and as figures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import PrivateAttr
from rich.console import Console

from everlearn.comparison.comparison import Comparison, compare_runs
from everlearn.comparison.runs import from_results, read_run
from everlearn.evaluation.results import Results
from everlearn.report.html import render
from everlearn.report.tables import headline_table, terminal
from everlearn.report.verdict import verdict

if TYPE_CHECKING:
    from pandas import DataFrame

    from everlearn.report.plots import Plot

_WIDTH = 110


class RunResults(Results):
    """Everything that a run measured, with methods for programs and notebooks.

    ```python
    results = learner.run()
    print(results)
    results.to_pandas("summary")
    figure = results.figure("tradeoff")
    figure.axes[0].set_title("After two domains")
    figure.savefig("tradeoff.pdf")
    ```
    """

    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, results: Results, folder: Path) -> RunResults:
        """Make the results with the folder of their run, from which training curves are read."""
        run_results = cls.model_validate(results.model_dump())
        run_results._folder = folder
        return run_results

    @classmethod
    def load(cls, path: Path) -> RunResults:
        """Read ``results.json``; `path` is the file or the run folder.

        Raises:
            RunError: the file is missing, damaged or of another version.
        """
        path = Path(path)
        return cls.of(Results.load(path), path if path.is_dir() else path.parent)

    def comparison(self) -> Comparison:
        """Return the run in the form that the report uses."""
        return compare_runs([read_run(self._folder) if self._folder is not None else from_results(self)])

    def __str__(self) -> str:
        file = io.StringIO()
        Console(file=file, width=_WIDTH, highlight=False, no_color=True).print(terminal(self.comparison()))
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        comparison = self.comparison()
        return render("fragment.html.jinja", sentences=verdict(comparison), headline=headline_table(comparison))

    def figure(self, name: str = "tradeoff") -> Plot:
        """Return a matplotlib figure.

        Args:
            name: `tradeoff`, `domains`, `general`, `matrix` or `training`.

        Raises:
            RunError: there is no such plot, or the run lacks its data.
        """
        from everlearn.report.plots import plotted

        return plotted(name, self.comparison())

    def to_pandas(self, what: Literal["scores", "summary"] = "scores") -> DataFrame:
        """Return the results as a data frame.

        Args:
            what: `scores` for a row for each measured metric, checkpoint and column, with its 95 % interval; `summary`
                for a row for each metric, quantity (learnt, forgotten, …) and column.
        """
        import pandas

        if what == "scores":
            rows = [(metric, *cell) for metric, table in self.matrices.items() for cell in table.cells]
            return pandas.DataFrame(rows, columns=["metric", "after", "column", "value", "low", "high"])
        derived = [
            (metric, quantity, column, estimate.value, estimate.low, estimate.high)
            for metric, summary in self.summary.items()
            for quantity, estimates in summary
            for column, estimate in estimates.items()
        ]
        return pandas.DataFrame(derived, columns=["metric", "quantity", "column", "value", "low", "high"])
