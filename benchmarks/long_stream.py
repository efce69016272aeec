"""How evaluation grows with the length of a stream: N tiny domains, `evaluation.columns: seen` (and `own`, `all`).

A causal stream of N = 15, 30, 60 synthetic domains with a tiny Llama-type model and a few steps each. Recorded are the
seconds and bytes of evaluation, results and page, in processor time of this process, which hardly feels others. Writes
``docs/results/long-stream.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from everlearn.config.recipe import Recipe, parse
from everlearn.files import write_json, write_text
from everlearn.learner import ContinualLearner
from everlearn.run.collect_results import Outcome

LENGTHS, COLUMNS = (15, 30, 60), ("own", "seen", "all")
STEPS, BLOCKS, BLOCK_SIZE = 3, 16, 64
PLACE = Path(__file__).parents[1] / "docs" / "results"


def words(seed: int, count: int = 60) -> list[str]:
    """A vocabulary of made-up words."""
    generator = random.Random(seed)
    return ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(3, 8))) for _ in range(count)]


def write_domain(folder: Path, number: int) -> Path:
    """Texts in words of the domain's own, and some that all domains share."""
    generator, own, shared = random.Random(number), words(1000 + number), words(0)
    lines = [" ".join(generator.choices(own + shared, k=generator.randint(30, 80))) for _ in range(200)]
    path = folder / f"d{number:03d}.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    return path


def write_model(folder: Path) -> Path:
    """A random Llama of two layers with a byte-level tokenizer."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([" ".join(words(number)) for number in range(20)], trainer)
    place = folder / "model"
    PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>").save_pretrained(place)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(place)
    return place


def recipe(folder: Path, model: Path, domains: list[Path], columns: str) -> Recipe:
    """The stream, learnt plainly; only the last stage keeps its weights."""
    general = write_domain(folder / "data", 999)
    return parse(
        {
            "model": str(model),
            "domains": [{"name": path.stem, "path": str(path), "validation": 0.3} for path in domains],
            "general": {"path": str(general), "validation": 0.3},
            "method": "sequential",
            "data": {"block_size": BLOCK_SIZE, "cache": str(folder / "cache")},
            "train": {"max_steps": STEPS, "per_device_train_batch_size": 4, "save_strategy": "no", "use_cpu": True},
            "evaluation": {"blocks": BLOCKS, "columns": columns},
            "run": {"name": columns, "folder": str(folder / f"{len(domains)}-{columns}"), "keep_stages": "last"},
        }
    )


def timed(work: Callable[[], Any]) -> float:
    """Processor seconds."""
    before = time.process_time()
    work()
    return round(time.process_time() - before, 3)


def measure(folder: Path, model: Path, length: int, columns: str) -> dict[str, Any]:
    """One stream, taken to its end, then looked at again."""
    stream = recipe(folder, model, [write_domain(folder / "data", number) for number in range(length)], columns)
    run = stream.folder()
    run_seconds = timed(ContinualLearner(stream).run)
    again = timed(ContinualLearner.open(run).resume)
    outcome = Outcome(stream, ContinualLearner.open(run).folder)
    cells = list((run / "evaluation").glob("stage-*/*.safetensors"))
    measurements = {
        "domains": length,
        "columns": columns,
        "cells": len(cells),
        "cells_bytes": sum(path.stat().st_size for path in cells),
        "results_bytes": (run / "results.json").stat().st_size,
        "page_bytes": (run / "report.html").stat().st_size,
        "run_seconds": run_seconds,
        "results_seconds": timed(lambda: outcome.results("causal", [])),
        "resume_finished_seconds": again,
    }
    shutil.rmtree(run)
    return measurements


def page(rows: list[dict[str, Any]]) -> str:
    """The results as a page."""
    head = ["Domains", "Columns", "Cells", "Cells, KiB", "results.json, KiB", "Page, KiB", "Results, s", "Resume, s"]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---:'] * len(head))}|"]
    for row in rows:
        sizes = [f"{row[f'{part}_bytes'] / 1024:,.0f}" for part in ("cells", "results", "page")]
        times = [f"{row[key]:.2f}" for key in ("results_seconds", "resume_finished_seconds")]
        lines.append(
            "| " + " | ".join([str(row["domains"]), row["columns"], f"{row['cells']:,}", *sizes, *times]) + " |"
        )
    per_cell = {
        columns: [row["results_bytes"] / row["cells"] for row in rows if row["columns"] == columns]
        for columns in COLUMNS
        if any(row["columns"] == columns for row in rows)
    }
    growth = "; ".join(f"`{name}`: {', '.join(f'{x:,.0f}' for x in each)}" for name, each in per_cell.items())
    return f"""# A long stream

N synthetic domains of a tiny Llama-type model, {STEPS} steps each, {BLOCKS} held-out rows of {BLOCK_SIZE} tokens per
domain, `run.keep_stages: last`. Written by `python benchmarks/long_stream.py`. Seconds are processor time on one
thread: *Results* is making `results.json` from the cells of the whole run (2,000 resamples of every score), *Resume* is
`everlearn resume` of the finished run, which checks the files and computes nothing.

{chr(10).join(lines)}

Bytes of `results.json` per measured cell, for growing N: {growth}. The file grows with what was measured (about 3 N
cells under `own`, N² / 2 under `seen`, N² under `all`), plus a part that each domain has once.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--columns", nargs="+", default=list(COLUMNS), choices=COLUMNS)
    parser.add_argument("--output", type=Path, default=PLACE)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        model = write_model(folder)
        for columns in chosen.columns:
            for length in chosen.lengths:
                rows.append(measure(folder, model, length, columns))
                print(json.dumps(rows[-1]), flush=True)
                write_json(chosen.output / "long-stream.json", rows)
                write_text(chosen.output / "long-stream.md", page(rows))


if __name__ == "__main__":
    main()
