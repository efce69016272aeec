"""The initial weights of the base model's pre-training; :mod:`everlearn_bench.suites.pretraining` explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from everlearn.files import damage, new_folder
from everlearn_bench.suites import pretraining
from everlearn_bench.suites.docs.corpus import cache_folder


def start_folder() -> Path:
    """Return the folder of the initial weights, in the format of ``save_pretrained``, built on first use."""
    folder = cache_folder().with_name("docs-start")
    if damage(folder) is not None:
        with new_folder(folder) as made:
            start_model().save_pretrained(made)
    return folder


def start_model() -> Any:
    """Return the initial model; it has the same weights every time."""
    return pretraining.start_model(AutoConfig.from_pretrained(Path(__file__).parent / "base"), "docs", "start")
