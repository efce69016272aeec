"""Merge the stages of a run by every merging method, and write the table of docs/results/merging.md.

    python benchmarks/analyses/merges.py runs/analyses-text

Each method has its default options. Those for one or two checkpoints get the last ones, others every stage. What a
method reads are the first rows of training text: of each stage's own domain, or of the general text if one is for all.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import everlearn
from everlearn import files
from everlearn.commands.evaluate import Named, evaluate
from everlearn.config.recipe import load
from everlearn.evaluation import Results
from everlearn.merging import MERGE_METHODS
from everlearn.report.tables import Table, TableCell, markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "results" / "merging.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
TEXTS = {"fisher": "each", "cocktail": "one"}
"""Merging method → whether each checkpoint has a text of its own, or one is for all."""


def merged(run: Path, folder: Path) -> list[Named]:
    """Return the base model, the stages, and a model by each merging method."""
    recipe = load(run / "recipe.yaml")
    stages = sorted(run.glob("stage-*"))
    models = [Named("base model", str(recipe.model.path))]
    models += [Named(f"after {domain.name}", str(stage)) for domain, stage in zip(recipe.domains, stages, strict=True)]
    texts = {"each": [domain.path for domain in recipe.domains], "one": [recipe.general.path]}
    for name, method in MERGE_METHODS.items():
        which = stages[-method.most :] if method.most else stages
        base = str(recipe.model.path) if method.needs_base else None
        read = texts.get(TEXTS.get(name, ""), [])
        everlearn.merge(which, folder / name, name, base=base, texts=read)
        models.append(
            Named(f"{method.title}, {'one' if len(which) == 1 else len(which)} of the stages", str(folder / name))
        )
    return models


def table(results: Results) -> str:
    """Return the bits per byte of each model on each text, and the mean gain over the base model on the domains."""
    cells: dict[str, dict[str, float]] = {}
    for row, text, value, *_ in results.matrices["bits_per_byte"].cells:
        cells.setdefault(row, {})[text] = value
    texts = list(next(iter(cells.values())))
    domains = [text for text in texts if text != "general"]
    base = next(iter(cells.values()))
    rows = tuple(
        (
            row,
            (
                *(TableCell(f"{own[text]:.3f}") for text in texts),
                TableCell(f"{sum(base[text] - own[text] for text in domains) / len(domains):+.3f}"),
            ),
        )
        for row, own in cells.items()
    )
    header = ("Model", *(f"{text} ↓" for text in texts), "Better than the base model, mean of the domains ↑")
    return markdown_table(Table("Bits per byte", header, rows, ""), level=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    with tempfile.TemporaryDirectory() as scratch:
        models = merged(run, Path(scratch))
        results = evaluate(models, load(run / "recipe.yaml"), Path(scratch) / "scores")
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        files.write_text(PAGE, f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}")


if __name__ == "__main__":
    main()
