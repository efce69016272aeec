"""What a training step with DAS costs over a plain one, and over a step done as the released code does it.

    python benchmarks/das_step.py --output docs/results/das-step.json
    python benchmarks/das_step.py --size base --batch 8 --segments 2 --steps 1 --output …

The demo's encoder (5 M parameters), or one of RoBERTa-base's size (125 M), random weights, under `sequential` and under
DAS in these forms, all in turns (see ``harness.py``):

    transformers       no method, transformers' own Trainer, which projects all positions on the vocabulary
    released way       separate passes (masked; the text twice; gated), each projecting all positions on the vocabulary
    exact              the paper's mathematics in one pass, projected where there is a label
    stop gradient      the gated rows in a pass of their own without gradient
    anchor masked      the pass of the loss is one of the two representations; with the stopped gradient too
    quarter            a quarter of each batch contrasted; with the masked anchor too; with both savings
    mask alone         contrast 0

The mask is of a later domain, so that every view is there; its importance is random, because its values do not change
the speed. What a domain's importance pass costs is ``importance_speed.py``'s.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import Trainer

import harness
from everlearn.methods import build
from everlearn.methods.base import Memory, Method, View
from everlearn.model.anatomy import anatomy
from everlearn.model.gates import row_gates
from everlearn.model.objectives import IGNORE, Masked, Outputs
from everlearn.model.vocabulary_head import unwrap

PLAIN, STOCK, RELEASED = "plain", "transformers", "released way"
DAS: dict[str, dict[str, Any]] = {
    RELEASED: {},
    "exact": {},
    "stop gradient": {"stop_gradient_prev": True},
    "anchor masked": {"anchor": "masked"},
    "anchor masked, stop gradient": {"anchor": "masked", "stop_gradient_prev": True},
    "quarter": {"contrast_fraction": 0.25},
    "quarter, anchor masked": {"contrast_fraction": 0.25, "anchor": "masked"},
    "quarter, both": {"contrast_fraction": 0.25, "anchor": "masked", "stop_gradient_prev": True},
    "mask alone": {"contrast": 0},
}


class SeparatePasses(Masked):
    """Masked language modelling with the views of DAS run as the released code runs them.

    One pass for the masked text, one for both copies of the plain text, one for the gated text. Each projects all
    positions onto the vocabulary and takes the cross-entropy, which only the first one's is used of.
    """

    def forward(self, model: nn.Module, batch: Mapping[str, Tensor], views: Sequence[View] = ()) -> Outputs:
        labels = torch.full_like(batch["input_ids"], IGNORE).scatter_(1, batch["positions"], batch["labels"])
        losses, hidden = self._whole(model, batch["input_ids"], labels)
        outputs = Outputs(losses, (labels != IGNORE).sum(), hidden, view_losses=[None] * len(views))
        copies = [view.inputs["input_ids"] for view in views if view.gates is None]
        if copies:
            _, both = self._whole(model, torch.cat(copies), labels.repeat(len(copies), 1))
            outputs.views += both.chunk(len(copies))
        for view in views:
            if view.gates is not None:
                ids = view.inputs["input_ids"]
                with row_gates(unwrap(model), [(len(ids), view.gates)]):
                    outputs.views.append(self._whole(model, ids, labels)[1])
        return outputs

    @staticmethod
    def _whole(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        out: Any = model(input_ids=ids, output_hidden_states=True)
        losses = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORE)
        return losses.view(labels.shape), out.hidden_states[-1]


def as_released(contender: harness.Contender) -> harness.Contender:
    """The same training, one pass after another."""

    def make(clock: harness.Clock, steps: int) -> Trainer:
        trainer: Any = contender(clock, steps)
        objective = trainer.stage.objective
        options = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}
        trainer.stage.objective = SeparatePasses(**options)
        return trainer

    return make


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
    """Every contender's times, and their ratios to plain training."""
    rows = harness.packed_rows(arguments.batch * (arguments.warmup + arguments.steps))
    train = harness.options(arguments.batch, precision)
    # One for all: what it has learnt does not change the speed.
    model = harness.random_model("roberta", arguments.device, arguments.size)
    contenders = {STOCK: harness.stock_trainer(model, rows, train, arguments.device)}
    for name in (PLAIN, *(arguments.forms or DAS)):
        method = build("sequential") if name == PLAIN else das(model, DAS[name])
        contender = harness.stage_trainer(model, rows, [method], train)
        contenders[name] = as_released(contender) if name == RELEASED else contender
    timings = harness.interleave(
        contenders, segments=arguments.segments, steps=arguments.steps, warmup=arguments.warmup
    )
    result = {name: timing.summary(arguments.batch * harness.LENGTH) for name, timing in timings.items()}
    for summary in result.values():
        for clock in ("seconds_per_step", "processor_seconds_per_step"):
            summary[f"times_{clock}"] = summary[clock] / result[PLAIN][clock]
            summary[f"times_stock_{clock}"] = summary[clock] / result[STOCK][clock]
    return result


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--size", choices=["small", "base"], default="small", help="5 M or 125 M parameters")
    parser.add_argument("--forms", nargs="+", choices=list(DAS), help="only these forms of DAS")
    parser.add_argument("--precision", nargs="+", choices=["float32", "bf16"], default=["float32"])
    parser.add_argument("--note", help="what else the machine was doing, for the JSON")
    parser.set_defaults(segments=4)
    arguments = parser.parse_args()
    allocator = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    report = harness.header(arguments) | {"size": arguments.size, "note": arguments.note, "allocator": allocator}
    report["comparisons"] = {}
    print(f"{'seconds per step':60}{'':10}{'times plain':>12}{'in processor time':>20}{'of transformers':>18}")
    for precision in arguments.precision:
        result = report["comparisons"][precision] = compare(precision, arguments)
        for name, summary in result.items():
            seconds, times = summary["seconds_per_step"], summary["times_seconds_per_step"]
            processor = summary["times_processor_seconds_per_step"]
            stock = summary["times_stock_processor_seconds_per_step"]
            print(f"{f'{precision} {name}':60}{seconds:10.3f}{times:12.2f}{processor:20.2f}{stock:18.2f}", flush=True)
    harness.save(arguments.output, report)


if __name__ == "__main__":
    main()
