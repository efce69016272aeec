"""The suite `code` for recipes, grids and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError
from everlearn.grid.template import System
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.code import corpus, files
from everlearn_bench.suites.code.files import BY_HAND, SOURCES
from everlearn_bench.suites.code.published import CLAIMS, PUBLISHED
from everlearn_bench.suites.template import with_options

CODE = "code"
POINTS = 8
"""Number of evaluations of end tasks and held-out text during training, including the end."""


@register_suite
class Code(Suite):
    """Train a causal model on code, and measure both what it learns and which general abilities it loses."""

    name = "code"
    orders = {0: (CODE,)}  # noqa: RUF012 - see Suite
    systems = {  # noqa: RUF012 - see Suite
        "lora+migu": System("LoRA + MIGU", ({"name": "lora"}, {"name": "migu"}), "https://arxiv.org/abs/2406.17245")
    }
    published = PUBLISHED
    claims = CLAIMS
    sources = SOURCES
    by_hand = BY_HAND

    def locate(self, inside: str) -> Path:
        """Return a part of the functions of installed libraries, or the file of an end task."""
        parts = [f"{part}.jsonl" for part in corpus.PARTS]
        known = [*parts, *(f"{task}.jsonl" for task in files.FILES)]
        self.check_address(inside, known)
        if inside in parts:
            return corpus.build() / inside
        return files.find(inside.removesuffix(".jsonl"), files.data_folder(self.data))

    def begin(self, raw: dict[str, Any]) -> None:
        """Add general text if the data folder has some."""
        if paths := files.general(files.data_folder(self.data)):
            raw["general"] = {"path": str(paths[0]), "validation": str(paths[1]), "max_documents": 2000}

    def finish(self, raw: dict[str, Any]) -> None:
        """Require permission to run programs, evaluate during training, and set methods to act from the first step."""
        if any(task["kind"] == CODE and task.get("run_code") is None for task in raw["end_tasks"]):
            raise RecipeError(
                "The suite `code` runs programs that the model writes, in a sandbox: allow it with `--run-code` (or "
                "`end_tasks: {humaneval: {run_code: true}}` in the settings), or leave pass@1 out with `--no-run-code`."
            )
        (code,) = raw["domains"]
        raw.setdefault("objective", "text-to-text" if "target_column" in code else "causal")
        every = -(-raw["train"]["max_steps"] // POINTS)
        raw["evaluation"] = {"every": every, "tasks_every": every, **raw["evaluation"]}
        # With only one domain, what a method does from the second domain on starts at the first step.
        raw["method"] = with_options(raw["method"], skip_first_domain=False)
        proxy = "Proxy text 'code': documented functions of installed libraries, for instructions with code as answers."
        raw["run"]["notes"] = [
            *([proxy] if str(code["path"]).startswith("suite:") else []),
            "A small base model solves no problem of HumanEval; bits per byte of held-out code, and of the reference "
            "solutions, say what pass@1 cannot.",
        ]
