"""Write docs/results/analyses.md: what `everlearn analyse` shows of a run, as tables.

    python benchmarks/analyses/page.py runs/analyses runs/analyses-text

The recipes of the two runs are recipe.yaml and text.yaml; some analyses need running text. Text above the first heading
of the second level stays as it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from everlearn import files
from everlearn.diagnostics.analyses import find_analysis
from everlearn.learner import ContinualLearner
from everlearn.report.sections import Section
from everlearn.report.tables import Table, markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "results" / "analyses.md"
ANALYSES = ("codelength", "movement", "distance", "layers", "line")
OF_TEXT = ("ranks", "activations")


def tables(section: Section) -> Iterator[Table]:
    """Yield the tables of a section and of its parts."""
    yield from section.tables
    for part in section.parts:
        yield from tables(part)


def main(run: str, of_text: str) -> None:
    """Make every analysis with its default options."""
    parts = [PAGE.read_text(encoding="utf-8").partition("\n## ")[0].rstrip()]
    learners = {
        name: ContinualLearner.open(place) for place, names in ((run, ANALYSES), (of_text, OF_TEXT)) for name in names
    }
    for name, learner in learners.items():
        parts.append(f"## `everlearn analyse {name}`")
        for section in find_analysis(name)(learner).sections:
            parts += [section.aside] if section.aside else []
            parts += [markdown_table(table, level=3) for table in tables(section)]
    files.write_text(PAGE, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
