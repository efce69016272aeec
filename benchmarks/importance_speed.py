"""Unit importance in one backward pass per batch against one backward pass per sample.

    python benchmarks/importance_speed.py --output docs/results/importance_speed.json

The model is a RoBERTa of 5 M parameters (hidden size 256, 4 layers, 4 heads, feed-forward 1024, vocabulary 8192) on
batches of 64 sequences of 128 tokens (`--length`), 15 % of them masked, vocabulary head at the masked positions only.
Compared are

    one pass          `unit_importance` on the whole batch
    sample by sample  `unit_importance` on 64 batches of one sample: the same code, so the gain is batching alone
    plain loop        what one writes without per-sample gates: a sample at a time, `loss.backward()` through gates and
                      parameters, then |gate.grad|; the full vocabulary head of the stock forward pass

The ways are timed in turns, so that a busy machine slows all of them alike; medians are reported, and the largest
relative difference between their results.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaForMaskedLM

from everlearn.files import write_json
from everlearn.importance import unit_importance
from everlearn.model.gates import Gates

VOCABULARY = 8192


def make_model(length: int) -> RobertaForMaskedLM:
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=length + 2,
        type_vocab_size=1,
    )
    return RobertaForMaskedLM(config).eval()


def make_batch(rows: int, length: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=generator)
    positions = torch.rand(rows, length, generator=generator).argsort(1)[:, : max(1, round(0.15 * length))]
    return {"input_ids": ids.scatter(1, positions, 4), "positions": positions, "labels": ids.gather(1, positions)}


def labelled_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of each sample, [B]; logits at the labels only."""
    hidden = model.roberta(input_ids=batch["input_ids"]).last_hidden_state
    hidden = hidden.gather(1, batch["positions"][..., None].expand(-1, -1, hidden.shape[-1]))
    return F.cross_entropy(model.lm_head(hidden).transpose(1, 2), batch["labels"], reduction="none").mean(1)


def one_pass(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return unit_importance(model, [batch], labelled_loss)


def sample_by_sample(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    rows = range(len(batch["labels"]))
    return unit_importance(model, [{n: t[i : i + 1] for n, t in batch.items()} for i in rows], labelled_loss)


def plain_loop(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    rows = len(batch["labels"])
    labels = torch.full_like(batch["input_ids"], -100).scatter(1, batch["positions"], batch["labels"])
    with Gates(model) as gates:
        device = batch["input_ids"].device
        leaves = {site.name: torch.ones(site.units, device=device, requires_grad=True) for site in gates.sites}
        totals = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        gates.set(leaves)
        for row in range(rows):
            model(input_ids=batch["input_ids"][row : row + 1], labels=labels[row : row + 1]).loss.backward()
            for name, leaf in leaves.items():
                totals[name] += leaf.grad.abs() / rows
                leaf.grad = None
            model.zero_grad()
    return totals


WAYS = {"one pass": one_pass, "sample by sample": sample_by_sample, "plain loop": plain_loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the result here as JSON")
    parser.add_argument("--batch", type=int, default=64, help="samples per batch")
    parser.add_argument("--length", type=int, default=128, help="tokens per sample")
    parser.add_argument("--repeats", type=int, default=3, help="timed turns")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="threads on the CPU; default as torch chooses")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    model = make_model(arguments.length).to(device)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    results: dict[str, dict[str, Tensor]] = {}
    for turn in range(arguments.repeats + 1):
        batch = {
            name: tensor.to(device) for name, tensor in make_batch(arguments.batch, arguments.length, seed=turn).items()
        }
        for name, variant in WAYS.items():
            start = time.perf_counter()
            results[name] = variant(model, batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    exact = results["plain loop"]
    difference = {
        name: max(float((scores[s] - exact[s]).norm() / exact[s].norm()) for s in exact)
        for name, scores in results.items()
    }
    for name, median in medians.items():
        print(f"{name:18} {median:8.3f} s   {median / medians['one pass']:6.1f} ×   difference {difference[name]:.1e}")
    if arguments.output:
        report = {
            "batch": arguments.batch,
            "length": arguments.length,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "seconds": seconds,
            "median_seconds": medians,
            "times_faster": {name: median / medians["one pass"] for name, median in medians.items()},
            "relative_difference": difference,
        }
        write_json(arguments.output, report)


if __name__ == "__main__":
    main()
