"""Scores of a run: which cells of the score matrix are wanted, which are missing, and the page made from them.

Held-out blocks are drawn once and kept in the run folder, so that months later a new domain can be learnt, and
forgetting of the old ones measured, without any old corpus.
"""

from __future__ import annotations

import functools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import nn

from everlearn import files
from everlearn.config.arguments import training_arguments
from everlearn.data.blocks import Column, PackedBlocks, Ragged
from everlearn.data.endtask import EndTask, check_end_task, read_end_task
from everlearn.data.loader import sample_batches
from everlearn.data.packing import blocks_of
from everlearn.errors import DataError, ModelError
from everlearn.evaluation import (
    Cost,
    LossCell,
    MethodUsed,
    Results,
    RunFacts,
    Share,
    StageCost,
    TaskCell,
    block_losses,
    build_results,
    evaluate_task,
    loss_path,
    steps_of,
    task_path,
)
from everlearn.methods.base import Batch, Method, Reading
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner

TIME = "_time.json"
"""Beside the cells of a row; no cell can have this name."""
Cell = TypeVar("Cell")
MASKS = "evaluation"
"""Seeds the masks of held-out text: the same for every run, so that runs are scored on the same labels."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out blocks of one domain or of the general text."""

    blocks: PackedBlocks
    bytes_per_token: float

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        tensors = {"bytes_per_token": torch.tensor(self.bytes_per_token, dtype=torch.float64)}
        for key, column in self.blocks.arrays.items():
            if isinstance(column, Ragged):
                tensors[f"{key}.values"] = torch.from_numpy(np.array(column.values))
                tensors[f"{key}.offsets"] = torch.from_numpy(np.array(column.offsets))
            else:
                tensors[key] = torch.from_numpy(np.array(column))
        files.save_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path) -> HeldOut:
        """Read what :meth:`save` wrote."""
        tensors = files.load_tensors(path)
        width = float(tensors.pop("bytes_per_token"))
        columns: dict[str, Column] = {}
        for key in tensors:
            name, _, part = key.partition(".")
            if part == "values":
                columns[name] = Ragged(tensors[key].numpy(), tensors[f"{name}.offsets"].numpy())
            elif not part:
                columns[name] = tensors[key].numpy()
        return cls(PackedBlocks(columns, seed=0, name=path.stem), width)


class Scorer:
    """Measures one run.

    Args:
        learner: whose models are measured.
    """

    def __init__(self, learner: ContinualLearner) -> None:
        self.learner = learner
        self.recipe = learner.recipe
        self.folder = learner.folder
        self.cells = learner.folder.path / "evaluation"
        self.domains = [domain.name for domain in self.recipe.domains]
        self.general = [self.recipe.general.name] if self.recipe.general is not None else []
        self.device = training_arguments(self.recipe.train, self.folder.path, 0, 1).device
        self.bf16 = bool(self.recipe.train.get("bf16", False))

    # -- held-out text ----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Columns of the matrices of losses: domains that hold something out, then the general text."""
        listed = [domain.name for domain in self.recipe.domains if domain.validation]
        return listed + (self.general if self.recipe.general is not None and self.recipe.general.validation else [])

    def held_out(self, name: str) -> HeldOut:
        """The held-out blocks of a domain: those that the run kept, or a seeded sample, kept from now on."""
        path = self._set(name)
        if path.is_file():
            return HeldOut.load(path)
        prepared = self.learner.prepared(name)
        if prepared.validation is None:
            raise DataError(f"'{name}' holds out no text to measure on (`validation`).")
        order = np.random.Generator(np.random.PCG64(seed_for("held out", name))).permutation(prepared.validation.size)
        chosen = np.sort(order[: self.recipe.evaluation.blocks])
        sample = HeldOut(
            PackedBlocks.from_blocks(prepared.validation.take(chosen), seed=0, name=name), prepared.bytes_per_token
        )
        sample.save(path)
        return sample

    def tested(self, row: int, name: str | None) -> nn.Module:
        """The model after `row` domains as it reads texts of a domain; None is general text."""
        if name is None and self.general:
            name = self.general[0]
        return self._tested(row, name, functools.partial(self._model, row), self._readers(row))

    def _tested(self, row: int, name: str | None, model: Callable[[], nn.Module], readers: list[Method]) -> nn.Module:
        """The checkpoint itself, or where methods read a text with more, a fresh one with what they put back."""
        if not readers:
            return model()
        reading = self._reading(row, name, model, functools.partial(self._blocks, name))
        return _as_tested(readers, self._model(row), reading)

    def _model(self, row: int) -> nn.Module:
        """The plain checkpoint after `row` domains."""
        return self.learner.model_after(row).to(self.device)

    def _readers(self, row: int) -> list[Method]:
        """The methods that read a text with more than the checkpoint, with what they remember."""
        return [method for method in self.learner.methods_after(row) if not method.tested_as_saved]

    def _blocks(self, name: str | None) -> PackedBlocks:
        if name is None:
            raise DataError("A method chooses by the text, and there is no general text (`general`). Name a domain.")
        return self.held_out(name).blocks

    def _losses(self, model: nn.Module, name: str) -> LossCell:
        held_out = self.held_out(name)
        objective = self.learner.setting()[1].reseeded(MASKS)
        found = block_losses(
            model,
            held_out.blocks,
            objective,
            batch_size=self.recipe.evaluation.batch_size,
            device=self.device,
            bf16=self.bf16,
        )
        return LossCell(found.nats, found.items, held_out.bytes_per_token)

    def prepare(self) -> None:
        """Read, on every process, the texts of which held-out blocks are still to be drawn.

        :meth:`score` draws them on one process alone, where processes that read a text cannot wait for each other.
        """
        for name in [name for name in self.names() if not self._set(name).is_file()]:
            self.learner.prepared(name)

    def _set(self, name: str) -> Path:
        return self.folder.sets / f"{name}.safetensors"

    # -- one row of the matrix --------------------------------------------------------------------------------

    def score(self, row: int) -> None:
        """Measure what is missing of the checkpoint after `row` domains; 0 is the base model."""
        if self.learner.processes.is_main_process:
            self._score(row)
        self.learner.processes.wait_for_everyone()

    def _score(self, row: int) -> None:
        losses = [name for name in self.names() if not loss_path(self.cells, row, name).is_file()]
        tasks = [task for task in self.wanted(row) if not task_path(self.cells, row, task.name).is_file()]
        if not losses and not tasks:
            return
        started = time.monotonic()
        where = "the base model" if row == 0 else f"after {self.domains[row - 1]}"
        try:
            model = self._model(row)
        except ModelError as error:
            if row > 0 or not self.folder.finished(1, self.domains[0]):
                raise
            # Learnt from long ago and not to be had any more: that is no reason not to learn a new domain.
            self.learner.reporter.say(f"The base model is not measured on new sets: {error}")
            return
        readers = self._readers(row)
        if losses:
            with self.learner.reporter.activity(f"Held-out text, {where}", len(losses)) as done:
                for index, name in enumerate(losses, 1):
                    tested = self._tested(row, name, lambda: model, readers)
                    self._losses(tested, name).save(loss_path(self.cells, row, name))
                    done(index)
        for task in tasks:
            self._end_task(row, task, model, readers, where)
        self._spent(row, time.monotonic() - started)

    def wanted(self, row: int) -> list[EndTask]:
        """End tasks that are fine-tuned after `row` domains."""
        if row in (0, len(self.domains)) or self.recipe.evaluation.end_tasks == "every":
            return list(self.recipe.end_tasks)
        if self.recipe.evaluation.end_tasks == "final":
            return []
        return [task for task in self.recipe.end_tasks if task.domain == self.domains[row - 1]]

    def _reading(
        self, row: int, domain: str | None, model: Callable[[], nn.Module], blocks: Callable[[], PackedBlocks]
    ) -> Reading:
        """What a method is told of a test after `row` domains; general text is of no domain."""
        objective = self.learner.setting()[1].reseeded(MASKS)

        def batches(count: int) -> Iterator[Batch]:
            size = self.recipe.evaluation.batch_size
            return sample_batches(blocks(), objective, blocks=count, batch_size=size, seed=0, device=self.device)

        return Reading(
            domain=domain if domain in self.domains else None,
            learnt=tuple(self.domains[:row]),
            objective=objective,
            language_model=model,
            batches=batches,
            checkpoints=self.learner.checkpoints(row + 1),
        )

    def _end_task(self, row: int, task: EndTask, model: nn.Module, readers: list[Method], where: str) -> None:
        tokenizer, _, kind, size = self.learner.setting()
        try:
            train, test = read_end_task(task)
        except DataError as error:
            if not task_path(self.cells, 0, task.name).is_file():
                raise
            # Learnt long ago and its labelled files are gone: that is no reason not to learn a new domain.
            self.learner.reporter.say(f"End task '{task.name}' is left out {where}: {error}")
            return
        prepare = None
        if readers:

            def texts() -> PackedBlocks:
                return PackedBlocks.from_blocks(blocks_of(train.whole_texts(), tokenizer, kind, size), 0, task.name)

            reading = self._reading(row, task.domain, lambda: model, texts)
            prepare = functools.partial(_as_tested, readers, reading=reading)
        seeds = [seed_for("end task", number) % 2**31 for number in range(self.recipe.evaluation.end_task_seeds)]
        with self.learner.reporter.activity(
            f"End task {task.name}, {where}", steps_of(task, train) * len(seeds)
        ) as done:
            cell = evaluate_task(
                model,
                tokenizer,
                task,
                train,
                test,
                seeds,
                prepare=prepare,
                device=self.device,
                bf16=self.bf16,
                progress=done,
            )
        cell.save(task_path(self.cells, row, task.name))

    def check_end_tasks(self) -> None:
        """Raise ``DataError`` for an end task that cannot be read, unless it was measured long ago."""
        for task in self.recipe.end_tasks:
            if not task_path(self.cells, 0, task.name).is_file():
                check_end_task(task)

    def score_alone(self, name: str, place: Path) -> None:
        """Measure a domain's model that was trained alone."""
        path = self.cells / "alone" / f"{name}.safetensors"
        if self.learner.processes.is_main_process and not path.is_file():
            model = self.learner.load(place).to(self.device)
            self._losses(model, name).save(path)
        self.learner.processes.wait_for_everyone()

    def _spent(self, row: int, seconds: float) -> None:
        path = self.folder.row(row) / TIME
        before = files.read_json(path)["seconds"] if path.is_file() else 0.0
        files.write_json(path, {"seconds": round(before + seconds, 3)})

    # -- everything -------------------------------------------------------------------------------------------

    def results(self) -> Results:
        """What the cells measured so far say."""
        rows = range(len(self.domains) + 1)
        tasks = {task.name: task.domain for task in self.recipe.end_tasks}
        stages = [self.folder.stage(i, name) / "stage.json" for i, name in enumerate(self.domains, 1)]
        facts = [files.read_json(path) for path in stages if path.is_file()]
        return build_results(
            RunFacts(
                run=self.recipe.run.name,
                methods=[
                    MethodUsed(
                        name=method.label,
                        title=method.title,
                        paper=method.paper,
                        options=method.config.model_dump(mode="json"),
                    )
                    for method in self.recipe.methods()
                ],
                status="finished" if len(facts) == len(self.domains) else "running",
                objective=self.learner.setting()[1].name,
                model=self.recipe.model.path or f"random {(self.recipe.model.config or {})['model_type']}",
                seed=self.recipe.run.seed,
            ),
            self.domains,
            [name for name in self.general if name in self.names()],
            _known(rows, self.names(), lambda row, name: loss_path(self.cells, row, name), LossCell.load),
            _known(rows, tasks, lambda row, name: task_path(self.cells, row, name), TaskCell.load),
            tasks,
            {
                name: LossCell.load(path)
                for name in self.names()
                if (path := self.cells / "alone" / f"{name}.safetensors").is_file()
            },
            self._cost(facts),
            [
                Share(
                    stage=fact["index"],
                    domain=fact["domain"],
                    source=share["source"],
                    asked=share["asked"],
                    realised=share["realised"],
                    tokens=round(share["realised"] * fact["tokens"]),
                )
                for fact in facts
                for share in fact["mixture"]
            ],
            self.learner.notes(),
        )

    def finish(self) -> Results:
        """Write ``results.json``, the model card and the report."""
        from everlearn.report import model_card, write_report

        results = self.results()
        if self.learner.processes.is_main_process:
            results.save(self.folder.results_file)
            recipe = self.folder.recipe_file.read_text(encoding="utf-8")
            card = model_card(results, recipe, folder=self.folder.path)
            files.write_text(self.folder.path / "README.md", card)
            write_report([self.folder.path], self.folder.report_file)
        self.learner.processes.wait_for_everyone()
        return results

    def _cost(self, facts: list[dict[str, Any]]) -> Cost:
        stages = [
            StageCost(
                domain=fact["domain"],
                seconds=fact["seconds"],
                tokens=fact["tokens"],
                steps=fact["steps"],
                tokens_per_second=fact["tokens"] / max(fact["training_seconds"], 1e-9),
                final_loss=fact["final_loss"],
            )
            for fact in facts
        ]
        times = [self.folder.row(row) / TIME for row in range(len(self.domains) + 1)]
        evaluation = sum(files.read_json(path)["seconds"] for path in times if path.is_file())
        training, tokens = sum(stage.seconds for stage in stages), sum(stage.tokens for stage in stages)
        return Cost(
            seconds=training + evaluation,
            training_seconds=training,
            evaluation_seconds=evaluation,
            tokens=tokens,
            tokens_per_second=tokens / max(sum(fact["training_seconds"] for fact in facts), 1e-9),
            peak_memory_bytes=max((fact["peak_memory_bytes"] for fact in facts), default=0),
            stages=stages,
        )


def _as_tested(methods: Sequence[Method], model: nn.Module, reading: Reading) -> nn.Module:
    """A fresh copy of the checkpoint, as the methods read a text with it."""
    for method in methods:
        model = method.test_model(model, reading)
    return model


def _known(
    rows: range, names: Any, path: Callable[[int, str], Path], load: Callable[[Path], Cell]
) -> dict[tuple[int, str], Cell]:
    return {(row, name): load(path(row, name)) for row in rows for name in names if path(row, name).is_file()}


def peak_memory() -> int:
    """Bytes: the most that the accelerator held, or the process where there is none."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used if sys.platform == "darwin" else used * 1024)
