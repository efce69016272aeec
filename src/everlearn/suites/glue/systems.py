"""The rows of the suite's table: remedies that keep what pre-training learnt, as methods with their options.

This is the only place to change when a remedy gets another method or other options. Strengths are those of the papers
where a paper has one for this use; a settings file (`entries`) has those that were chosen for a base model.

Not here: `si`, which knows only of weights that it has seen learnt, so nothing of the base model; `siatl`, whose
auxiliary loss is a decoder's; `ensemble`, which after one task is that task's model.
"""

from __future__ import annotations

from typing import Any

from everlearn.methods.base import build
from everlearn.methods.sequential import PLAIN
from everlearn.suites.base import System

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
