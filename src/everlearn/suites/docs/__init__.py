"""The suite `docs`: learn six libraries' documentation one after another, offline.

The base model in ``base/`` is pre-trained on general documentation alone (``recipes/base-docs.yaml``).
"""

from pathlib import Path

from everlearn.suites.docs.corpus import DOMAINS, GENERAL, Doc, build, cache_folder, documents
from everlearn.suites.docs.tokenizer import train_tokenizer

__all__ = ["DOMAINS", "GENERAL", "Doc", "base_path", "build", "cache_folder", "documents", "train_tokenizer"]


def base_path() -> Path:
    """The folder of the shipped base model, as ``save_pretrained`` writes it."""
    return Path(__file__).parent / "base"
