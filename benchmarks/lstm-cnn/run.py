"""Does an LSTM forget more than a CNN? The three findings of a study, on a stream of classification tasks.

    python benchmarks/lstm-cnn/run.py DATA [--seeds 1,2,3] [--settings settings.yaml]
    python benchmarks/lstm-cnn/run.py --page

DATA holds `tasks/NAME/{train,test}.jsonl.gz`. As in the study (Arora, Rahimi and Baldwin, ALTA 2019), one body learns
the tasks one after another and each task has a classifier of its own, which waits while later tasks change the body
below it. A cell is a base, tuned or frozen embeddings, an order and a seed; one that is there is not made again, so
that several calls can share the seeds out. `findings.py` judges, `page.py` writes docs/results/lstm-cnn.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import page
import torch
import yaml
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import everlearn_bench.bases  # noqa: F401  # AutoConfig knows them from here on
from everlearn import files
from everlearn.grid.archive import find_cell, find_cells
from everlearn.seeding import seeded
from everlearn.tasks.fine_tuning import fine_tune
from everlearn.tasks.labelled import EndTask, LabelledSet, read_end_task

HERE = Path(__file__).parent
ROOM = 256
"""Texts that are predicted together."""


class Cell(NamedTuple):
    """What is trained."""

    base: str
    embeddings: str
    order: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.base}-{self.embeddings}-{self.order}-seed{self.seed}"


def cells(settings: Mapping[str, Any], seeds: list[int]) -> Iterator[Cell]:
    """A whole table for the first seed comes first."""
    for seed in seeds:
        for part in settings["cells"]:
            yield from (Cell(base, part["embeddings"], part["order"], seed) for base in part["bases"])


class Learnt(NamedTuple):
    """A task: how it is learnt, from what, and what it is asked."""

    how: EndTask
    train: LabelledSet
    test: LabelledSet

    @property
    def often(self) -> float:
        """The share of the test part's most frequent label."""
        return float(np.bincount(self.test.labels).max() / len(self.test))


def tasks(settings: Mapping[str, Any], data: Path) -> dict[str, Learnt]:
    """By name."""
    found = {}
    for name, own in settings["tasks"].items():
        parts = {part: str(data / "tasks" / name / f"{part}.jsonl.gz") for part in ("train", "test")}
        how = EndTask(name=name, **parts, **settings["training"] | own)
        found[name] = Learnt(how, *read_end_task(how))
    return found


class Words(NamedTuple):
    """What all bases know before they learn."""

    tokenizer: Any
    embeddings: torch.Tensor

    @classmethod
    def of(cls, folder: Path) -> Words:
        """Of a model."""
        model = AutoModelForCausalLM.from_pretrained(folder)
        return cls(AutoTokenizer.from_pretrained(folder), model.get_input_embeddings().weight.detach())


def components(words: torch.Tensor, width: int) -> torch.Tensor:
    """The embeddings [V, E] in their first principal components, [V, width]."""
    centred = words.float() - words.float().mean(0)
    return centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :width]


def body(options: Mapping[str, Any], words: torch.Tensor, seed: int) -> PreTrainedModel:
    """A base with random weights on embeddings that know something."""
    kind = {key: value for key, value in options.items() if key != "model_type"}
    with seeded("lstm-cnn", seed):
        model = AutoModel.from_config(AutoConfig.for_model(options["model_type"], vocab_size=len(words), **kind))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(components(words, model.config.hidden_size))
    return model


def answers(classifier: Any, tokenizer: Any, task: Learnt) -> np.ndarray:
    """The labels that it gives, [examples]."""
    found = []
    for start in range(0, len(task.test), ROOM):
        texts = task.test.texts[start : start + ROOM]
        batch = tokenizer(texts, truncation=True, max_length=task.how.max_length, padding=True, return_tensors="pt")
        with torch.no_grad():
            found.append(classifier(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits)
    return torch.cat(found).argmax(-1).numpy()


def learn(model: PreTrainedModel, tokenizer: Any, stream: list[Learnt], frozen: bool, seed: int) -> list[list[float]]:
    """Accuracy of task j after i tasks, as [i][j ≤ i]."""
    matrix: list[list[float]] = []
    classifiers: list[Any] = []

    def keep(classifier: Any) -> Any:
        classifiers.append(classifier)
        classifier.base_model.get_input_embeddings().weight.requires_grad_(not frozen)
        return classifier

    for task in stream:
        fine_tune(model, tokenizer, task.how, task.train, task.test, seed=seed, prepare=keep)
        model = classifiers[-1].base_model
        for earlier in classifiers[:-1]:  # its own head, on the body as it is now
            earlier.base_model.load_state_dict(model.state_dict())
        asked = zip(classifiers, stream, strict=False)
        matrix.append([float(np.mean(each.test.labels == answers(own, tokenizer, each))) for own, each in asked])
    return matrix


def measure(cell: Cell, settings: Mapping[str, Any], words: Words, known: Mapping[str, Learnt]) -> dict[str, Any]:
    """Train it, and what came of it."""
    model = body(settings["bases"][cell.base], words.embeddings, cell.seed)
    order = settings["orders"][cell.order]
    stream = [known[name] for name in order]
    matrix = learn(model, words.tokenizer, stream, cell.embeddings == "frozen", cell.seed)
    return {**cell._asdict(), "tasks": order, "often": [task.often for task in stream], "accuracy": matrix}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--settings", type=Path, default=HERE / "settings.yaml")
    parser.add_argument("--seeds", default="1,2,3", help="With commas.")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", action="store_true", help="Run nothing: write the page.")
    parser.add_argument("--to", type=Path, default=HERE.parents[1] / "docs/results/lstm-cnn.md")
    given = parser.parse_args()
    settings = yaml.safe_load(given.settings.read_text())
    if not given.page:
        if given.data is None:
            parser.error("DATA is missing: the folder of the tasks")
        known, words = tasks(settings, given.data), Words.of(given.settings.parent / settings["words"])
        given.results.mkdir(parents=True, exist_ok=True)
        for cell in cells(settings, [int(seed) for seed in given.seeds.split(",")]):
            if find_cell(given.results, cell.name) is None:
                print(cell.name, flush=True)
                files.write_json(given.results / f"{cell.name}.json", measure(cell, settings, words, known))
    found = [cell.value for cell in find_cells(given.results).values()]
    files.write_text(given.to, page.page(found, settings))


if __name__ == "__main__":
    main()
