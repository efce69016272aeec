"""Optimizers for the decoder base at equal processor time: ``python benchmarks/bases/optimizers.py [SECONDS]``.

Needs what ``make.py prepare`` makes. Every optimizer gets the same seconds of the processor and the same shape of
schedule over them (4 % warm-up, cosine to 0), the same start and the same text; ``optimizers.json`` is what came out.
Two minutes and a half decide about beginnings only: learning rates that win here may be too high for a whole training.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np
import torch
from muon import MuonBeside, matrices
from transformers import AutoTokenizer

import make
from everlearn.data import Domain, PackedBlocks, prepare
from everlearn.files import write_json
from everlearn.model.objectives import make_objective
from everlearn.predictors.block_losses import block_losses

ROWS, SIZE = 8, 256
TRIED: tuple[tuple[str, float, float | None], ...] = (
    ("AdamW 1e-3", 1e-3, None),
    ("AdamW 3e-3", 3e-3, None),
    ("Muon 3.1e-3, AdamW 2e-3", 2e-3, 3.1e-3),
    ("Muon 6.2e-3, AdamW 3e-3", 3e-3, 6.2e-3),
)
"""Name, AdamW's learning rate, Muon's (None: AdamW for everything)."""


def one(name: str, rate: float, muon_rate: float | None, seconds: float) -> dict[str, Any]:
    """Train from the start for so many seconds of the processor and measure on held-out text."""
    tokenizer = AutoTokenizer.from_pretrained(make.BUILD / "english-decoder" / "start")
    text = make.BUILD / "text"
    domain = Domain(name="english", path=str(text / "train.jsonl"), validation=str(text / "validation.jsonl"))
    prepared = prepare(domain, tokenizer, "decoder", SIZE, seed=0)
    assert isinstance(prepared.train, PackedBlocks)
    assert prepared.validation is not None
    model = make.decoder("trial")
    model.set_attn_implementation("eager")
    objective = make_objective("causal", model, tokenizer)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98), fused=True
    )
    if muon_rate is not None:
        optimizer = MuonBeside(optimizer, matrices(model), momentum=0.95)
    tops = [muon_rate if group.get("muon") else rate for group in optimizer.param_groups]
    source, step, losses, begun = prepared.train.fresh(1), 0, [], time.process_time()
    while (part := (time.process_time() - begun) / seconds) < 1:
        for group, top in zip(optimizer.param_groups, tops, strict=True):
            group["lr"] = top * min(1, part / 0.04) * 0.5 * (1 + math.cos(math.pi * part))
        batch = objective.collate([next(source) for _ in range(ROWS)], range(step * ROWS, (step + 1) * ROWS))
        with torch.autocast("cpu", torch.bfloat16):
            loss = objective.forward(model, batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        step += 1
    held = block_losses(model, prepared.validation, objective, batch_size=8, max_blocks=160, bf16=True)
    return {
        "name": name,
        "seconds": seconds,
        "steps": step,
        "tokens": step * ROWS * SIZE,
        "last_tenth": round(float(np.mean(losses[-(step // 10 + 1) :])), 4),
        "heldout": round(float(held.nats.sum() / held.items.sum()), 4),
    }


if __name__ == "__main__":
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 150.0
    write_json(make.HERE / "optimizers.json", [one(*tried, budget) for tried in TRIED])
