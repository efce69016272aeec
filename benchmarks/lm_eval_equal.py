"""lm_eval's scores in a run, beside what lm_eval says of the same folders by itself.

    python -m venv v && v/bin/pip install 'everlearn[lm-eval]'
    v/bin/python benchmarks/lm_eval_equal.py DATA [--limit 40] [--steps 5]

A short run from `benchmarks/bases/english-decoder` learns Yelp reviews under bf16, with `evaluation.lm_eval` before the
stage and after it; then `lm_eval.simple_evaluate` reads the base model's folder and the stage's. DATA has `domains` and
`eval`, of which tasks of lm_eval are made as its users write their own. Written to `docs/results/lm-eval.md` and
`.json`; exit code 1 where a score differs by more than TOLERANCE of it.

lm_eval takes the weights in the number format that they are saved in. The base model's is bfloat16, and a run computes
in float32: so the base model is also asked with `dtype=float32`, which is what has to be equal.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn.tasks.lm_eval import LOWER, PREFIX

HERE = Path(__file__).parent
BASE = HERE / "bases/english-decoder"
PAGE = HERE.parent / "docs/results/lm-eval.md"
DOMAIN = "yelp_restaurants"
CHOICE = {"output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "choices"}
ROLLING = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"}
PICKED = ("acc", "acc_norm")
TEXT = ("word_perplexity", "byte_perplexity", "bits_per_byte")
TASKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "hellaswag_1000": ("eval/hellaswag_1000.jsonl.gz", CHOICE | {"doc_to_target": "{{gold}}"}, PICKED),
    "novel_concepts": ("eval/bigbench_novel_concepts.jsonl.gz", CHOICE | {"doc_to_target": "{{gold}}"}, PICKED),
    "strange_stories": ("eval/bigbench_strange_stories.jsonl.gz", CHOICE | {"doc_to_target": "{{gold}}"}, PICKED),
    "yelp_text": (f"domains/{DOMAIN}/test.jsonl.gz", ROLLING, TEXT),
}
"""Name: file in DATA, how lm_eval reads it, its metrics."""
TOLERANCE = 1e-9


def write_tasks(data: Path, folder: Path, limit: int) -> Path:
    """The tasks as files of lm_eval, in one folder."""
    folder.mkdir()
    for name, (file, options, metrics) in TASKS.items():
        with gzip.open(data / file, "rt", encoding="utf-8") as lines:
            kept = list(itertools.islice(lines, limit))
        rows = folder / f"{name}.jsonl"
        rows.write_text("".join(kept), encoding="utf-8")
        config = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(rows)}},
            "test_split": "test",
            "metric_list": [{"metric": each} for each in metrics],
            **options,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def recipe(data: Path, tasks: Path, runs: Path, steps: int) -> dict[str, Any]:
    """One domain, and lm_eval at both ends."""
    place = data / "domains" / DOMAIN
    return {
        "model": str(BASE),
        "domains": [
            {
                "name": DOMAIN,
                "path": str(place / "train.jsonl.gz"),
                "validation": str(place / "validation.jsonl.gz"),
                "max_documents": 500,
            }
        ],
        "data": {"block_size": 128, "cache": str(runs / "cache")},
        "train": {"max_steps": steps, "per_device_train_batch_size": 8, "learning_rate": 5e-4, "bf16": True},
        "evaluation": {
            "lm_eval": {"tasks": list(TASKS), "include_path": str(tasks)},
            "blocks": 16,
            "batch_size": 8,
            "samples": 0,
        },
        "run": {"name": "lm-eval", "folder": str(runs / "run")},
    }


def by_itself(folder: Path, tasks: Path, dtype: str = "auto") -> dict[str, dict[str, Any]]:
    """What lm_eval says of a folder: task and metric to value."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "device": "cpu", "dtype": dtype},
        batch_size=8,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(tasks)),
        bootstrap_iters=0,
    )
    return {
        name: {metric: results["results"][name][f"{metric},none"] for metric in metrics}
        | {"examples": len(results["samples"][name])}
        for name, (_, _, metrics) in TASKS.items()
    }


def measure(data: Path, limit: int, steps: int) -> dict[str, Any]:
    """The run, and lm_eval beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        tasks = write_tasks(data, Path(scratch, "tasks"), limit)
        learner = ContinualLearner(recipes.parse(recipe(data, tasks, Path(scratch), steps)))
        results = learner.run()
        stage = next(learner.folder.path.glob("stage-01*"))
        checkpoints = ((BASE, "base", "auto"), (BASE, "base", "float32"), (stage, DOMAIN, "auto"))
        rows = []
        for folder, row, dtype in checkpoints:
            scores = by_itself(folder, tasks, dtype)
            for name, (_, _, metrics) in TASKS.items():
                for metric in metrics:
                    here = (LOWER if metric in TEXT else PREFIX) + metric
                    rows.append(
                        {
                            "checkpoint": row,
                            "dtype": dtype,
                            "task": name,
                            "metric": metric,
                            "examples": scores[name]["examples"],
                            "everlearn": results.matrices[here].estimates()[row, name].value,
                            "lm_eval": scores[name][metric],
                        }
                    )
    versions = {each: metadata.version(each) for each in ("lm_eval", "transformers", "torch")}
    return {"versions": versions, "domain": DOMAIN, "steps": steps, "limit": limit, "rows": rows}


def saved_otherwise(row: Mapping[str, Any]) -> bool:
    """Whether lm_eval read other numbers than the run did: the base model's bfloat16."""
    return bool(row["checkpoint"] == "base" and row["dtype"] == "auto")


def differ(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that should be equal and are not."""
    return [
        row
        for row in rows
        if not saved_otherwise(row) and not abs(row["everlearn"] - row["lm_eval"]) <= TOLERANCE * abs(row["lm_eval"])
    ]


def page(results: Mapping[str, Any]) -> str:
    """Both numbers side by side."""
    versions = results["versions"]
    lines = [
        f"| {row['checkpoint']} | {row['dtype']} | {row['task']} ({row['examples']}) | {row['metric']} "
        f"| {row['everlearn']:.8g} | {row['lm_eval']:.8g} | {abs(row['everlearn'] - row['lm_eval']):.2g} |"
        for row in results["rows"]
    ]
    compared = [row for row in results["rows"] if not saved_otherwise(row)]
    wrong = len(differ(results["rows"]))
    verdict = f"All {len(compared)} are equal" if not wrong else f"{wrong} of {len(compared)} differ"
    return f"""# Does a run measure what lm_eval measures?

A run with `evaluation.lm_eval` scores its checkpoints with lm_eval's tasks. This page compares the scores of the base
model and of a stage with those of `lm_eval.simple_evaluate(model="hf", …)` on the same folders. The run has one domain
({results["domain"]}, {results["steps"]} steps in bf16) and begins from `benchmarks/bases/english-decoder`. Tasks are
local files; the first {results["limit"]} examples of each are scored (the number in brackets). lm_eval
{versions["lm_eval"]}, transformers {versions["transformers"]}, torch {versions["torch"]}, on a CPU. Written by
`python benchmarks/lm_eval_equal.py DATA --limit {results["limit"]} --steps {results["steps"]}`; [json](lm-eval.json).

{verdict} (to a relative {TOLERANCE:g}). Not counted is the base model with `dtype` auto. Its weights are saved in
bfloat16, lm_eval then computes in bfloat16, and a run computes in float32; with `dtype=float32` it is counted. A
stage's folder is float32 by itself.

| checkpoint | dtype of lm_eval | task (examples) | metric | in the run | lm_eval by itself | difference |
|---|---|---|---|---:|---:|---:|
{chr(10).join(lines)}
"""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    quiet()
    results = measure(arguments.data, arguments.limit, arguments.steps)
    files.write_json(arguments.page.with_suffix(".json"), results)
    files.write_text(arguments.page, page(results))
    sys.exit(bool(differ(results["rows"])))


if __name__ == "__main__":
    main()
