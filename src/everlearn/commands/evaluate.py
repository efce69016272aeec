"""``everlearn evaluate``: evaluate existing models on the held-out text and end tasks of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.errors import RecipeError, RunError
from everlearn.evaluation import (
    METRICS,
    Cell,
    Estimate,
    Results,
    RunFacts,
    build_results,
    make_task,
    resample,
    set_path,
    task_path,
)
from everlearn.evaluation.cell_cache import SharedCells
from everlearn.evaluation.task import Task
from everlearn.learner import ContinualLearner
from everlearn.methods.sequential import PLAIN
from everlearn.model.loading import load_config, load_tokenizer
from everlearn.model.options import Model
from everlearn.predictors import Checkpoint
from everlearn.run.folder import MODELS, NO_RUN, RunFolder
from everlearn.run.measurement_plan import held_out_names
from everlearn.run.progress import Reporter


@dataclass(frozen=True)
class Named:
    """A checkpoint and the label of its row."""

    label: str
    path: str


def named(arguments: Sequence[str]) -> list[Named]:
    """Parse the checkpoints of the command line, ``PATH`` or ``LABEL=PATH``; a run folder stands for all its stages.

    Raises:
        RecipeError: two rows would have one label, or an argument is a key of the recipe.
    """
    checkpoints: list[Named] = []
    for argument in arguments:
        label, equals, path = argument.partition("=")
        of_a_model = "/" in path or Path(path).expanduser().exists()
        if label.partition(".")[0] in Recipe.model_fields and ("." in label or (equals and not of_a_model)):
            raise RecipeError(
                f"`everlearn evaluate` takes checkpoints and no keys of the recipe (got '{argument}'). Write `{label}` "
                "into a recipe for `--on`."
            )
        if not equals or Path(argument).expanduser().exists():
            label, path = "", argument
        folder = Path(path).expanduser()
        stages = [place for place in sorted(folder.glob("stage-*")) if any(any(place.glob(kind)) for kind in MODELS)]
        stages = stages if (folder / "recipe.yaml").is_file() else []
        for stage in stages:
            checkpoints.append(Named(f"{label or folder.resolve().name} {stage.name}", str(stage)))
        if not stages:
            checkpoints.append(Named(label or Path(path).name, str(folder) if folder.exists() else path))
    labels = [each.label for each in checkpoints]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise RecipeError(
            f"Two checkpoints would be called '{twice[0]}' in the table. Write `LABEL=PATH` for one of them."
        )
    return checkpoints


def evaluate(
    checkpoints: Sequence[Named],
    recipe: Recipe,
    folder: Path,
    *,
    end_tasks: bool = True,
    reporter: Reporter | None = None,
) -> Results:
    """Measure models on the held-out text and end tasks of a recipe; earlier measurements are reused.

    Each checkpoint is loaded as a plain model. Modules that a method attaches only for evaluation (adapters, prompts)
    are stored with its run and not in the checkpoint, so they are missing here. To get a model with them, call
    :meth:`everlearn.learner.ContinualLearner.tested`.

    Args:
        checkpoints: the models; each becomes one row of the results.
        recipe: defines domains, general text, end tasks and `evaluation`; its model and methods are ignored.
        folder: folder to which the scores of single examples and ``results.json`` are written, with the layout of a
            run folder, so that reports can read it.
        end_tasks: whether to evaluate on the recipe's end tasks too.
        reporter: receives progress messages.

    Raises:
        RunError: the recipe has neither held-out text nor end tasks, or `folder` belongs to a training run.
        EverlearnError: a model or a text cannot be read.
    """
    task_configs = recipe.tasks if end_tasks else ()
    if not held_out_names(recipe) and not task_configs:
        raise RunError(
            "The recipe holds no text out (`validation`) and has no `end_tasks`: there is nothing to measure."
        )
    if (folder / "environment.json").exists() or any(folder.glob("stage-*")):
        raise RunError(f"{folder} is a run: its recipe and results would be lost. Name another folder (`--output`).")
    for checkpoint in checkpoints:
        if (Path(checkpoint.path) / files.SEAL).is_file() and (wrong := files.damage(Path(checkpoint.path))):
            raise RunError(f"{wrong}. Restore it from a copy, or leave '{checkpoint.path}' out.")
        unread = Model(path=checkpoint.path)  # one that cannot be read is found before the others are measured
        load_config(unread)
        load_tokenizer(unread)
    losses: dict[tuple[int, str], Cell] = {}
    tasks: dict[tuple[int, str], Cell] = {}
    for row, checkpoint in enumerate(checkpoints):
        own_recipe = recipe.changed(model={"path": checkpoint.path}, method=[PLAIN])
        learner = ContinualLearner(own_recipe, reporter=reporter)
        learner.folder = RunFolder(folder)
        learner.folder.sets = folder / "evaluation" / "sets" / f"{row:02d}"  # another tokenizer makes other blocks
        scorer = learner.scorer()
        for name in scorer.names():  # sets of an earlier call may be of another recipe or tokenizer
            (learner.folder.sets / f"{name}.safetensors").unlink(missing_ok=True)
        model = learner.some_model().to(scorer.device)
        how = replace(scorer.conditions(0), row=checkpoint.label)
        shared, predictor = SharedCells(scorer.shared_folder(), model), Checkpoint(model, how.objective)
        listed: list[Task] = [*map(scorer.held_out, scorer.names()), *map(make_task, task_configs)]
        with learner.reporter.activity(checkpoint.label, len(listed)) as done:
            for number, task in enumerate(listed, 1):
                cell = shared.measured(task, how, predictor)
                text = number <= len(scorer.names())
                cell.save((set_path if text else task_path)(folder / "evaluation", row, task.name))
                (losses if text else tasks)[row, task.name] = cell
                done(number)
    results = build_results(
        RunFacts(
            run=folder.resolve().name,
            methods=[],
            status="finished",
            objective=how.objective.name,
            model=", ".join(checkpoint.path for checkpoint in checkpoints),
            seed=recipe.run.seed,
        ),
        [],
        held_out_names(recipe),
        losses,
        tasks,
        {task.name: None for task in task_configs},
        labels=[checkpoint.label for checkpoint in checkpoints],
    )
    results.save(folder / "results.json")
    recipes.save(recipe, folder / "recipe.yaml")
    files.write_json(folder / NO_RUN, {"checkpoints": {each.label: each.path for each in checkpoints}})
    return results


@dataclass(frozen=True)
class DifferenceToFirst:
    """The difference of a checkpoint to the first one on a text or task, with the interval of a paired bootstrap."""

    metric: str
    row: str
    column: str
    difference: Estimate


def differences(folder: Path, results: Results) -> list[DifferenceToFirst]:
    """Compare every checkpoint with the first one under the leading metrics, example by example.

    Columns that were not measured on the same examples, for example because the tokenizers differ, are left out.

    Args:
        folder: folder in which :func:`evaluate` wrote the cells.
        results: its return value.
    """
    changes = []
    for name in leading(results):
        scores = results.matrices[name]
        for column in scores.columns:
            cells = [_cell(folder / "evaluation", row, column) for row in range(len(scores.rows))]
            for label, cell in zip(scores.rows[1:], cells[1:], strict=True):
                if cells[0] is None or cell is None or not cells[0].same_examples(cell):
                    continue
                pair = resample([cells[0], cell], [METRICS[name]], seed=("evaluate", column))[name]
                changes.append(DifferenceToFirst(name, label, column, pair.change()))
    return changes


def _cell(folder: Path, row: int, name: str) -> Cell | None:
    """Load the cell of a text or an end task; return None where it was not measured."""
    path = next((p for p in (set_path(folder, row, name), task_path(folder, row, name)) if p.is_file()), None)
    return None if path is None else Cell.load(path)


def leading(results: Results) -> list[str]:
    """Return the metrics that a short table shows: one of text, one of each kind of end task."""
    shown: dict[tuple[str, ...], str] = {}
    for name in results.matrices:
        shown.setdefault(tuple(METRICS[name].reads), name)
    return list(shown.values())
