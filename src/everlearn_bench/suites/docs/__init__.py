"""The suite `docs`: learn the documentation of six libraries one after another, offline.

The base model in ``base/`` is pre-trained on general documentation only (``recipes/base-docs.yaml``).
"""

from pathlib import Path

from everlearn_bench.suites.docs.base_model import train_tokenizer
from everlearn_bench.suites.docs.corpus import DOMAINS, GENERAL, Doc, build, cache_folder, documents

__all__ = ["DOMAINS", "GENERAL", "Doc", "base_path", "build", "cache_folder", "documents", "train_tokenizer"]


def base_path() -> Path:
    """Return the folder of the shipped base model, in the format of ``save_pretrained``."""
    return Path(__file__).parent / "base"
