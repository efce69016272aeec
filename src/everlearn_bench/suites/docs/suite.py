"""The suite `docs` for recipes, grids and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError, did_you_mean
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.docs import address
from everlearn_bench.suites.docs.corpus import DOMAINS
from everlearn_bench.suites.settings import PROGRAMS, STREAM, Settings, steps_of, with_samples

STEPS = 20
BLOCK = 128
BATCH = 16


@register_suite
class Docs(Suite):
    """Documentation of six installed libraries: needs no network, no data and no other model."""

    name = "docs"
    orders = {0: DOMAINS}  # noqa: RUF012 - see Suite
    tasks = {f"{name}-part": name for name in DOMAINS}  # noqa: RUF012 - see Suite

    lacks = (*PROGRAMS, *STREAM, "end_tasks.aspect", "end_tasks.settings", "end_tasks.answers", "max_train",
             "prompts.names", "prompts.cut")  # fmt: skip

    def locate(self, inside: str) -> Path:
        """Return the file of a corpus or of an end task, or the folder of the base model."""
        return address.locate(inside)

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: Sequence[Mapping[str, Any]],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        """Return the recipe of a run over the libraries; its corpora are built here, so it needs no data folder."""
        names = self.orders[order] if isinstance(order, int) else order
        for each in names:
            if each not in DOMAINS:
                raise RecipeError(f"The suite `docs` has no domain '{each}'.{did_you_mean(each, DOMAINS)}")
        self.check(settings)
        given = settings.given()
        ends = given["end_tasks"].given()
        batch, accumulate = given.get("batch", BATCH), given.get("accumulate", 1)
        block = given.get("block_size", BLOCK)
        number = steps_of(settings.steps, settings.budget_tokens, batch * accumulate * block, STEPS)
        own = {"epochs": 2 * ends.get("epochs_factor", 1), "learning_rate": 1e-3, "max_length": 64, "max_train": 120}
        own |= {key: ends[key] for key in ("max_train", "max_test", "learning_rate", "batch_size") if key in ends}
        return {
            "model": given.get("model", "suite:docs/base"),
            "objective": "masked",
            "data": {"block_size": block},
            "domains": [self._corpus(each, "train", given.get("corpora", {})) for each in names],
            # Evaluated on held-out text; methods that need general text get a part of the base model's training text.
            "general": {"max_documents": 2000, **self._corpus("general", "train", given.get("corpora", {}))},
            "end_tasks": [
                {
                    "name": f"{each}-part",
                    "domain": each,
                    "train": f"suite:docs/tasks/{each}_train.jsonl",
                    "test": f"suite:docs/tasks/{each}_test.jsonl",
                    **own,
                }
                for each in names
            ],
            "method": with_samples(method, settings.samples),
            "train": {
                "per_device_train_batch_size": batch,
                "gradient_accumulation_steps": accumulate,
                "max_steps": number,
                "learning_rate": given.get("learning_rate", 4e-4),
                "warmup_steps": round(0.15 * number),
                **settings.train,
            },
            "evaluation": {
                "blocks": given.get("blocks", 32),
                "batch_size": 16,
                "end_task_seeds": ends.get("seeds", 1),
                "end_tasks": ends.get("when", "diagonal"),
            },
            "run": {"name": name, "seed": seed, "folder": str(folder)},
        }

    def _corpus(self, name: str, part: str, own: Mapping[str, str | Mapping[str, Any]]) -> dict[str, Any]:
        """Return a domain of a recipe: the text of the suite, or the user's own."""
        if name in own:
            text = own[name]
            return {"name": name, **(text if isinstance(text, Mapping) else {"path": text})}
        paths = [f"suite:docs/{name}/{each}.jsonl" for each in (part, "validation")]
        return {"name": name, "path": paths[0], "validation": paths[1]}
