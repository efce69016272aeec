"""What methods cost on a recipe of one's own: seconds a step and peak memory, beside plain training, in turns.

    python benchmarks/overhead.py recipe.yaml --methods 'sequential,migu,ewc,[das,replay]' --output overhead.json

Every method (as `everlearn sweep --methods` names them) trains a second domain of the recipe's first one, after a first
one that was begun and ended, so that masks, penalties and replayed rows are at work. A few rows stand for each domain.
Time: see ``harness.py``; what methods do between domains is not in it. Memory: the most bytes of tensors that lived at
once, model, optimizer and importance passes included, counted in a turn of its own that is not timed; and the same of
the steps alone, beside what the method declares to hold in them (`everlearn plan`). A table goes to the terminal, and
with the JSON as Markdown beside it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

import harness
from everlearn.config.arguments import training_arguments
from everlearn.config.recipe import load
from everlearn.data.blocks import PackedBlocks
from everlearn.data.loader import BlockLoader
from everlearn.grid import RecipeTemplate, read_variations
from everlearn.grid.rows import RowSpec
from everlearn.learner import ContinualLearner
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection
from everlearn.model.loading import quiet
from everlearn.run.trainer import StageTrainer


def contender(learner: ContinualLearner, entry: RowSpec, device: str) -> harness.Contender:
    """A second stage under this entry's methods, from the base model each time."""
    domain = learner.recipe.domains[0]
    options = learner.recipe.train_of(domain.name) | {
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 10**6,
    }
    options |= {"use_cpu": True} if device == "cpu" else {}

    def make(clock: harness.Clock, steps: int) -> Trainer:
        args = training_arguments(options, Path(tempfile.gettempdir()) / "everlearn-benchmark", 0, steps)
        methods = [build(spec) for spec in entry.methods]
        source = learner.prepared(domain.name).train.fresh(0)
        batches = steps * args.gradient_accumulation_steps
        rows = min(source.size or 4096, args.per_device_train_batch_size * 2)
        few = PackedBlocks.from_blocks([next(source) for _ in range(rows)], seed=0, name=domain.name)
        stage = learner.stage(1, domain, methods)
        stage.source, stage.steps, stage.general = few, steps, few if stage.general is not None else None
        protection = Protection(methods, stage)
        protection.begin()
        protection.end()
        stage.model = learner.to_train(stage.model, args.device, methods)
        stage.index, stage.domain, stage.earlier = 2, "second", (domain.name,)
        loader = BlockLoader(protection.begin(), stage.objective, args.per_device_train_batch_size, batches)
        return StageTrainer(protection=protection, loader=loader, args=args, callbacks=[clock])

    return make


def main() -> None:
    parser = harness.parser(__doc__, batch=False)
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--methods", default="sequential,migu,migu_kept_rows", help="the first is what others are held against"
    )
    parser.add_argument("--note", help="what else the machine was doing, for the JSON")
    arguments = parser.parse_args()
    quiet()
    report = harness.header(arguments) | {"note": arguments.note, "recipe": arguments.recipe.name}
    recipe = load(arguments.recipe, [])
    entries = read_variations(arguments.methods, (), RecipeTemplate(recipe, arguments.recipe.stem))
    with tempfile.TemporaryDirectory() as folder:
        # Nothing is trained there; the learner only wants a place of its own.
        learner = ContinualLearner(load(arguments.recipe, [f"run.folder={folder}"]))
        contenders = {entry.title: contender(learner, entry, arguments.device) for entry in entries}
        memory = {name: harness.peak_memory(make, arguments.device) for name, make in contenders.items()}
        model = learner.stage(1, recipe.domains[0], []).model
        declared = {
            entry.title: sum(build(spec).cost(model).memory_bytes for spec in entry.methods) for entry in entries
        }
        timings = harness.interleave(
            contenders, segments=arguments.segments, steps=arguments.steps, warmup=arguments.warmup
        )
    args = learner.arguments(recipe.domains[0].name)
    report |= {"batch": learner.rows_per_step(args), "length": learner.setting().block_size}  # the recipe's own
    tokens = report["batch"] * report["length"]
    summaries: dict[str, Any] = {name: timing.summary(tokens) for name, timing in timings.items()}
    for name, peak in memory.items():
        summaries[name] |= {"peak_bytes": peak.total, "steps_bytes": peak.steps, "declared_bytes": declared[name]}
    report["methods"] = harness.beside_first(summaries)
    table = harness.overhead_table(report["methods"])
    print(table)
    harness.save(arguments.output, report)
    if arguments.output is not None:
        title = f"# What methods cost on `{arguments.recipe.name}`"
        sentence = (
            f"`benchmarks/overhead.py`, {report['device']}, {report['threads']} threads. {arguments.note or ''}".strip()
        )
        arguments.output.with_suffix(".md").write_text(f"{title}\n\n{sentence}\n\n{table}\n", encoding="utf-8")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
