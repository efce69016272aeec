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
from everlearn_bench.suites.six_domains import ORDERS, EndTasks, recipe

HERE = Path(__file__).parent
DOMAINS = ORDERS[0][:3]
PRE_TRAINING = (3e-4, 1e-3, 2e-3, 3e-3)
END_TASKS = (2e-4, 5e-4, 1e-3, 2e-3)
SEED = 99
COMMON: dict[str, Any] = {"batch": 16, "accumulate": 1, "block_size": 128, "blocks": 32, "seed": SEED}
COMMON["train"] = {"bf16": True}


def run(**options: Any) -> Any:
    """A run in a temporary folder; its results."""
    with tempfile.TemporaryDirectory() as folder:
        made = recipe(DOMAINS, folder=f"{folder}/run", method="sequential", **(COMMON | options))
        return ContinualLearner(parse(made)).run()


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
    common = {"data": arguments.data, "model": arguments.model}
    learnt = {}
    for rate in PRE_TRAINING:
        results = run(**common, steps=arguments.steps, learning_rate=rate, end_tasks=None)
        losses = results.matrices["loss"].values
        learnt[rate] = sum(float(losses[i + 1][i] or 0) for i in range(len(DOMAINS))) / len(DOMAINS)
        print(f"pre-training {rate:g}: {learnt[rate]:.4f} nats a label", flush=True)
    scores = {}
    for rate in END_TASKS:
        limits = EndTasks(
            max_train=arguments.max_train,
            max_test=arguments.max_test,
            epochs_factor=arguments.epochs_factor,
            learning_rate=rate,
            batch_size=arguments.batch_size,
            seeds=1,
            when="final",
        )
        results = run(**common, steps=1, learning_rate=1e-9, end_tasks=limits)
        found = results.matrices.get("f1", results.matrices["macro_f1"]).values[0]
        scores[rate] = sum(float(value or 0) for value in found) / len(found)
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
