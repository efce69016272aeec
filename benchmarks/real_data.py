"""One short run of each objective on real text, from the ready files to the report.

    python benchmarks/real_data.py --data FOLDER [--output docs/results/real-data.md] [--only causal]

FOLDER holds ``domains/NAME/{train,validation}.jsonl.gz``, ``D0/wikipedia/…`` and ``tasks/NAME/{train,test}.jsonl.gz``.
The masked run starts from the demo's base model; the causal and the text-to-text run start from random weights, because
no pre-trained model of such a kind is shipped: they show that everything works on real input, not that models get good.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn.report import compare, markdown
from everlearn.run.progress import Terminal

TOKENS = {"vocab_size": 8192, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256, **TOKENS}
T5 = {
    "model_type": "t5",
    "d_model": 256,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 1,
    **TOKENS,
}

HEAD = """\
# Each objective on real text

Written by `benchmarks/real_data.py`: three domains of 30 steps, one run of one method for each objective. It shows that
every part works on real text. The masked model is the demo's base; the causal model and the text-to-text model start
from **random weights**, so most of what they learn is the language, and what they forget says nothing about methods.
"""


def recipe(objective: str, data: Path, runs: Path) -> dict[str, Any]:
    """The recipe of one objective."""

    def corpus(name: str) -> dict[str, Any]:
        folder = data / "domains" / name
        return {
            "name": name,
            "path": str(folder / "train.jsonl.gz"),
            "validation": str(folder / "validation.jsonl.gz"),
            "max_documents": 3000,
        }

    def examples(name: str) -> dict[str, Any]:
        folder = data / "tasks" / name
        return {
            "name": name,
            "path": str(folder / "train.jsonl.gz"),
            "validation": str(folder / "test.jsonl.gz"),
            "target_column": "label",
            "max_documents": 3000,
        }

    shared: dict[str, Any] = {
        "objective": objective,
        "data": {"block_size": 128},
        "train": {"max_steps": 30, "warmup_steps": 5, "learning_rate": 1e-3, "logging_steps": 5},
        "evaluation": {"blocks": 64, "end_tasks": "final", "end_task_seeds": 1},
        "run": {"name": objective, "folder": str(runs / objective)},
    }
    general = {
        "path": str(data / "D0/wikipedia/validation.jsonl.gz"),
        "validation": str(data / "D0/wikipedia/test.jsonl.gz"),
    }
    corpora = [corpus(name) for name in ("yelp_restaurants", "acl_papers", "news")]
    by_objective: dict[str, dict[str, Any]] = {
        "masked": {
            "model": "suite:docs/base",
            "domains": corpora,
            "general": general,
            "method": [{"name": "das", "samples": 64, "contrast_fraction": 0.25}],
            "end_tasks": [
                {
                    "name": "restaurant-sentiment",
                    "domain": "yelp_restaurants",
                    "train": str(data / "tasks/absa_restaurant14/train.jsonl.gz"),
                    "test": str(data / "tasks/absa_restaurant14/test.jsonl.gz"),
                    "text_column": "aspect",
                    "text_pair_column": "text",
                    "epochs": 2,
                    "learning_rate": 5e-4,
                    "max_train": 400,
                }
            ],
        },
        "causal": {
            "model": {"config": GPT2, "tokenizer": "suite:docs/base"},
            "domains": corpora,
            "general": general,
            "method": [{"name": "replay", "share": 0.2, "source": "both"}],
        },
        "text-to-text": {
            "model": {"config": T5, "tokenizer": "suite:docs/base"},
            "domains": [examples(name) for name in ("agnews", "trec", "sst2")],
            "method": ["migu"],
        },
    }
    return shared | by_objective[objective]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/real-data"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=["masked", "causal", "text-to-text"])
    chosen = parser.parse_args()
    quiet()
    parts = [HEAD]
    for objective in [chosen.only] if chosen.only else ["masked", "causal", "text-to-text"]:
        learner = ContinualLearner(recipes.parse(recipe(objective, chosen.data, chosen.runs)), reporter=Terminal())
        if learner.folder.recipe_file.exists():
            learner.resume()
        else:
            learner.run()
        parts.append(f"## {objective}\n\n{markdown(compare([learner.folder.path]))}")
    if chosen.output:
        files.write_text(chosen.output, "\n".join(parts))


if __name__ == "__main__":
    main()
