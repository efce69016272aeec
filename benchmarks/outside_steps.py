"""Time of what a run does outside of its training steps, against the usual way to do the same.

    python benchmarks/outside_steps.py --output docs/results/outside-steps.json [--text FILE.jsonl] [--repeats 3]

    text         tokenise and pack a file of JSON lines for a decoder    `datasets.map`, twice: tokenise, group texts
    end task     fine-tune a classifier and predict its test set         transformers' Trainer, padding each batch
    checkpoints  score CHECKPOINTS checkpoints on SETS held-out sets     transformers' Trainer, one set after the other
    start        `--help`, `methods`, `validate` of a recipe             a process that imports torch and transformers

Each contender runs in a process of its own, in turns (A B A B …). What is compared is the processor time of the work
without imports (of the whole process for `start`), and its peak memory. `--text` is text for the first row; without it
the documentation of installed libraries, which the package can read anywhere, serves for everything.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTH, CHECKPOINTS, SETS, ROWS = 128, 5, 20, 16
TRAIN, TEST, BATCH, EPOCHS = 800, 800, 16, 2
IMPORTS = "import torch, transformers; transformers.AutoModelForCausalLM, transformers.Trainer"
RECIPE = """
model: suite:docs/base
domains: [{name: sympy, path: suite:docs/sympy/train.jsonl, validation: suite:docs/sympy/validation.jsonl}]
train: {max_steps: 10, per_device_train_batch_size: 8, learning_rate: 1.0e-3}
run: {name: validated}
"""


def text_everlearn(work: Path) -> None:
    import harness
    from everlearn.data.corpus import Corpus
    from everlearn.data.prepare import prepare

    corpus = Corpus(path=str(work / "text.jsonl"))
    prepare(corpus, harness.tokenizer(), "decoder", LENGTH, seed=0, cache=tempfile.mkdtemp(dir=work))


def text_usual(work: Path) -> None:
    from itertools import chain

    import datasets

    import harness

    words = harness.tokenizer()
    words.model_max_length = sys.maxsize
    data = datasets.load_dataset(
        "json", data_files=str(work / "text.jsonl"), cache_dir=tempfile.mkdtemp(dir=work), split="train"
    )
    tokens = data.map(lambda rows: words(rows["text"]), batched=True, remove_columns=data.column_names)

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(chain(*values)) for key, values in rows.items()}
        total = len(joined["input_ids"]) // LENGTH * LENGTH
        parts = {key: [v[i : i + LENGTH] for i in range(0, total, LENGTH)] for key, v in joined.items()}
        return parts | {"labels": parts["input_ids"].copy()}

    tokens.map(group, batched=True)


def labelled(work: Path) -> tuple[Any, Any]:
    """Which library does a passage of 10 to 80 words document?"""
    import numpy as np

    from everlearn.tasks.labelled import LabelledSet

    rows = [json.loads(line) for line in (work / "labelled.jsonl").open(encoding="utf-8")]
    names = sorted({row["label"] for row in rows})
    labels = np.array([names.index(row["label"]) for row in rows])
    texts = [row["text"] for row in rows]
    return (
        LabelledSet(texts[:TRAIN], None, labels[:TRAIN], names),
        LabelledSet(texts[TRAIN:], None, labels[TRAIN:], names),
    )


def end_task_everlearn(work: Path) -> None:
    import harness
    from everlearn.tasks.fine_tuning import fine_tune
    from everlearn.tasks.labelled import EndTask
    from everlearn_bench.suites.docs import base_path

    train, test = labelled(work)
    task = EndTask(
        name="library", train="-", test="-", epochs=EPOCHS, batch_size=BATCH, learning_rate=5e-4, max_length=LENGTH
    )
    fine_tune(base_path(), harness.tokenizer(), task, train, test, seed=0)


def end_task_usual(work: Path) -> None:
    import datasets
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    import harness
    from everlearn_bench.suites.docs import base_path

    words, parts = harness.tokenizer(), labelled(work)
    model = AutoModelForSequenceClassification.from_pretrained(base_path(), num_labels=len(parts[0].label_names))
    sets = [
        datasets.Dataset.from_dict({**words(part.texts, truncation=True, max_length=LENGTH), "labels": part.labels})
        for part in parts
    ]
    args = TrainingArguments(
        output_dir=str(work / "trainer"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=4 * BATCH,
        learning_rate=5e-4,
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, args, train_dataset=sets[0], data_collator=DataCollatorWithPadding(words))
    trainer.train()
    trainer.predict(sets[1])


def checkpoints_everlearn(work: Path) -> None:
    from transformers import AutoModelForMaskedLM

    import harness
    from everlearn.evaluation import Conditions
    from everlearn.model.objectives import make_objective
    from everlearn.predictors import Checkpoint
    from everlearn.tasks.batched_scoring import measure_together
    from everlearn.tasks.held_out import HeldOutText

    words = harness.tokenizer()
    for number in range(CHECKPOINTS):
        model = AutoModelForMaskedLM.from_pretrained(work / f"checkpoint-{number}")
        how = Conditions(str(number), words, make_objective(None, model, words), ROWS)
        sets = [(HeldOutText(work / f"set-{each}.safetensors", str(each)), True) for each in range(SETS)]
        measure_together(sets, Checkpoint(model, how.objective), how, lambda cell: None)


def checkpoints_usual(work: Path) -> None:
    import datasets
    from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

    import harness
    from everlearn.tasks.held_out import HeldOut

    collator = DataCollatorForLanguageModeling(harness.tokenizer(), mlm_probability=0.15)
    args = TrainingArguments(
        output_dir=str(work / "trainer"),
        per_device_eval_batch_size=ROWS,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        prediction_loss_only=True,
    )
    for number in range(CHECKPOINTS):
        model = AutoModelForMaskedLM.from_pretrained(work / f"checkpoint-{number}")
        for each in range(SETS):
            rows = HeldOut.load(work / f"set-{each}.safetensors").blocks.arrays["input_ids"]
            Trainer(
                model, args, eval_dataset=datasets.Dataset.from_dict({"input_ids": rows}), data_collator=collator
            ).evaluate()


CONTENDERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "text": (text_everlearn, text_usual),
    "end task": (end_task_everlearn, end_task_usual),
    "checkpoints": (checkpoints_everlearn, checkpoints_usual),
}


def make_inputs(work: Path, text: Path | None) -> None:
    """Write what the contenders read: a text, labelled passages, checkpoints and held-out sets."""
    import shutil

    import numpy as np

    import harness
    from everlearn.data.blocks import PackedBlocks
    from everlearn.tasks.held_out import HeldOut
    from everlearn_bench.suites import docs

    files = docs.build()
    if text is None:
        parts = [path.read_bytes() for name, path in sorted(files.items()) if name.endswith("/train")]
        (work / "text.jsonl").write_bytes(b"".join(parts))
    else:
        shutil.copyfile(text, work / "text.jsonl")
    rng = np.random.default_rng(0)
    passages = []
    for name in docs.DOMAINS:
        rows = [json.loads(line)["text"].split() for line in files[f"{name}/train"].open(encoding="utf-8")]
        for number in rng.integers(len(rows), size=(TRAIN + TEST) // len(docs.DOMAINS) + 1):
            passages.append({"text": " ".join(rows[number][: rng.integers(10, 80)]), "label": name})
    rng.shuffle(passages)
    lines = [json.dumps(each) + "\n" for each in passages[: TRAIN + TEST]]
    (work / "labelled.jsonl").write_text("".join(lines), encoding="utf-8")
    for number in range(CHECKPOINTS):
        shutil.copytree(docs.base_path(), work / f"checkpoint-{number}")
    rows = harness.packed_rows(ROWS * SETS, LENGTH)
    for number in range(SETS):
        part = {key: column[number * ROWS : (number + 1) * ROWS] for key, column in rows.items()}
        blocks = PackedBlocks(part, 0, str(number), str(number))
        HeldOut(blocks, 4.0).save(work / f"set-{number}.safetensors")
    (work / "recipe.yaml").write_text(RECIPE, encoding="utf-8")


def work_alone(comparison: str, contender: int, work: Path) -> None:
    """Do the work of one contender in this process, and print what it took."""
    import datasets
    import torch
    import transformers

    import harness  # noqa: F401  what both need is imported before the time is taken

    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = time.perf_counter(), time.process_time()
    CONTENDERS[comparison][contender](work)
    took = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
    took["peak_megabytes_more"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps(took))


def started(command: list[str], work: Path) -> dict[str, float]:
    """Run a command; return the seconds and the processor seconds of its process."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall": time.perf_counter() - wall, "processor": spent}


def medians(taken: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in taken) for key in taken[0]}


def main() -> None:
    import harness

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the result here as JSON")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", nargs=3, metavar=("COMPARISON", "CONTENDER", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        comparison, contender, folder = arguments.alone
        return work_alone(comparison, int(contender), Path(folder))
    report = harness.environment("cpu") | {"threads": 1, "load_average_at_start": os.getloadavg()[0]}
    report["comparisons"] = {}
    alone = os.environ | {"RAYON_NUM_THREADS": "1"}  # of the tokenizer, which otherwise takes every core
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_inputs(work, arguments.text)
        report["megabytes_of_text"] = (work / "text.jsonl").stat().st_size / 1e6
        for comparison in CONTENDERS:
            taken: list[list[dict[str, float]]] = [[], []]
            for _ in range(arguments.repeats):
                for contender in (0, 1):
                    command = [sys.executable, __file__, "--alone", comparison, str(contender), folder]
                    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
                    taken[contender].append(json.loads(finished.stdout.splitlines()[-1]))
            report["comparisons"][comparison] = compared("usual", medians(taken[0]), medians(taken[1]))
        everlearn = [sys.executable, "-m", "everlearn"]
        commands = {"--help": ["--help"], "methods": ["methods"], "validate": ["validate", "recipe.yaml"]}
        starts = {name: [*everlearn, *command] for name, command in commands.items()}
        starts["imports"] = [sys.executable, "-c", IMPORTS]
        times: dict[str, list[dict[str, float]]] = {name: [] for name in starts}
        for _ in range(arguments.repeats):
            for name, command in starts.items():
                times[name].append(started(command, work))
        usual = medians(times.pop("imports"))
        for name, taken_by in times.items():
            report["comparisons"][f"everlearn {name}"] = compared("imports", medians(taken_by), usual)
    harness.save(arguments.output, report)


def compared(against: str, ours: dict[str, float], other: dict[str, float]) -> dict[str, Any]:
    """Both, and how many times as fast ours is."""
    comparison = {"everlearn": ours, against: other, "times_as_fast": other["wall"] / ours["wall"]}
    comparison["times_as_fast_in_processor_time"] = other["processor"] / ours["processor"]
    return comparison


if __name__ == "__main__":
    main()
