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

Functions of installed libraries with their documentation, learnt by a 5.6 M decoder that has read Wikipedia and
books once and has never seen a program: 240 steps of 16 rows of 128 tokens with MIGU (T = 0.7) and without, bf16
arithmetic. Where all weights are trained the learning rate is 1e-3, in rows with LoRA (rank 8, queries and values) it
is 1e-2; trials on tasks of `standard-cl` chose both for this decoder without MIGU, each as the largest of three. Asked
eight times on the way: HumanEval (what the model writes, up to 64 tokens an answer, is run in the sandbox), and
HellaSwag, WinoGrande and ARC-challenge, of each of which 164 questions are asked. Made with the command in
`benchmarks/code/small.yaml`; `benchmarks/code/page.py` wrote this page. [What it says of the paper's
claims](../claims-code.md).

The paper's pair is LoRA against LoRA + MIGU, and it leaves T of this setting open; 0.7 is what it has for LoRA and for
full fine-tuning elsewhere. The pair in which all weights are trained (Sequential, MIGU) is our addition. In both the
mask acts on the update (`apply_to: update`, our default), while the paper and its released code mask the gradient.

A model of this size solves no problem of HumanEval and answers near chance before and after, so pass@1 and the
choices say nothing about methods. Bits per byte do: of held-out code and of HumanEval's reference solutions for
what is learnt, of Wikipedia for what is lost. Full fine-tuning with MIGU learns 6 % less and loses 18 % less; LoRA
with MIGU learns 20 % less and loses 21 % less, and where LoRA has learnt as much as that (after a quarter
of its steps) it has lost 0.31 bits per byte, LoRA with MIGU at its end 0.27.

The base model's answers are those of the first row below: on another machine one of the 492 questions came out the
other way.
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
