"""Train the domains of a recipe and write what each process holds in a step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from run_recipes import allow_fsdp_on_cpu
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from everlearn import files
from everlearn.config.recipe import Recipe, load
from everlearn.importance import gradient_moments
from everlearn.learner import ContinualLearner
from everlearn.methods.distillation.teacher import WithTeacher
from everlearn.methods.engine.protection import Protection
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.penalties.penalty import Penalty
from everlearn.methods.penalties.si import SI
from everlearn.methods.tricks.mixout import Mixout
from everlearn.methods.tricks.recadam import RecAdam
from everlearn.model.sharding import Blueprint, local
from everlearn.run.trainer import StageTrainer


def held_by(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of tensors, or of their shards on this process, each once."""
    storages = [local(each).untyped_storage() for each in tensors if isinstance(each, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def measure(recipe: Recipe, folder: Path) -> dict[str, int]:
    """Train, and return the bytes held by use in the last step of the last domain, and where shards are measured."""
    found: dict[str, int] = {}
    before_update, on_step_end, fit = Protection.before_update, StageTrainer.on_step_end, StageTrainer.fit
    divided_sums, full_tensor = gradient_moments.divided_sums, DTensor.full_tensor
    end_domain = Protection.end

    def before(self: Protection) -> None:
        parameters = list(self.stage.model.parameters())
        found["weights"] = held_by(parameters)
        found["gradients"] = held_by(parameter.grad for parameter in parameters)
        for method in self.methods:
            if isinstance(method, Penalty) and method._placed:
                held = [each for _, *pair in method._placed for each in pair]
                if isinstance(method, EWC):
                    held += method._gathered.squares.values()
                if isinstance(method, SI):
                    held += [*method._path.values(), *method._start.values(), *tree_leaves(method._step)]
                found[f"method {method.label}"] = held_by(held)
            if isinstance(method, RecAdam):
                found[f"method {method.label}"] = held_by(method._placed.values())
            if isinstance(method, Mixout):
                found[f"method {method.label}"] = held_by(method._anchors.values())
            if isinstance(method, WithTeacher):
                found[f"method {method.label}"] = held_by([*method.teacher.parameters(), *method.teacher.buffers()])
        before_update(self)

    def finish(self: Protection, blueprint: Blueprint | None = None) -> None:
        end_domain(self, blueprint)
        for method in self.methods:
            if blueprint is not None and isinstance(method, Penalty):
                found["kept between domains"] = held_by([*method._importance.values(), *method._anchor.values()])

    def end(self: StageTrainer) -> None:
        found["optimizer"] = held_by(tree_leaves([dict(each) for each in self._own_optimizer.state.values()]))
        on_step_end(self)

    def gather(self: DTensor, **options: Any) -> Tensor:
        found["largest tensor gathered in steps"] = max(found.get("largest tensor gathered in steps", 0), self.numel())
        return full_tensor(self, **options)

    def train(self: StageTrainer, checkpoint: Path | None) -> Any:
        DTensor.full_tensor = gather  # type: ignore[method-assign, assignment]
        try:
            return fit(self, checkpoint)
        finally:
            DTensor.full_tensor = full_tensor  # type: ignore[method-assign]

    def sums(model: nn.Module, *rest: Any) -> dict[str, Tensor]:
        made = divided_sums(model, *rest)
        found["weights while measuring"] = held_by(model.parameters())
        found["what is measured"] = held_by(made.values())
        return made

    Protection.before_update, StageTrainer.on_step_end = before, end  # type: ignore[method-assign]
    StageTrainer.fit, Protection.end = train, finish  # type: ignore[method-assign, assignment]
    gradient_moments.divided_sums = sums
    try:
        learner = ContinualLearner(recipe)
        if learner.processes.is_main_process:
            learner.folder.create(recipe)
        learner.processes.wait_for_everyone()
        for index, domain in enumerate(recipe.domains, 1):
            learner.train_stage(index, domain, learner.methods_after(index - 1))
    finally:
        gradient_moments.divided_sums = divided_sums
        Protection.before_update, StageTrainer.on_step_end = before_update, on_step_end  # type: ignore[method-assign]
        StageTrainer.fit, Protection.end = fit, end_domain  # type: ignore[method-assign]
    files.write_json(folder / f"{recipe.run.name}-{learner.processes.process_index}.json", found)
    return found


def measure_all(rank: int, folder: Path) -> None:
    """Measure every recipe in a folder; Accelerate remembers FSDP in the environment, so those come last."""
    allow_fsdp_on_cpu()
    for path in sorted(folder.glob("*.yaml"), key=lambda path: "fsdp" in path.name):
        measure(load(path), folder)
