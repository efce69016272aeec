"""What a training step with DAS costs over a plain one.

    python benchmarks/das_step.py --output docs/results/das_step.json

The demo's encoder (5 M parameters) under `sequential` and under DAS: the mask alone (contrast 0), and with the contrast
on a quarter of each batch, on the whole batch as published, and on the whole batch without a gradient through the
gated network. All in turns (see ``harness.py``). The mask is of a later domain, so that every view is there; its
importance is random, because its values do not change the speed. What a domain's importance pass costs is
``importance_speed.py``'s.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

import harness
from everlearn.anatomy import anatomy
from everlearn.methods import build
from everlearn.methods.base import Memory, Method

PLAIN = "sequential"
DAS: dict[str, dict[str, Any]] = {
    "mask": {"contrast": 0},
    "mask + contrast 0.25": {"contrast_fraction": 0.25},
    "mask + contrast 1.0": {},
    "mask + contrast 1.0, gated part without gradient": {"stop_gradient_prev": True},
}


def das(model: nn.Module, options: dict[str, Any]) -> Method:
    """DAS as it stands before a second domain."""
    generator = torch.Generator().manual_seed(0)
    importance = {
        f"accumulated/{site.name}": torch.rand(site.units, generator=generator) for site in anatomy(model).sites
    }
    method = build({"name": "das", **options})
    method.load_memory(Memory(importance, {"domains": ["earlier"]}))
    return method


def compare(precision: str, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = harness.packed_rows(arguments.batch * (arguments.warmup + arguments.steps))
    train = harness.options(arguments.batch, precision)
    contenders = {}
    for name in (PLAIN, *DAS):
        model = harness.small_model("roberta", arguments.device)
        method = build(PLAIN) if name == PLAIN else das(model, DAS[name])
        contenders[name] = harness.stage_trainer(model, rows, [method], train)
    timings = harness.interleave(
        contenders, segments=arguments.segments, steps=arguments.steps, warmup=arguments.warmup
    )
    result = {name: timing.summary(arguments.batch * harness.LENGTH) for name, timing in timings.items()}
    for summary in result.values():
        for clock in ("seconds_per_step", "processor_seconds_per_step"):
            summary[f"times_{clock}"] = summary[clock] / result[PLAIN][clock]
    return result


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--precision", nargs="+", choices=["float32", "bf16"], default=["float32"])
    parser.set_defaults(segments=4)
    arguments = parser.parse_args()
    report = harness.header(arguments) | {"comparisons": {}}
    print(f"{'seconds per step':60}{'':10}{'times plain':>12}{'in processor time':>20}")
    for precision in arguments.precision:
        result = report["comparisons"][precision] = compare(precision, arguments)
        for name, summary in result.items():
            seconds, times = summary["seconds_per_step"], summary["times_seconds_per_step"]
            processor = summary["times_processor_seconds_per_step"]
            print(f"{f'{precision} {name}':60}{seconds:10.3f}{times:12.2f}{processor:20.2f}", flush=True)
    harness.save(arguments.output, report)


if __name__ == "__main__":
    main()
