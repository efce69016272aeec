"""Run tasks of lm_eval, the Language Model Evaluation Harness, on a checkpoint (`evaluation.lm_eval`; an extra).

lm_eval asks, scores and aggregates. Its outcome for each example becomes an outcome of a cell, so its scores get
intervals and paired comparisons as all others do. An aggregate that is a mean over examples, or a function of one
(perplexity, bits per byte), is computed again from these outcomes and must equal lm_eval's number. Otherwise (a
correlation, BLEU) the cell holds the aggregates alone, as one example, and has no intervals.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn
from transformers import PreTrainedModel

from everlearn.data.blocks import hash_of
from everlearn.errors import ModelError, RecipeError, did_you_mean, first_line
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Floats, Metric, register_family
from everlearn.evaluation.task import Conditions, Task, TaskConfig, Work, register_kind
from everlearn.model.anatomy import Kind, kind_of
from everlearn.options import Options
from everlearn.predictors.predictor import Checkpoint, Predictor, at_rest
from everlearn.seeding import seeded


class Harness(Options):
    """Tasks of lm_eval, by its own names."""

    tasks: tuple[str, ...] = Field(min_length=1)
    """Tasks and groups as `lm_eval ls tasks` names them, such as hellaswag, or those of `include_path`."""
    num_fewshot: int | None = Field(default=None, ge=0)
    """Number of examples before each question. Default: the task's own."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first examples of each task, up to this number, for a trial."""
    apply_chat_template: bool = False
    """Format prompts with the tokenizer's chat template, for chat models."""
    include_path: str | None = None
    """Folder with configurations (YAML) of your own tasks."""

    def task_configs(self) -> list[HarnessTask]:
        """Return each name as a task of its own."""
        options = self.model_dump(exclude={"tasks"})
        return [HarnessTask(name=name, **options) for name in self.tasks]


class HarnessTask(TaskConfig):
    """One task or group of lm_eval; the keys are those of :class:`Harness`."""

    kind: Literal["lm_eval"] = "lm_eval"
    num_fewshot: int | None = None
    limit: int | None = None
    apply_chat_template: bool = False
    include_path: str | None = None


def named(value: Any) -> Any:
    """Return the mapping of options for a list of names, or one name, in a recipe."""
    value = [value] if isinstance(value, str) else value
    return {"tasks": value} if isinstance(value, list | tuple) else value


PREFIX, LOWER = "lm_eval_", "lm_eval_low_"
"""Prefixes of metric names; the second for metrics of which less is better."""
AGGREGATES: dict[str, Callable[[Any], Any]] = {
    "mean": lambda ratio: ratio,
    "perplexity": lambda ratio: np.exp(-ratio),
    "bits": lambda ratio: -ratio / math.log(2),
}
"""lm_eval's functions of a ratio of two sums over examples, Σ value / Σ weight."""


@register_kind()
class HarnessScore(Task):
    """Evaluate one task or group of lm_eval."""

    kind = "lm_eval"
    shared = False  # lm_eval reads its datasets itself, so it is unknown whether they are the same
    config: HarnessTask

    def check(self) -> str:
        known = manager(self.config.include_path).all_tasks
        if self.name not in known:
            raise RecipeError(
                f"`evaluation.lm_eval` names '{self.name}', which lm_eval {_version()} does not have."
                f"{did_you_mean(self.name, known)}"
            )
        return f"known to lm_eval {_version()}"

    def check_model(self, kind: Kind) -> None:
        if kind == "encoder":
            raise ModelError(
                f"`evaluation.lm_eval` ('{self.name}') needs a model that reads from left to right; a masked model "
                "only fills gaps. Remove it, or change `model.path`."
            )

    def fingerprint(self) -> str:
        return hash_of(self.kind, _version(), self.config.model_dump_json(exclude={"domain", "include_path"}))

    def texts(self) -> Sequence[str]:
        raise ModelError(
            f"A method selects by the text of the task, and only lm_eval knows the text of '{self.name}'. Remove "
            "`evaluation.lm_eval`, or evaluate another method."
        )

    def work(self, seeds: int) -> Work:
        return Work(units=1)  # only lm_eval knows the number of examples

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        lm_eval = library()
        from lm_eval.models.huggingface import HFLM

        model, config = self._model(predictor), self.config
        self.check_model(kind_of(model))
        # float32, so that the score is the one of the saved checkpoint.
        with at_rest([model], conditions.device, bf16=False), seeded("lm_eval"), _quietly():
            try:
                results = lm_eval.simple_evaluate(
                    HFLM(
                        pretrained=model,
                        tokenizer=copy.deepcopy(conditions.tokenizer),  # lm_eval changes its padding side
                        batch_size=conditions.batch_size,
                    ),
                    tasks=[self.name],
                    num_fewshot=config.num_fewshot,
                    limit=config.limit,
                    apply_chat_template=config.apply_chat_template,
                    task_manager=manager(config.include_path),
                    bootstrap_iters=0,
                )
            except (OSError, ValueError, LookupError, ImportError) as error:  # a dataset is not available
                raise ModelError(f"lm_eval cannot measure '{self.name}': {first_line(error).rstrip('.')}.") from error
        if conditions.progress is not None:
            conditions.progress(1)
        return cell_of(results, self.name, conditions.row, self.fingerprint())

    def _model(self, predictor: Predictor) -> nn.Module:
        """Return the one model that lm_eval can evaluate; raise ``ModelError`` if there is none."""
        what = type(predictor).__name__
        if isinstance(predictor, Checkpoint) and isinstance(predictor.model, PreTrainedModel):
            if not any(getattr(module, "lengthens_rows", False) for module in predictor.model.modules()):
                return predictor.model
            what = "a model with prompts before its texts"
        raise ModelError(
            f"lm_eval evaluates a single transformers model, but here the predictor is {what}. Remove "
            "`evaluation.lm_eval`, or evaluate another method."
        )


def library() -> Any:
    """Import lm_eval.

    Raises:
        RecipeError: it is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise RecipeError("`evaluation.lm_eval` needs lm_eval: `pip install 'everlearn[lm-eval]'`, or remove it.")
    import lm_eval

    return lm_eval


@cache
def manager(include_path: str | None) -> Any:
    """Return lm_eval's task manager, with the tasks of `include_path`; it is cached, since it takes seconds to make."""
    library()
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=include_path)


def _version() -> str:
    library()
    from importlib.metadata import version

    return version("lm_eval")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence lm_eval's log and progress bars, which would disturb ours."""
    log = logging.getLogger("lm_eval")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(before)


def cell_of(results: Mapping[str, Any], task: str, row: str, mark: str) -> Cell:
    """Return the cell of the results of ``lm_eval.simple_evaluate`` for one task or group.

    Args:
        results: lm_eval's results, with `results` (and `groups`), `samples` and `higher_is_better`.
        task: the task or group.
        row: label of the checkpoint.
        mark: fingerprint of the task and its options.

    Raises:
        ModelError: the results have no number for the task.
    """
    scores = {**results["results"].get(task, {}), **(results.get("groups") or {}).get(task, {})}
    better = (results.get("higher_is_better") or {}).get(task) or {}
    samples = [sample for name in sorted(results["samples"]) for sample in results["samples"][name]]
    outcomes, aggregates, totals = dict[str, NDArray[Any]](), dict[str, str](), dict[str, NDArray[Any]]()
    for key, value in scores.items():
        name, comma, chosen = key.partition(",")
        if not comma or name.endswith("_stderr") or not isinstance(value, int | float):
            continue
        called = _called(name, chosen, better.get(name) is not False)
        pairs = _pairs([s for s in samples if s["filter"] == chosen and name in s["metrics"]], name)
        aggregate = next(
            (aggregate for aggregate in AGGREGATES if pairs is not None and _same(_aggregate(pairs, aggregate), value)),
            None,
        )
        totals[called] = np.array([[value], [1.0]])
        if pairs is not None and aggregate is not None:
            outcomes[called], aggregates[called] = pairs, aggregate
    if not totals:
        raise ModelError(f"lm_eval returns no number for '{task}'. Name its tasks one by one in `evaluation.lm_eval`.")
    if outcomes.keys() != totals.keys() or len({pairs.shape for pairs in outcomes.values()}) > 1:
        outcomes, aggregates = totals, dict.fromkeys(totals, "mean")
    hashes = ("filter", "doc_hash", "prompt_hash", "target_hash")
    read = sorted({tuple(str(sample.get(key)) for key in hashes) for sample in samples})
    return Cell("lm_eval", task, row, outcomes, facts={"aggregates": aggregates}, fingerprint=hash_of(mark, read))


def _called(name: str, chosen: str, more_is_better: bool) -> str:
    """Return everlearn's name of an lm_eval metric; the name of a filter other than the default becomes part of it."""
    words = name if chosen in ("", "none") else f"{name}_{chosen}"
    return (PREFIX if more_is_better else LOWER) + "".join(c if c.isalnum() else "_" for c in words)


def _pairs(samples: Sequence[Mapping[str, Any]], name: str) -> NDArray[Any] | None:
    """Return value and weight of each example, [2, n]; None if there are none."""
    values = [sample.get(name) for sample in samples]
    pairs = [tuple(value) if isinstance(value, list | tuple) else (value, 1) for value in values]
    if not pairs or not all(len(pair) == 2 and all(isinstance(x, int | float) for x in pair) for pair in pairs):
        return None
    return np.array(pairs, np.float64).T


def _aggregate(sums: NDArray[Any], name: str) -> float:
    with np.errstate(all="ignore"):
        return float(AGGREGATES[name](sums[0].sum() / sums[1].sum()))


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def _metric(name: str) -> Metric:
    def value(sums: Floats, cell: Cell) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray(AGGREGATES[cell.facts["aggregates"][name]](sums[..., 0] / sums[..., 1]))

    lower = name.startswith(LOWER)
    own = name.removeprefix(LOWER if lower else PREFIX)
    unit = "fraction" if own.startswith(("acc", "exact_match", "f1", "em")) else own
    return Metric(
        name, f"lm_eval {own}", unit, not lower, (name,), lambda cell: cell[name][None], value, knows=("aggregates",)
    )


register_family(PREFIX, _metric)
