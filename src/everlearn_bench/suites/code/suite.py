"""The suite `code` for recipes, grids and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError, did_you_mean
from everlearn.grid.template import System
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.code import corpus, files
from everlearn_bench.suites.code.published import CLAIMS, PUBLISHED
from everlearn_bench.suites.code.sources import BY_HAND, SOURCES
from everlearn_bench.suites.settings import STREAM, Settings, steps_of, with_options, with_samples

CODE, GENERAL = "code", "general"
STEPS, BATCH, BLOCK = 1000, 16, 512
POINTS = 8
"""Moments inside the training at which the end tasks are asked, and held-out text is scored, the end included."""
TASKS: dict[str, dict[str, Any]] = {
    "humaneval": {"kind": "code", "domain": CODE, "max_new_tokens": 256},
    "hellaswag": {"kind": "choice"},
    "winogrande": {"kind": "schema"},
    "arc_challenge": {"kind": "choice", "prompt": "{query}\nAnswer:"},
}
"""Their kinds and prompts: those of lm_eval for these files, without examples (0-shot)."""


@register_suite
class Code(Suite):
    """Code on one side, general abilities on the other, during the training of a causal model."""

    name = "code"
    orders = {0: (CODE,)}  # noqa: RUF012 - see Suite
    tasks = {"humaneval": CODE}  # noqa: RUF012 - see Suite
    systems = {  # noqa: RUF012 - see Suite
        "lora+migu": System("LoRA + MIGU", ({"name": "lora"}, {"name": "migu"}), "https://arxiv.org/abs/2406.17245")
    }
    published = PUBLISHED
    claims = CLAIMS
    sources = SOURCES
    by_hand = BY_HAND
    lacks = (*STREAM, "max_train", "prompts.names", "prompts.cut")

    def locate(self, inside: str) -> Path:
        """Return a part of the functions of installed libraries, or the file of an end task."""
        parts = [f"{part}.jsonl" for part in corpus.PARTS]
        known = [*parts, *(f"{task}.jsonl" for task in TASKS)]
        if inside not in known:
            raise RecipeError(f"The suite 'code' has no '{inside}'.{did_you_mean(inside, known)}")
        if inside in parts:
            return corpus.build() / inside
        return files.find(inside.removesuffix(".jsonl"), files.data_folder())

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
        """Return the recipe of a run on code."""
        if isinstance(order, int) and order not in self.orders:
            raise RecipeError(f"The suite `code` has no order {order}; it has 0.")
        if not isinstance(order, int) and tuple(order) != (CODE,):
            raise RecipeError(f"The suite `code` has one domain, '{CODE}' (got {', '.join(order) or 'none'}).")
        self.check(settings)
        given = settings.given()
        if "model" not in given:
            raise RecipeError("The grid needs a base model: `--model`, or `model` in the settings.")
        if settings.run_code is None:
            raise RecipeError(
                "The suite `code` runs programs that the model writes, in a sandbox: allow it with `--run-code` (or "
                "`run_code: true` in the settings), or leave pass@1 out with `--no-run-code` (`run_code: false`)."
            )
        ends = given["end_tasks"].given()
        for key in ends.keys() - {"max_test", "max_new_tokens"}:
            raise RecipeError(f"`end_tasks.{key}` is {ends[key]!r} in the settings, but `code` has no such choice.")
        own = settings.corpora or {}
        for key in own:
            if key not in (CODE, GENERAL):
                raise RecipeError(f"`corpora` names '{key}', no text of `code`.{did_you_mean(key, (CODE, GENERAL))}")
        place = files.data_folder(data)
        batch, accumulate, block = given.get("batch", BATCH), given.get("accumulate", 1), given.get("block_size", BLOCK)
        steps = steps_of(settings.steps, settings.budget_tokens, batch * accumulate * block, STEPS)
        code = _text(CODE, own) or {"path": "suite:code/train.jsonl", "validation": "suite:code/validation.jsonl"}
        general = _text(GENERAL, own) or _general(place)
        return {
            "model": given["model"],
            "objective": "text-to-text" if "target_column" in code else "causal",
            "data": {"block_size": block},
            "domains": [{"name": CODE, **code}],
            **({"general": {"name": GENERAL, **general}} if general else {}),
            "end_tasks": [
                {"name": task, "test": str(files.find(task, place)), **_options(options, settings)}
                for task, options in TASKS.items()
            ],
            # With only one domain, what a method does from the second domain on starts at the first step.
            "method": with_options(with_samples(method, settings.samples), skip_first_domain=False),
            "train": {
                "per_device_train_batch_size": batch,
                "gradient_accumulation_steps": accumulate,
                "max_steps": steps,
                "learning_rate": given.get("learning_rate", 5e-4),
                "lr_scheduler_type": "cosine",
                "warmup_steps": round(0.1 * steps),
                "weight_decay": 0.0,
                "adam_beta2": 0.95,
                **settings.train,
            },
            "evaluation": {
                "blocks": given.get("blocks", 128),
                "batch_size": 16,
                "every": -(-steps // POINTS),
                "tasks_every": -(-steps // POINTS),
            },
            "run": {"name": name, "seed": seed, "folder": str(folder), "notes": _notes(own)},
        }


def _options(options: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the options of an end task, with those that the settings override."""
    ends = settings.end_tasks.given()
    limits: dict[str, Any] = {key: ends[key] for key in ("max_test", "max_new_tokens") if key in ends}
    if options["kind"] == "code":
        return {**options, **limits, "run_code": settings.run_code}
    return {**options, **{key: value for key, value in limits.items() if key == "max_test"}}


def _text(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's own text as keys of a domain; a twentieth is held out by default."""
    if name not in own:
        return {}
    keys = dict(own[name]) if isinstance(own[name], Mapping) else {"path": str(own[name])}
    return {"validation": 0.05, **keys}


def _general(place: Path) -> dict[str, Any]:
    found = files.general(place)
    return {"path": str(found[0]), "validation": str(found[1]), "max_documents": 2000} if found else {}


def _notes(own: Mapping[str, Any]) -> list[str]:
    proxy = "Proxy text 'code': documented functions of installed libraries, for instructions with code as answers."
    return [
        *([] if CODE in own else [proxy]),
        "A small base model solves no problem of HumanEval; bits per byte of held-out code, and of the reference "
        "solutions, say what pass@1 cannot.",
    ]
