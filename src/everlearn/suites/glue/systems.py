"""The rows of the suite's table: remedies that keep what pre-training learnt, as methods with their options.

This is the only place to change when a remedy gets another method or other options. Strengths are those of the papers
where a paper has one for this use; a settings file (`entries`) has those that were chosen for a base model.
"""

from __future__ import annotations

from everlearn.methods.sequential import PLAIN
from everlearn.suites.base import System

REPLAYED = {"name": "replay", "share": 0.05, "domains": False, "general": True}

SYSTEMS: dict[str, System] = {
    PLAIN: System("Fine-tuning", ({"name": PLAIN},)),
    "ewc": System("EWC", ({"name": "ewc", "protect_base": True},), "https://arxiv.org/abs/1612.00796"),
}
"""By the name of the row."""
GROUPS = {"all": ("constant", "none", *SYSTEMS)}
"""Every row."""
