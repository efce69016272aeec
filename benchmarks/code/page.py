"""The pages of the grid: tables, pictures of learning against forgetting along training, and what the claims come to.

    python benchmarks/code/page.py

reads results/ and writes docs/results/code.md, its pictures, and docs/claims-code.md.
"""

from __future__ import annotations

from pathlib import Path

from everlearn import files
from everlearn.grid import load_results
from everlearn.grid.page import GridPage
from everlearn.report.figures.registry import standalone
from everlearn.report.tables import markdown_table
from everlearn_bench.claims.page import write_claims
from everlearn_bench.suites import find_suite

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PLACE = DOCS / "results"
PAIR = ("lora", "lora+migu")
"""The paper's, whose rows are compared with each other too, once they are there."""
HEAD = """\
# A small causal model learns code

A 5.6 M decoder learns functions of installed libraries with their documentation. It was trained on Wikipedia and books
for one pass, and has never seen a program. Training takes 240 steps of 16 rows of 128 tokens, with MIGU (T = 0.7) and
without, in bf16. The learning rate is 1e-3 if all weights are trained, and 1e-2 with LoRA (rank 8, queries and values).
Both were chosen for this decoder without MIGU, in trials on tasks of `standard-cl`, and are the largest of three. The
model is evaluated eight times: on HumanEval (its programs, of at most 64 tokens, are run in the sandbox), and on 164
questions each of HellaSwag, WinoGrande and ARC-challenge. The command is in `benchmarks/code/small.yaml`;
`benchmarks/code/page.py` wrote this page. See also [the verdicts on the paper's claims](../claims-code.md).

The paper compares LoRA with LoRA + MIGU. It does not give T for this setting; 0.7 is its value for LoRA and for full
fine-tuning elsewhere. We added the comparison in which all weights are trained (Sequential, MIGU). In both the mask
acts on the update (`apply_to: update`, our default), while the paper and its released code mask the gradient.

A model of this size solves no problem of HumanEval, and answers questions near chance before and after training. So
pass@1 and choice accuracy do not distinguish methods, but bits per byte do: those of held-out code and of HumanEval's
reference solutions show what is learnt, those of Wikipedia what is lost. Full fine-tuning with MIGU learns 6 % less and
loses 18 % less than without. LoRA with MIGU learns 20 % less and loses 21 % less than LoRA. After a quarter of its
steps LoRA has learnt as much as LoRA with MIGU has at the end; by then it has lost 0.31 bits per byte, and LoRA with
MIGU loses 0.27.

The answers of the base model are those of the first row. On another machine one of the 492 answers was different.
"""


def pair_table(sheet: GridPage) -> list[str]:
    """What MIGU changes of LoRA; nothing before both are measured."""
    if not {line.entry for line in sheet.lines}.issuperset(PAIR):
        return []
    own = GridPage(sheet.template, sheet.cells, reference=PAIR[0], shown=PAIR)
    return [markdown_table(table, level=3) for table in own.tables() if table.title.startswith("Difference to")]


def main() -> None:
    suite, results = find_suite("code"), HERE / "results"
    sheet = GridPage(suite, load_results(results))
    parts = [HEAD.strip()]
    legend = ", ".join(f"{glyph} {title}" for title, glyph, _ in sheet.along.legend())
    plates = sheet.along.plates()
    for name, plate in (("answers", plates[0]), ("text", plates[-1])):
        files.write_text(PLACE / f"code-{name}.svg", standalone(plate))
        parts.append(f"![Learning against forgetting: {name}](code-{name}.svg)\n\n{plate.caption} {legend}.")
    files.write_text(PLACE / "code.md", "\n\n".join([*parts, *pair_table(sheet), sheet.markdown()]))
    write_claims(suite, results, DOCS / "claims-code.md")


if __name__ == "__main__":
    main()
