"""What exact Fisher information costs beside a forward and backward pass on the same rows.

    python benchmarks/fisher_speed.py --output docs/results/fisher-speed.json

Models of three kinds, 4 to 7 M parameters each, on rows of several lengths, all in evaluation mode and with the loss of
training (vocabulary projected at labels only):

    forward and backward   the gradient of the batch's mean loss, as a training step computes it; no optimizer
    one pass               `everlearn.importance.gradient_moment` on the whole batch
    sample by sample       the same squares with a forward and a backward pass for each row, as it was done before
    vmap                   `torch.func.vmap(grad)`, PyTorch's own per-sample gradients, with the full projection and
                           stock cross-entropy because our in-place loss cannot be batched; encoder only

They run in turns; reported are medians of processor time, which hardly feels other processes. The trial that
`gradient_moment` makes on the first two rows of a measurement is timed apart: it is paid once, however many batches
follow. Peak memory is what lives at once over what was there before, the result (4 bytes a parameter) included, counted
in a turn of its own. The largest relative difference to the loop, over parameters, is in the last column.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import harness
from everlearn.data.blocks import PackedBlocks
from everlearn.data.loader import BlockLoader
from everlearn.importance import gradient_moment
from everlearn.importance.gradient_moments import BatchedSums, part_of, rows_of
from everlearn.model.loading import check_complete
from everlearn.model.objectives import IGNORE, Objective, make_objective

PLAIN, ONE_PASS, LOOP, VMAP = "forward and backward", "one pass", "sample by sample", "vmap"
T5 = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4, "decoder_start_token_id": 1}
Gradients = dict[str, Tensor]


def model_of(kind: str) -> nn.Module:
    """The English base (encoder), a decoder of 4 layers, or an encoder-decoder of 3 and 3; 256 wide."""
    if kind == "encoder":
        base = Path(__file__).parent / "bases/english"
        check_complete(base)
        return AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float32).eval()
    if kind == "decoder":
        return harness.random_model("gpt2", "cpu").eval()
    torch.manual_seed(0)
    config = AutoConfig.for_model("t5", **T5, vocab_size=harness.VOCABULARY, **harness.SPECIAL)
    return AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32).eval()


def batch_of(kind: str, objective: Objective, rows: int, length: int) -> dict[str, Tensor]:
    """Packed rows of random words; for the encoder-decoder prompts of that length and answers of a quarter."""
    packed = harness.packed_rows(rows, length)
    if kind == "encoder-decoder":
        prompts = packed["input_ids"]
        blocks = [{"input_ids": ids, "labels": np.append(ids[: length // 4 - 1], np.int32(2))} for ids in prompts]
        return objective.collate(blocks, range(rows))
    batch: dict[str, Tensor] = next(iter(BlockLoader(PackedBlocks(packed, 0, "benchmark"), objective, rows, 1)))
    return batch


def vmapped(model: nn.Module, batch: Mapping[str, Tensor]) -> Gradients:
    """Mean squared per-sample gradients of a masked language model, as the tutorial of torch.func has them."""
    weights = dict(model.named_parameters())

    def loss(weights: Gradients, ids: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(model, weights, (ids[None],)).logits[0]
        return F.cross_entropy(logits.gather(0, positions[:, None].expand(-1, logits.shape[1])), labels)

    labels = batch["labels"]
    each = vmap(grad(loss), in_dims=(None, 0, 0, 0))(weights, batch["input_ids"], batch["positions"], labels)
    return {name: gradients.square().mean(0) for name, gradients in each.items()}


def compare(kind: str, rows: int, length: int, turns: int) -> dict[str, Any]:
    """Every way's times, memory and difference to the loop on one batch."""
    model = model_of(kind)
    objective = make_objective(None, model, harness.tokenizer())
    batch, loss = batch_of(kind, objective, rows, length), objective.per_sample_loss
    parameters = dict(model.named_parameters())

    def zeros() -> Gradients:
        return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}

    tried = BatchedSums(model, parameters, loss, zeros())
    tried.add(part_of(batch, 0, 2))

    def plain() -> Gradients:
        gradients = torch.autograd.grad(loss(model, batch).mean(), list(parameters.values()), allow_unused=True)
        return {name: each for name, each in zip(parameters, gradients, strict=True) if each is not None}

    def one_pass() -> Gradients:
        tried.totals = zeros()
        tried.add(batch)
        return {name: total / rows for name, total in tried.totals.items()}

    @torch.no_grad()
    def difference(name: str) -> float | None:
        far = [float((measured[name][each] - exact[each]).norm() / exact[each].norm()) for each in seen]
        return None if name == PLAIN else max(far)

    def loop() -> Gradients:
        totals = zeros()
        for row in range(rows):
            for name, square in tried.of_mean(part_of(batch, row, row + 1)):
                totals[name] += square / rows
        return totals

    variants: dict[str, Callable[[], Gradients]] = {PLAIN: plain, ONE_PASS: one_pass, LOOP: loop}
    if kind == "encoder" and not (batch["labels"] == IGNORE).any():
        variants[VMAP] = lambda: vmapped(model, batch)
    times: dict[str, list[float]] = {name: [] for name in variants}
    measured: dict[str, Gradients] = {}
    for turn in range(turns + 1):
        for name, variant in variants.items():
            start = time.process_time()
            measured[name] = variant()
            if turn:  # the first turn warms up
                times[name].append(time.process_time() - start)
    start = time.process_time()
    gradient_moment(model, [batch], loss)
    seconds = time.process_time() - start
    medians = {name: statistics.median(each) for name, each in times.items()}
    exact = measured[LOOP]
    # Gradients that are 0 but for rounding (a key's bias) have no relative difference.
    seen = {name for name, value in exact.items() if value.norm() > 1e-12 * max(v.norm() for v in exact.values())}
    result: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in parameters.values())}
    result |= {"rows": rows_of(batch), "alone": sorted(tried.alone), "ways": {}}
    result["trial_processor_seconds"] = max(0.0, seconds - medians[ONE_PASS])
    for name, variant in variants.items():
        result["ways"][name] = {
            "processor_seconds": medians[name],
            "times_plain": medians[name] / medians[PLAIN],
            "peak_bytes": harness.peaks(variant, "cpu").total,
            "difference": difference(name),
            "turns": times[name],
        }
    return result


def table(results: Mapping[str, Any]) -> str:
    """Markdown of everything."""
    lines = [
        "| model, rows | | processor seconds | times forward and backward | peak memory, MB | difference to the loop |",
        "|---|---|---|---|---|---|",
    ]
    for title, result in results.items():
        for name, variant in result["ways"].items():
            far = "–" if variant["difference"] is None else f"{variant['difference']:.0e}"
            numbers = (
                f"{variant['processor_seconds']:.3f} | {variant['times_plain']:.2f} | "
                f"{variant['peak_bytes'] / 1e6:.0f} | {far}"
            )
            lines.append(f"| {title if name == PLAIN else ''} | {name} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the result here as JSON, and as Markdown beside it")
    parser.add_argument("--rows", type=int, default=16, help="rows of a batch")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128], help="tokens of a row")
    parser.add_argument("--turns", type=int, default=5, help="timed turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--note", default="", help="what else the machine was doing, for the result")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = harness.environment("cpu") | {"note": arguments.note, "turns": arguments.turns, "comparisons": {}}
    for kind in ("encoder", "decoder", "encoder-decoder"):
        for length in arguments.lengths:
            result = compare(kind, arguments.rows, length, arguments.turns)
            report["comparisons"][f"{kind}, {arguments.rows} × {length}"] = result
            print(table({kind: result}), flush=True)
    harness.save(arguments.output, report)
    if arguments.output is not None:
        sentence = (
            f"`benchmarks/fisher_speed.py`, {report['device']}, {report['threads']} thread, medians of "
            f"{arguments.turns} turns in processor time. {arguments.note}"
        )
        alone = {name for result in report["comparisons"].values() for name in result["alone"]}
        sizes = "; ".join(
            f"{title}: {result['parameters'] / 1e6:.1f} M parameters, trial {result['trial_processor_seconds']:.2f} s"
            for title, result in report["comparisons"].items()
        )
        text = [
            "# Exact Fisher information beside a forward and backward pass",
            sentence.strip(),
            table(report["comparisons"]),
            f"Once for each measurement, whatever the number of rows: {sizes}. Parameters that needed a pass for each "
            f"sample: {', '.join(sorted(alone)) or 'none'}. A Fisher diagonal is 4 bytes a parameter.",
        ]
        arguments.output.with_suffix(".md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
