"""The rows of the suite's table: remedies that preserve pre-training, as methods with their options.

Change this file if a remedy gets another method or other options. Strengths are those of the papers if they have one
for this use; a settings file (`entries`) has those that were chosen for a base model.

Not included: `si`, which measures importance only for weights that it has seen trained, so not for the base model;
`siatl`, whose auxiliary loss needs a decoder; `ensemble`, which after one task is the model of that task.
"""

from __future__ import annotations

from typing import Any

from everlearn.grid.template import System
from everlearn.methods.base import build
from everlearn.methods.sequential import PLAIN

BASE = {"anchor": "base"}
"""Penalties hold the weights that the model came with."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    PLAIN: ("Fine-tuning", {}),
    "replay": ("Replay of general text", {"share": 0.05, "source": "general"}),
    "kd": ("KD", {}),
    "lwf": ("LwF", {}),
    "l2_sp": ("L2-SP", {}),
    "ewc": ("EWC", BASE),
    "ewc_normalised": ("EWCn", BASE),
    "rewc": ("REWC", BASE),
    "aewc": ("AEWC", BASE),
    "mas": ("MAS", BASE),
    "forget_me_not": ("Forget-Me-Not", {}),
    "multi_task_adaptation": ("Multi-task adaptation", {}),
    "recadam": ("RecAdam", {}),
    "mixout": ("Mixout", {}),
    "ulmfit": ("ULMFiT", {}),
    "mofo": ("MoFO", {}),
    "migu": ("MIGU", {"skip_first_domain": False}),
    "das_without_contrast": ("DAS (w/o contrast)", {}),
    "lora": ("LoRA", {}),
    "clora": ("CLoRA", {}),
    "corda": ("CorDA", {}),
    "lora_null": ("LoRA-Null", {}),
    "side_tuning": ("Side-tuning", {}),
    "k_adapter": ("K-Adapter", {}),
}
"""By the name of the row, which is that of its method: title and options."""
ADAPTED = ("lora", "clora", "corda", "lora_null", "side_tuning", "k_adapter")
"""What learns parameters of its own, beside or in the weights."""


def _system(name: str, title: str, options: dict[str, Any]) -> System:
    return System(title, ({"name": name, **options},), build(name).paper)


SYSTEMS = {name: _system(name, *row) for name, row in ROWS.items()}
"""By the name of the row."""
GROUPS = {"all": ("constant", "none", *SYSTEMS), "adapted": ADAPTED}
"""Every row; those that learn parameters of their own."""
