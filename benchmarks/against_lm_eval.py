"""Scores of HellaSwag, WinoGrande and ARC-challenge here and by lm_eval, on the same items with the same model.

    python -m venv v && v/bin/pip install everlearn lm_eval       # lm_eval is no dependency of everlearn
    v/bin/python benchmarks/against_lm_eval.py MODEL DATA [ITEMS]

MODEL is a folder with a causal model, DATA that of the suite `code` (`docs/bench.md`). lm_eval reads the same files by
configurations with its own prompts, choices and targets for these tasks; acc is to equal `choice_accuracy`, acc_bytes
`choice_accuracy_per_byte` (acc_norm counts characters), exactly: exit code 1 where one does not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from everlearn.evaluation import METRICS, make_task
from everlearn.evaluation.task import Conditions, task_config
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint
from everlearn_bench.suites.code.files import find
from everlearn_bench.suites.code.suite import Code

THEIRS: dict[str, dict[str, Any]] = {
    "hellaswag": {"doc_to_text": "{{query}}", "doc_to_choice": "choices", "doc_to_target": "{{gold}}"},
    "arc_challenge": {"doc_to_text": "{{query}}\nAnswer:", "doc_to_choice": "choices", "doc_to_target": "{{gold}}"},
    "winogrande": {"doc_to_text": "gold", "doc_to_choice": "context_options", "doc_to_target": "continuation"},
}
METRIC = {"acc": "choice_accuracy", "acc_bytes": "choice_accuracy_per_byte"}


def by_lm_eval(model: Any, tokenizer: Any, data: Path, items: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, options in THEIRS.items():
            metrics = ["acc"] if name == "winogrande" else ["acc", "acc_norm", "acc_bytes"]
            config = {
                "task": f"ours_{name}",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(find(name, data))}},
                "test_split": "test",
                "output_type": "multiple_choice",
                "metric_list": [{"metric": each, "aggregation": "mean", "higher_is_better": True} for each in metrics],
                **options,
            }
            Path(folder, f"{name}.yaml").write_text(yaml.safe_dump(config))
        results = lm_eval.simple_evaluate(
            HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8),
            tasks=[f"ours_{name}" for name in THEIRS],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            limit=items,
            bootstrap_iters=0,
        )
    return {
        name: {key.partition(",")[0]: value for key, value in results["results"][f"ours_{name}"].items()}
        for name in THEIRS
    }


def ours(model: Any, tokenizer: Any, data: Path, items: int) -> dict[str, dict[str, float]]:
    scores, tasks = {}, {task["name"]: task for task in Code().template()["end_tasks"]}
    for name in THEIRS:
        lines = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)  # noqa: SIM115 - read by name below
        import gzip

        path = find(name, data)
        with lines, (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as rows:
            lines.writelines(line for _, line in zip(range(items), rows, strict=False))
        task = make_task(task_config({**tasks[name], "test": lines.name}, "end_tasks.0"))
        how = Conditions("base", tokenizer, make_objective("causal", model, tokenizer), batch_size=8)
        cell = task.measure(Checkpoint(model, how.objective), how)
        scores[name] = {key: METRICS[metric].score(cell) for key, metric in METRIC.items()}
    return scores


def main() -> None:
    folder, data, items = sys.argv[1], Path(sys.argv[2]), int((sys.argv[3:] or ["200"])[0])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    mine, others = ours(model, tokenizer, data, items), by_lm_eval(model, tokenizer, data, items)
    wrong = 0
    for name, scores in mine.items():
        for key, value in scores.items():
            if key in others[name]:
                same = abs(value - others[name][key]) < 1e-9
                wrong += not same
                print(
                    f"{name:15} {key:10} here {value:.6f}  lm_eval {others[name][key]:.6f}  {'' if same else 'DIFFERS'}"
                )
        if "acc_norm" in others[name]:
            print(f"{name:15} acc_norm                  lm_eval {others[name]['acc_norm']:.6f}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
