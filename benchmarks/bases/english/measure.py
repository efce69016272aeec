"""Held-out loss of the shipped base model on each source: ``python benchmarks/bases/english/measure.py DATA``.

Writes ``heldout.json``. DATA is the folder that ``make.py`` takes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from everlearn.data import Domain, PackedBlocks, prepare
from everlearn.evaluation import METRICS, text_cell
from everlearn.files import write_json
from everlearn.model.loading import load_weights
from everlearn.model.objectives import make_objective
from everlearn.predictors import block_losses

HERE = Path(__file__).parent
SOURCES = ("books", "wikipedia")
BLOCK = 128
PROBABILITIES = (0.15, 0.3)


def single_token_entropy(blocks: PackedBlocks, tokenizer: PreTrainedTokenizerBase) -> float:
    """Nats per token of a model that knows only how often each token occurs in this very text."""
    tokens = np.concatenate([block["input_ids"] for block in blocks.take(range(len(blocks)))])
    counts = np.unique(tokens[~np.isin(tokens, tokenizer.all_special_ids)], return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def measure(model_folder: Path, data: Path, cache: Path | None = None) -> dict[str, Any]:
    """Loss (nats per masked token) and bits per byte on each source's validation text."""
    model = load_weights(str(model_folder))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    results: dict[str, Any] = {}
    for source in SOURCES:
        domain = Domain(name=f"{source}-held-out", path=str(data / source / "validation.jsonl.gz"), validation=None)
        prepared = prepare(domain, tokenizer, "encoder", BLOCK, seed=0, cache=cache)
        blocks = prepared.train
        assert isinstance(blocks, PackedBlocks)
        row: dict[str, Any] = {
            "blocks": len(blocks),
            "bytes_per_token": round(prepared.bytes_per_token, 4),
            "single_token_entropy": round(single_token_entropy(blocks, tokenizer), 4),
        }
        for probability in PROBABILITIES:
            objective = make_objective("masked", model, tokenizer, mask_probability=probability)
            losses = block_losses(model, blocks, objective, batch_size=32)
            cell = text_cell(losses.nats, losses.items, prepared.bytes_per_token)
            row[f"masked {probability}"] = {
                name: round(METRICS[name].score(cell), 4) for name in ("loss", "bits_per_byte")
            }
        results[source] = row
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--output", type=Path, default=HERE / "heldout.json")
    chosen = parser.parse_args()
    write_json(chosen.output, measure(chosen.model, chosen.data))


if __name__ == "__main__":
    main()
