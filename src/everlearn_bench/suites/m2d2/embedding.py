"""A vector for a domain: the mean of the L2-normalised vectors of its documents."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlearn.errors import RecipeError, first_line

DIMENSIONS = 2**14
"""Buckets of hashed TF-IDF."""
MAX_LENGTH, BATCH = 256, 32
"""Tokens of a document that an encoder reads, and documents at once."""
_WORD = re.compile(r"[^\W\d_]{2,}")
Vector = NDArray[np.float64]
Embed = Callable[[Mapping[str, Sequence[str]]], dict[str, Vector]]
"""Name → documents, to name → mean of their normalised vectors."""


def hashed_tf_idf(texts: Mapping[str, Sequence[str]]) -> dict[str, Vector]:
    """Embed domains by hashed TF-IDF: words in buckets, sublinear counts × inverse document frequency.

    (1 + ln tf) · ln((1 + N) / (1 + df)), with N and df over the documents of all names (Salton & Buckley 1988); it
    needs nothing but the text.

    Args:
        texts: name → documents.

    Returns:
        Mean vectors by name, [16384], of norm at most 1.
    """
    counted = {name: [_counts(text) for text in documents] for name, documents in texts.items()}
    frequency, total = np.zeros(DIMENSIONS), 0
    for documents in counted.values():
        for buckets, _ in documents:
            frequency[buckets] += 1
            total += 1
    inverse = np.log((1 + total) / (1 + frequency))
    means = {}
    for name, documents in counted.items():
        mean = np.zeros(DIMENSIONS)
        for buckets, counts in documents:
            weights = (1 + np.log(counts)) * inverse[buckets]
            mean[buckets] += weights / max(float(np.linalg.norm(weights)), 1e-12)
        means[name] = mean / max(len(documents), 1)
    return means


def _counts(text: str) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the distinct buckets of the words of a text, and their counts."""
    words = _WORD.findall(text.lower())
    buckets = np.fromiter((zlib.crc32(word.encode()) % DIMENSIONS for word in words), np.int64, len(words))
    return np.unique(buckets, return_counts=True)


def by_encoder(path: str) -> Embed:
    """Return an embedding by a transformers encoder: mean-pooled last hidden states, normalised (arXiv 1908.10084).

    Args:
        path: hub id or folder.

    Raises:
        RecipeError: there is no such model.
    """

    def embed(texts: Mapping[str, Sequence[str]]) -> dict[str, Vector]:
        import torch
        from transformers import AutoModel, AutoTokenizer

        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(path)
            model: Any = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
        except (OSError, ValueError) as error:
            first = first_line(error).rstrip(".")
            raise RecipeError(f"`suite.embedding` is '{path}', which cannot be loaded: {first}.") from None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model.to(device)
        longest = min(MAX_LENGTH, tokenizer.model_max_length)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

        def mean(documents: Sequence[str]) -> Vector:
            total = np.zeros(model.config.hidden_size)
            for start in range(0, len(documents), BATCH):
                rows = list(documents[start : start + BATCH])
                read = tokenizer(rows, truncation=True, max_length=longest, padding=True, return_tensors="pt").to(
                    device
                )
                read.pop("token_type_ids", None)
                with torch.no_grad():
                    states = model(**read).last_hidden_state  # [rows, tokens, width]
                mask = read["attention_mask"][..., None].to(states.dtype)
                pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
                total += torch.nn.functional.normalize(pooled, dim=1).sum(0).double().cpu().numpy()
            return total / max(len(documents), 1)

        return {name: mean(documents) for name, documents in texts.items()}

    return embed


def cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of two vectors; 0 if one of them is 0."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else 0.0
