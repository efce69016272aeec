"""Draw docstrings and documentation paragraphs at random, for a reader who reads each of them once.

    python benchmarks/language/draw.py --seed 1 --docstrings 300 --paragraphs 100

Docstrings of modules, classes and functions are drawn in proportion to the size of each package (src/everlearn/data,
for example), the paragraphs from README.md and docs/*.md without code blocks, tables and headings.
"""

import argparse
import ast
import random
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def docstrings(file):
    """Yield the place, the first line of the definition and the docstring of every documented node of a file."""
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                line = getattr(node, "lineno", 1)
                first = "module" if isinstance(node, ast.Module) else source.splitlines()[line - 1].strip()
                yield f"{file.relative_to(ROOT)}:{line}", first, text


def packages():
    """Return the documented nodes of src, grouped by package."""
    grouped = defaultdict(list)
    for file in sorted((ROOT / "src").rglob("*.py")):
        grouped["/".join(file.relative_to(ROOT / "src").parent.parts[:2])].extend(docstrings(file))
    return grouped


def paragraphs():
    """Return the place and the text of every paragraph of README.md and docs/*.md that has at least eight words."""
    passages = []
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = re.sub(r"^ *```.*?^ *```", "", file.read_text(encoding="utf-8"), flags=re.S | re.M)
        for block in re.split(r"\n\s*\n", text):
            if len(block.split()) >= 8 and not block.lstrip("\n").startswith(("|", "#", "<", "!", "    ")):
                passages.append((str(file.relative_to(ROOT)), block.strip()))
    return passages


def main():
    """Print both samples, numbered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--docstrings", type=int, default=300)
    parser.add_argument("--paragraphs", type=int, default=100)
    options = parser.parse_args()
    dice = random.Random(options.seed)

    grouped = packages()
    total = sum(map(len, grouped.values()))
    drawn = []
    for _, nodes in sorted(grouped.items()):
        drawn += dice.sample(nodes, min(len(nodes), max(1, round(options.docstrings * len(nodes) / total))))
    while len(drawn) > options.docstrings:
        drawn.pop(dice.randrange(len(drawn)))
    for number, (place, first, text) in enumerate(drawn, 1):
        print(f"D{number} {place}\n    {first}\n    {text}\n")

    blocks = paragraphs()
    for number, (place, text) in enumerate(dice.sample(blocks, min(options.paragraphs, len(blocks))), 1):
        print(f"P{number} {place}\n{text}\n")


if __name__ == "__main__":
    main()
