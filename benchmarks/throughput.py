"""Tokens per second of plain sequential training against transformers' own Trainer.

    python benchmarks/throughput.py --output docs/results/throughput.json

Same model, rows, length, batch, optimizer and precision for both, in turns (see ``harness.py``):

    everlearn      ``StageTrainer`` with method `sequential`: the vocabulary head and the loss only where there is a
                   label, a fixed number of masked positions
    transformers   ``Trainer`` on a ``datasets.Dataset`` with the stock ``DataCollatorForLanguageModeling``: logits of
                   every position

for a masked encoder (5 M parameters: hidden size 256, 4 layers, 4 heads, feed-forward 1024, vocabulary 8192) and for a
causal decoder of the same size. A causal model has a label everywhere, so nothing is saved there; everlearn's rows are
also isolated document by document, for which attention needs a mask that the stock Trainer does without. `--size` takes
larger models; `--peak-tflops` shows which share of the device's peak the model's own operations use.
"""

from __future__ import annotations

import argparse
from typing import Any

import harness
from everlearn.methods import build

MODELS = {"masked": "roberta", "causal": "gpt2"}
COMPARISONS = ["masked float32", "masked bf16", "causal float32", "causal bf16"]


def compare(comparison: str, arguments: argparse.Namespace) -> dict[str, Any]:
    objective, precision = comparison.split()
    rows = harness.packed_rows(arguments.batch * (arguments.warmup + arguments.steps))
    train = harness.options(arguments.batch, precision)
    kind, size = MODELS[objective], arguments.size
    models = [harness.random_model(kind, arguments.device, size, arguments.vocabulary) for _ in range(2)]
    contenders = {
        "everlearn": harness.stage_trainer(models[0], rows, [build("sequential")], train),
        "transformers": harness.stock_trainer(models[1], rows, train, arguments.device),
    }
    timings = harness.interleave(
        contenders, segments=arguments.segments, steps=arguments.steps, warmup=arguments.warmup
    )
    tokens = arguments.batch * harness.LENGTH
    result: dict[str, Any] = {name: timing.summary(tokens) for name, timing in timings.items()}
    if arguments.memory:
        for name, make in contenders.items():
            result[name]["peak_bytes"] = harness.peak_memory(make, arguments.device).total
    if arguments.peak_tflops:
        needed = harness.flops_per_token(models[0])
        for name in contenders:
            used = needed * result[name]["tokens_per_second"] / (1e12 * arguments.peak_tflops)
            result[name]["model_flops_utilisation"] = used
    ours, stock = result["everlearn"], result["transformers"]
    for clock in ("tokens_per_second", "tokens_per_processor_second"):
        result[f"ratio_{clock}"] = ours[clock] / stock[clock]
    if arguments.memory:
        result["ratio_peak_bytes"] = ours["peak_bytes"] / stock["peak_bytes"]
    return result


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--comparisons", nargs="+", choices=COMPARISONS, default=COMPARISONS[:3])
    parser.add_argument(
        "--size", choices=["small", *harness.FULL], default="small", help="5 M, 125 M or 1 B parameters"
    )
    parser.add_argument("--vocabulary", type=int, help="another size of the vocabulary than the model's usual one")
    parser.add_argument("--memory", action="store_true", help="measure the peak of memory too")
    parser.add_argument("--peak-tflops", type=float, help="the device's own peak in this precision, for utilisation")
    arguments = parser.parse_args()
    report = harness.header(arguments) | {"size": arguments.size, "peak_tflops": arguments.peak_tflops}
    report |= {"vocabulary": arguments.vocabulary}
    report |= {"comparisons": {}}
    print(f"{'tokens per second':18}{'everlearn':>12}{'transformers':>14}{'ratio':>9}{'ratio in processor time':>26}")
    for name in arguments.comparisons:
        result = report["comparisons"][name] = compare(name, arguments)
        ours, stock = (result[contender]["tokens_per_second"] for contender in ("everlearn", "transformers"))
        ratios = result["ratio_tokens_per_second"], result["ratio_tokens_per_processor_second"]
        print(f"{name:18}{ours:12,.0f}{stock:14,.0f}{ratios[0]:9.2f}{ratios[1]:26.2f}", flush=True)
    harness.save(arguments.output, report)


if __name__ == "__main__":
    main()
