"""Runs of a few seconds: tiny models saved to disk, tiny corpora, and the moments at which a run can be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from everlearn import files
from everlearn.config.recipe import Recipe, parse
from everlearn.learner import ContinualLearner

STEPS = 5
SAVING = {"save_steps": 2}
"""Of runs that are to be killed: a checkpoint every second step. A checkpoint takes as long as three steps."""


def save_model(architecture: str, folder: Path, dropout: float = 0.1) -> Path:
    """A random base model with its tokenizer."""
    place = folder / architecture
    if not place.is_dir():
        tiny.model(architecture, dropout).save_pretrained(place)
        tiny.tokenizer().save_pretrained(place)
    return place


def corpus(folder: Path, name: str, count: int = 40, *, answers: bool = False) -> Path:
    """JSON lines of nonsense, the same for the same name."""
    path = folder / f"{name}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"text": text} for text in tiny.texts(count, seed=sum(map(ord, name)), words=30)]
    if answers:
        rows = [{"text": row["text"] + " ", "answer": " ".join(row["text"].split()[:4])} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def labelled(folder: Path, name: str, count: int) -> Path:
    """A classification task that depends on one word."""
    path = folder / f"{name}.jsonl"
    rows = [
        {"text": f"{text} {'matrix' if i % 2 else 'figure'}", "label": "matrix" if i % 2 else "figure"}
        for i, text in enumerate(tiny.texts(count, seed=3, words=6))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe(folder: Path, architecture: str = "roberta", method: Any = "sequential", **groups: Any) -> Recipe:
    """Two domains, five steps each, two batches a step; dropout on.

    `general=True` names a general corpus. Checkpoints are saved (`SAVING`), and texts written to be read
    (`evaluation.samples`), where a test asks for them.
    """
    data = folder / "data"
    answers = groups.pop("answers", tiny.objective_of(architecture) == "text-to-text")
    each = groups.pop("each", {}) | ({"target_column": "answer"} if answers else {})
    domains = [
        {"name": name, "path": str(corpus(data, name, answers=answers)), "validation": 0.15, **each}
        for name in groups.pop("domains", ("first", "second"))
    ]
    if groups.get("general") is True:
        path = corpus(data, "general", answers=answers)
        groups["general"] = {"name": "general", "path": str(path), "validation": 0.15, **each}
    model = save_model(architecture, folder / "models", groups.pop("dropout", 0.1))
    train = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
    }
    train |= groups.pop("train", {})
    if not {"save_steps", "save_strategy"} & train.keys():
        train["save_strategy"] = "no"
    raw = {
        "model": str(model),
        "domains": domains,
        "method": method,
        "data": {"block_size": 32, "cache": str(folder / "cache")},
        "train": train,
        "evaluation": {"blocks": 4, "batch_size": 4, "samples": 0} | groups.pop("evaluation", {}),
        "run": {"name": "run", "folder": str(folder / "run")},
    }
    return parse(raw | groups)


def elsewhere(of: Recipe, folder: Path) -> Recipe:
    """The same recipe in another run folder."""
    return of.changed(run={**of.run.model_dump(exclude_unset=True), "folder": str(folder)})


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every stage folder, memories included."""
    found = {}
    for path in sorted(run.glob("stage-*/**/*.safetensors")):
        for name, tensor in files.load_tensors(path).items():
            found[f"{path.relative_to(run)}:{name}"] = tensor
    return found


def assert_same(one: Path, other: Path) -> None:
    """All tensors and scores of two runs are equal, bit for bit, and so are their notes."""
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    assert mine
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different, different[:5]
    scores = [files.read_json(run / "results.json") for run in (one, other)]
    assert scores[0]["matrices"] == scores[1]["matrices"]
    assert scores[0]["mixture"] == scores[1]["mixture"]
    assert scores[0]["notes"] == scores[1]["notes"]
    assert leftovers(one) == []


def leftovers(run: Path) -> list[str]:
    """What should not be in a finished run."""
    found = [p for p in run.rglob("*") if p.name.startswith(files.PARTIAL) or p.name.endswith(".training")]
    return [str(p.relative_to(run)) for p in found]


class Killed(BaseException):
    """What SIGKILL is to a process, as an exception that nobody catches."""


class Killer:
    """Raises at a named moment of a run: ``step 1.3`` (stage, step), ``checkpoint 1.4`` (while it is written),
    ``end 1`` (in ``end_domain``), ``seal 1`` (while the stage folder is written), ``loss 1.second`` (a cell of the
    score matrix), ``scored 1``.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from everlearn.run import row_scorer, scoring, stage_training, trainer

        self.at: str | None = None
        self.passed: list[str] = []
        stage_trainer = trainer.StageTrainer

        def before(owner: Any, name: str, moment: Callable[..., str], first: bool = True) -> None:
            original = getattr(owner, name)

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if first:
                    self.moment(moment(*args))
                result = original(*args, **kwargs)
                if not first:
                    self.moment(moment(*args))
                return result

            patch.setattr(owner, name, wrapped)

        def of_trainer(t: Any) -> str:
            return f"{t.stage.index}.{t.state.global_step}"

        before(stage_trainer, "on_step_end", lambda t: f"step {of_trainer(t)}")
        before(stage_trainer, "_save_optimizer_and_scheduler", lambda t, *_: f"checkpoint {of_trainer(t)}")
        before(stage_training, "peak_memory", lambda: "end")
        before(stage_training, "save_memories", lambda folder, _: f"seal {folder.parent.name.split('stage-0')[1][0]}")
        before(row_scorer.RowScorer, "_keep_text", lambda s, cell: f"loss {cell.task}", first=False)
        before(scoring.Scorer, "_score", lambda s, row: f"scored {row}", first=False)

    def moment(self, name: str) -> None:
        """Die here if this is the moment."""
        self.passed.append(name)
        if name == self.at:
            self.at = None
            raise Killed(name)


@contextmanager
def killed_at(killer: Killer, moment: str) -> Iterator[None]:
    """Inside, the run must die at this moment."""
    killer.at = moment
    with pytest.raises(Killed, match=moment):
        yield


def kill_and_resume(killer: Killer, of: Recipe, moments: list[str]) -> Path:
    """Start a run, let it die at each moment in turn, take it to its end with a new learner each time."""
    start = ContinualLearner(of).run
    for moment in moments:
        with killed_at(killer, moment):
            start()
        start = ContinualLearner.open(of.folder()).resume
    start()
    return of.folder()
