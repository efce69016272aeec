"""Train preferences with and without protection, and measure what the model forgets.

    python benchmarks/dpo.py MODEL DATA [--output docs/results/dpo.json] [--steps 64]
    python benchmarks/dpo.py --page docs/results/dpo.json

A chat model first learns an earlier domain (abstracts of papers) by TRL's SFTTrainer with the recommended method. From
that model DPO then learns to answer whether a review is positive or negative: chosen is the answer that the label of
the review says, rejected the other one. It does so plainly, and with the recommended method, each at the same learning
rates. Every training is measured by `protect` on the same held-out text, and by TRL on pairs of held-out reviews.

Trainings that are in the output are not run again.
"""

from __future__ import annotations

import gzip
import json
import platform
import shutil
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import everlearn
from chat_adapter import arguments, as_text
from everlearn import files
from everlearn.commands.recommendation import METHOD
from everlearn.model.loading import quiet

EARLIER, TASK = "acl_papers", "review_kitchen_housewares"
QUESTION = "Is this review positive or negative?"
LONGEST_REVIEW = 400
"""Characters."""
HELD_OUT_CHARACTERS, GENERAL_CHARACTERS = 24_000, 40_000
EVALUATED = 64
"""Pairs of held-out reviews."""
RECOMMENDED = {**METHOD[0], "samples": 16}
"""Importance on few rows, because the trainings are short."""
EARLIER_RATE = 1e-4
RATES = (5e-5, 2e-4)
METHODS: dict[str, list[Any]] = {"plain": ["sequential"], "recommended": [RECOMMENDED]}
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "use_cpu": True, "bf16": True,
    "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 4, "seed": 0,
}  # fmt: skip


def rows(data: Path, name: str) -> list[dict[str, Any]]:
    with gzip.open(data / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def texts(data: Path, name: str, characters: int) -> list[str]:
    """The first texts of a file, so many characters."""
    taken: list[str] = []
    for row in rows(data, name):
        if sum(map(len, taken)) >= characters:
            break
        taken.append(row["text"][: characters - sum(map(len, taken))])
    return taken


def pairs(data: Path, split: str, count: int) -> Dataset:
    """Conversations with a right and a wrong answer."""

    def conversation(answer: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": f"{answer.capitalize()}."}]

    other = {"positive": "negative", "negative": "positive"}
    short = (row for row in rows(data, f"tasks/{TASK}/{split}.jsonl.gz") if len(row["text"]) <= LONGEST_REVIEW)
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": f"{QUESTION}\n\n{row['text']}"}],
                "chosen": conversation(row["label"]),
                "rejected": conversation(other[row["label"]]),
            }
            for row in islice(short, count)
        ]
    )


def load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def report_of(trainer: Any) -> dict[str, Any]:
    """Return what `protect` measured, without the place of the memory on this machine."""
    return {key: value for key, value in trainer.protection_report().to_dict().items() if key != "memory"}


def learn_earlier(model: Path, data: Path, work: Path, steps: int, measured: dict[str, Any]) -> dict[str, Any]:
    """Learn the earlier domain, and keep the model and the memory."""
    papers = Dataset.from_list([{"text": text} for text in texts(data, f"domains/{EARLIER}/train.jsonl.gz", 400_000)])
    trainer = SFTTrainer(
        model=load(model),
        args=SFTConfig(
            str(work / "out"),
            max_steps=steps,
            max_length=128,
            activation_checkpointing=False,
            learning_rate=EARLIER_RATE,
            **ARGUMENTS,
        ),
        train_dataset=papers,
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    everlearn.protect(trainer, [RECOMMENDED], memory=work / "memory", domain=EARLIER, **measured).train()
    trainer.model.save_pretrained(work / "earlier")
    AutoTokenizer.from_pretrained(model).save_pretrained(work / "earlier")
    return report_of(trainer)


def learn_preferences(
    name: str, rate: float, data: Path, work: Path, steps: int, measured: dict[str, Any]
) -> dict[str, Any]:
    """Learn the preferences in one way, from the model that knows the earlier domain."""
    memory = work / "memory of this training"
    shutil.rmtree(memory, ignore_errors=True)
    if name != "plain":
        shutil.copytree(work / "memory", memory)
    batch = ARGUMENTS["per_device_train_batch_size"]
    trainer = DPOTrainer(
        model=load(work / "earlier"),
        args=DPOConfig(
            str(work / "out"), max_steps=steps, gradient_checkpointing=False, learning_rate=rate, **ARGUMENTS
        ),
        train_dataset=pairs(data, "train", steps * batch),
        eval_dataset=pairs(data, "test", EVALUATED),
        processing_class=AutoTokenizer.from_pretrained(work / "earlier"),
    )
    if name == "plain":
        measured = {key: value for key, value in measured.items() if key != "general"}
    everlearn.protect(trainer, METHODS[name], memory=memory, domain="reviews", **measured).train()
    scores = trainer.evaluate()
    return report_of(trainer) | {
        "reward_accuracy": scores["eval_rewards/accuracies"],
        "reward_margin": scores["eval_rewards/margins"],
        "pairs": len(trainer.eval_dataset),
    }


def page(result: dict[str, Any]) -> str:
    """The table of docs/results/dpo.md."""
    trainings = {(f"SFT on {EARLIER}, recommended", EARLIER_RATE): result["earlier"]}
    trainings |= {(f"DPO, {each['method']}", each["learning_rate"]): each for each in result["trainings"]}
    texts_of = [each["name"] for each in result["earlier"]["forgetting"]]
    lines = [
        f"| training | rate | {' | '.join(f'{name} lost ↓' for name in texts_of)} | pairs ranked right ↑ | margin ↑ |",
        "|---" * (len(texts_of) + 4) + "|",
    ]
    for (name, rate), training in trainings.items():
        lost = [as_text(each["forgotten"]) for each in training["forgetting"]]
        ranked = ["", ""]
        if "pairs" in training:
            ranked = [f"{training['reward_accuracy']:.0%} of {training['pairs']}", f"{training['reward_margin']:.2f}"]
        lines.append(f"| {' | '.join([name, f'{rate:.0e}', *lost, *ranked])} |")
    return "\n".join(lines)


def main() -> None:
    options = arguments(__doc__, "dpo", steps=64)
    if options.page:
        print(page(files.read_json(options.page)))
        return
    quiet()
    measured = {
        "general": texts(options.data, "D0/wikipedia/train.jsonl.gz", GENERAL_CHARACTERS),
        "held_out": {
            "general text": texts(options.data, "D0/wikipedia/test.jsonl.gz", HELD_OUT_CHARACTERS),
            EARLIER: texts(options.data, f"domains/{EARLIER}/test.jsonl.gz", HELD_OUT_CHARACTERS),
        },
    }
    result: dict[str, Any] = {
        "model": options.model.name,
        "steps": options.steps,
        "pairs_per_step": ARGUMENTS["per_device_train_batch_size"],
        "methods": METHODS,
        "trainings": [],
        "machine": platform.machine(),
        "versions": {each.__name__: each.__version__ for each in (torch, transformers, trl, everlearn)},
    }
    if options.output.is_file():
        result |= files.read_json(options.output)
    if not (options.work / "earlier").is_dir() or "earlier" not in result:
        result["earlier"] = learn_earlier(options.model, options.data, options.work, options.steps, measured)
        files.write_json(options.output, result)
    done = {(each["method"], each["learning_rate"]) for each in result["trainings"]}
    for rate, name in product(RATES, METHODS):
        if (name, rate) not in done:
            began = time.monotonic()
            outcome = learn_preferences(name, rate, options.data, options.work, options.steps, measured)
            spent = round(time.monotonic() - began)
            result["trainings"].append({"method": name, "learning_rate": rate, "seconds": spent, **outcome})
            files.write_json(options.output, result)


if __name__ == "__main__":
    main()
