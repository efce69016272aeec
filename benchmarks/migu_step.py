"""What a training step of full fine-tuning costs with MIGU: the published rule, and gradients for kept rows only.

    python benchmarks/migu_step.py --output docs/results/migu-step.json

Encoders of several widths with random weights (4 layers, 8,192 words, 128 tokens a row), under `sequential` and under
MIGU (T = 0.7, masked from the first step), all in turns (see ``harness.py``):

    gradient     the published rule: the mask of the step's outputs on the gradients
    update       the same mask on what the optimizer changes, our default
    kept rows    `gradient_of: kept-rows`: what the mask removes is never computed; without accumulation the same rows,
                 and the same gradients

Peak memory (model apart, optimizer included) is counted in a turn of its own. For your own recipe: ``overhead.py``.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

import harness
from everlearn.methods import build

PLAIN = "plain"
FORMS: dict[str, dict[str, Any]] = {
    "gradient": {"apply_to": "gradient"},
    "update": {"apply_to": "update"},
    "kept rows": {"apply_to": "gradient", "gradient_of": "kept-rows"},
    "kept rows, update": {"apply_to": "update", "gradient_of": "kept-rows"},
}


def model_of(width: int, device: str) -> nn.Module:
    """An encoder of 4 layers, with heads of 64 features and a feed-forward of four times its width."""
    torch.manual_seed(0)
    sizes = {
        **harness.SMALL["roberta"],
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
    }
    config = AutoConfig.for_model("roberta", **sizes, **harness.SPECIAL)
    model: nn.Module = AutoModelForMaskedLM.from_config(config, dtype=torch.float32).to(device)
    return model


def compare(width: int, precision: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every form's times on a model of one width, and their ratios to plain training."""
    rows = harness.packed_rows(arguments.batch * (arguments.warmup + arguments.steps))
    train = harness.options(arguments.batch, precision)
    model = model_of(width, arguments.device)
    contenders = {PLAIN: harness.stage_trainer(model, rows, [build("sequential")], train)}
    for name, options in FORMS.items():
        method = build({"name": "migu", "skip_first_domain": False, **options})
        contenders[name] = harness.stage_trainer(model, rows, [method], train)
    timings = harness.interleave(
        contenders, segments=arguments.segments, steps=arguments.steps, warmup=arguments.warmup
    )
    result = {name: timing.summary(arguments.batch * harness.LENGTH) for name, timing in timings.items()}
    for name, make in contenders.items():
        result[name]["peak_bytes"] = harness.peak_memory(make, arguments.device).total
    return harness.beside_first(result)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--widths", nargs="+", type=int, default=[256, 512, 768, 1024])
    parser.add_argument("--precision", nargs="+", choices=["float32", "bf16"], default=["float32"])
    parser.add_argument("--note", help="what else the machine was doing, for the JSON")
    arguments = parser.parse_args()
    report = harness.header(arguments) | {"note": arguments.note, "comparisons": {}}
    tables = []
    for precision in arguments.precision:
        for width in arguments.widths:
            name = f"{precision}, {width} wide"
            report["comparisons"][name] = compare(width, precision, arguments)
            tables.append(f"## {name}\n\n{harness.overhead_table(report['comparisons'][name])}\n")
            print(tables[-1], flush=True)
    harness.save(arguments.output, report)
    if arguments.output is not None:
        sentence = (
            f"`benchmarks/migu_step.py`, {report['device']}, {report['threads']} thread(s), {arguments.batch} rows of "
            f"{harness.LENGTH} tokens, {arguments.segments} segments of {arguments.steps} steps of each form in turns; "
            f"medians. Load average when it began: {report['load_average_at_start']:.1f}. {arguments.note or ''}"
        )
        text = "\n".join(["# A MIGU step beside a plain one", "", sentence.strip(), "", *tables])
        arguments.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
