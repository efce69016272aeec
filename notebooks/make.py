"""Make the notebook of its source and run it from scratch: ``python notebooks/make.py``, or ``make notebook``.

The source is ``first_steps.py``, in which ``# %%`` begins a cell. What is committed has its outputs, without anything
of the machine that it ran on.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SOURCE, NOTEBOOK = HERE / "first_steps.py", HERE / "first-steps.ipynb"
PARAMETERS = "parameters"


def written() -> Any:
    """The notebook without outputs."""
    cells = []
    for number, part in enumerate(re.split(r"^# %%", SOURCE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]):
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            text = re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)
            cells.append(nbformat.v4.new_markdown_cell(text, id=f"cell-{number}"))
        else:
            tags = {"tags": [PARAMETERS]} if PARAMETERS in head else {}
            cells.append(nbformat.v4.new_code_cell(body.strip(), id=f"cell-{number}", metadata=tags))
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return made


def run(notebook: Any, folder: Path, timeout: int = 1200, **parameters: Any) -> Any:
    """Run a notebook in a folder.

    Args:
        notebook: to run; gets the outputs.
        folder: where its cells run.
        timeout: seconds for a cell.
        parameters: instead of those in the cell of parameters.

    Raises:
        CellExecutionError: a cell failed.
    """
    first = next(cell for cell in notebook.cells if PARAMETERS in cell.metadata.get("tags", ()))
    for name, value in parameters.items():
        first.source, count = re.subn(rf"^{name} = \S+", f"{name} = {value!r}", first.source, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"The notebook has no parameter {name}.")
    NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def cleaned(notebook: Any, folder: Path) -> Any:
    """The notebook without what belongs to this machine and this moment."""
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("data", {}).pop("text/plain", None) if len(output.get("data", {})) > 1 else None
    text = nbformat.writes(notebook)
    for place, word in ((folder.resolve(), "."), (Path.home(), "~")):
        text = text.replace(str(place), word)
    return nbformat.reads(text, as_version=4)


def main() -> None:
    """Write the notebook with its outputs."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = cleaned(run(written(), Path(folder)), Path(folder))
    NOTEBOOK.write_text(nbformat.writes(made) + "\n", encoding="utf-8")
    print(f"Wrote {NOTEBOOK} in {time.monotonic() - started:.0f} seconds, {NOTEBOOK.stat().st_size:,} bytes.")


if __name__ == "__main__":
    main()
