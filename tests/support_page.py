"""What is tried with each model type; ``python tests/support_page.py`` writes the table into docs/support.md."""

from __future__ import annotations

import copy
import functools
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import stages
import tried_table
from everlearn.errors import EverlearnError
from everlearn.methods import build
from everlearn.model.architectures import registered
from everlearn.model.packed_rows import masks_isolate, why_not_isolated
from everlearn.model.routing import has_experts
from everlearn.model.structure import kind_of_config, language_model_class
from everlearn.model.units import why_without_units
from everlearn.model.vocabulary_head import text_config
from model_types import TYPES, configuration

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
METHODS: dict[str, list[dict[str, Any]]] = {
    "sequential": [],
    "replay": [{"name": "replay"}],
    "mas": [{"name": "mas", "samples": 2}],
    "migu": [{"name": "migu"}],
    "lora": [{"name": "lora", "target_modules": "all-linear"}],
}
OBJECTIVES = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "text-to-text"}
COLUMNS = ("type", "kind", "layers", *METHODS, "heads and neurons", "documents apart", "attention")


def model(model_type: str, **changes: Any) -> PreTrainedModel:
    """Return a tiny model of a type with random weights, and biases and norms that are not at their neutral values."""
    made = _made(model_type, **changes) if changes else copy.deepcopy(_usual(model_type))
    torch.manual_seed(0)
    return made


@functools.cache
def _usual(model_type: str) -> PreTrainedModel:
    return _made(model_type)


def _made(model_type: str, **changes: Any) -> PreTrainedModel:
    config = configuration(model_type, **changes)
    torch.manual_seed(0)
    made: PreTrainedModel = language_model_class(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return made.eval()


def objective(model_type: str) -> str:
    """Return the objective that belongs to a type."""
    return OBJECTIVES[kind_of_config(configuration(model_type))]


def learn(model_type: str, method: str, **changes: Any) -> list[dict[str, torch.Tensor]]:
    """Learn two domains of one step each; return the parts of the losses of the second."""
    trained = model(model_type, **changes)
    methods = [build(dict(spec)) for spec in METHODS[method]]
    for index in (1, 2):
        stage = stages.stage(trained, index, objective(model_type), steps=1, count=4, batch_size=2)
        parts = stages.learn(methods, stage)
        trained = stage.model  # type: ignore[assignment]
        stage.objective.mean_loss(trained, stage.batches(2))
    return parts


def outcome(model_type: str, method: str) -> str:
    """Return "yes" if a method learns, or else the sentence that refuses it."""
    try:
        learn(model_type, method)
    except EverlearnError as error:
        return f"no: {error}"
    return "yes"


def row(model_type: str) -> str:
    """Return the line of the page for a type."""
    made = model(model_type)
    kind, known = kind_of_config(made.config), registered(model_type) is not None
    cells = [
        f"`{model_type}`",
        kind + (", experts" if has_experts(text_config(made)) else ""),
        "table" if known else "found",
        *(outcome(model_type, method) for method in METHODS),
        why_without_units(made) or "yes",
        _apart(made, kind),
        made.config._attn_implementation,
    ]
    return f"| {' | '.join(cells)} |".replace("'", "`")


def _apart(made: PreTrainedModel, kind: str) -> str:
    """Return whether documents that share a row do not see each other, or why they do."""
    if kind == "encoder" and made.config._attn_implementation != "sdpa":
        return "its attention takes no mask for it"
    if kind == "encoder":
        return "if asked" if masks_isolate(made) else "a mask does not keep them apart"
    return why_not_isolated(made) or "yes" if kind == "decoder" else "yes"


@functools.cache
def committed() -> dict[str, str]:
    """Return the lines of the committed page by type."""
    return {name.strip("`"): row for name, row in tried_table.rows_of(PAGE).items()}


def main() -> None:
    """Try everything and write the table into the page."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    tried_table.write(PAGE, tried_table.table(COLUMNS, map(row, sorted(TYPES))))


if __name__ == "__main__":
    main()
