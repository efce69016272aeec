"""Choose the small grid's learning rates on the first three domains of order 0, with plain training alone.

    python benchmarks/six-domains/choose.py DATA [--model benchmarks/bases/english] [--output choose.json]

Nothing else is tuned, and nothing is tuned for a method: every entry of the grid uses what is chosen here. The learning
rate of pre-training is the one with the lowest loss on the three domains right after each was learnt; the one of the
end tasks is the one with the highest mean F1 of the base model on the three end tasks, with a seed that the grid does
not use.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from everlearn.config.recipe import parse
from everlearn.files import write_json
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn_bench.suites import find_suite, overlay_of

HERE = Path(__file__).parent
SUITE = find_suite("six-domains")
DOMAINS = SUITE.first[:3]
PRE_TRAINING = (3e-4, 1e-3, 2e-3, 3e-3)
END_TASKS = (2e-4, 5e-4, 1e-3, 2e-3)
SEED = 99
BATCH = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "bf16": True}


def run(arguments: argparse.Namespace, train: dict[str, Any], end_tasks: dict[str, Any] | None) -> Any:
    """A run in a temporary folder; its results."""
    changes = {
        "model": arguments.model,
        "data": {"block_size": 128},
        "train": BATCH | train,
        "end_tasks": end_tasks,
        "evaluation": {"blocks": 32, "end_task_seeds": 1, "end_tasks": "final"},
    }
    suite = SUITE.on(overlay_of(changes), arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        recipe = suite.recipe(DOMAINS, method=["sequential"], seed=SEED, name="choose", folder=Path(folder, "run"))
        return ContinualLearner(parse(recipe)).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default=str(HERE.parent / "bases" / "english"))
    parser.add_argument("--output", type=Path, default=HERE / "choose.json")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max-train", type=int, default=400)
    parser.add_argument("--max-test", type=int, default=400)
    parser.add_argument("--epochs-factor", type=float, default=0.4)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    quiet()
    epochs = {task["name"]: task["epochs"] for task in SUITE.template()["end_tasks"]}
    learnt = {}
    for rate in PRE_TRAINING:
        results = run(arguments, {"max_steps": arguments.steps, "learning_rate": rate}, None)
        losses = results.matrices["loss"].values
        learnt[rate] = sum(float(losses[i + 1][i] or 0) for i in range(len(DOMAINS))) / len(DOMAINS)
        print(f"pre-training {rate:g}: {learnt[rate]:.4f} nats a label", flush=True)
    scores = {}
    for rate in END_TASKS:
        limits: dict[str, Any] = {
            "max_train": arguments.max_train,
            "max_test": arguments.max_test,
            "learning_rate": rate,
            "batch_size": arguments.batch_size,
        }
        own = {name: {"epochs": arguments.epochs_factor * number} for name, number in epochs.items()}
        results = run(arguments, {"max_steps": 1, "learning_rate": 1e-9}, {"*": limits, **own})
        values = results.matrices.get("f1", results.matrices["macro_f1"]).values[0]
        scores[rate] = sum(float(value or 0) for value in values) / len(values)
        print(f"end tasks {rate:g}: mean F1 {scores[rate]:.4f}", flush=True)
    report = {
        "domains": list(DOMAINS),
        "seed": SEED,
        "steps": arguments.steps,
        "loss_after_own_domain": {f"{rate:g}": value for rate, value in learnt.items()},
        "learning_rate": min(learnt, key=lambda rate: learnt[rate]),
        "mean_f1_of_the_base": {f"{rate:g}": value for rate, value in scores.items()},
        "end_task_learning_rate": max(scores, key=lambda rate: scores[rate]),
    }
    write_json(arguments.output, report)


if __name__ == "__main__":
    main()
