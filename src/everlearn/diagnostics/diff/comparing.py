"""Compare two checkpoints on texts and tasks without a recipe: ``everlearn diff``."""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Corpus
from everlearn.data.tokenize import Encoder
from everlearn.diagnostics.diff import tasks as end_tasks
from everlearn.diagnostics.diff import texts as held_out
from everlearn.diagnostics.diff.models import KINDS, ModelSide, moved, open_sides
from everlearn.diagnostics.diff.page import write
from everlearn.diagnostics.diff.passages import LENGTH, SPARE, TextPassage, choose, few, rows_of
from everlearn.diagnostics.diff.result import ComparedModels
from everlearn.diagnostics.diff.scoring import TokenLosses, score
from everlearn.diagnostics.diff.sources import Documents, documents_of, of_recipe
from everlearn.diagnostics.diff.tasks import read_tasks
from everlearn.diagnostics.diff.words import sentence
from everlearn.errors import DataError, ModelError, RecipeError
from everlearn.evaluation import Cell, Conditions, Task, make_task
from everlearn.evaluation.quantities import TOLERATED_DRIFT
from everlearn.evaluation.task import TaskConfig
from everlearn.model.loading import empty_model, load_config
from everlearn.model.objectives import Objective, make_objective
from everlearn.model.options import Model
from everlearn.predictors import Checkpoint
from everlearn.run.progress import Reporter
from everlearn.version import __version__

BLOCKS = 64
"""Default number of rows of each text."""
LONGEST_ROW = 512
"""Default number of tokens of a row, unless a model's longest input is shorter."""
BATCH = 8
MASK_SEED = 0
FORMAT = 1
"""Version of the JSON; raise it when a key changes its meaning or is removed."""


@dataclass(frozen=True)
class Diff(ComparedModels):
    """The differences between two checkpoints, with a verdict in words and a page."""

    @property
    def verdict(self) -> str:
        """Return what was forgotten and what was learnt, in a sentence or two."""
        return sentence(self)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {"format": FORMAT, "everlearn": __version__, "verdict": self.verdict, **super().to_json()}

    def save(self, path: str | Path) -> Path:
        """Write the page, one HTML file that opens offline."""
        return write(self, Path(path))


def diff(
    before: str | Path,
    after: str | Path,
    texts: Mapping[str, str | Path | Corpus] | Sequence[str | Path] = (),
    *,
    tasks: Sequence[TaskConfig | str | Path] = (),
    on: Recipe | None = None,
    blocks: int = BLOCKS,
    block_size: int | None = None,
    tolerate: float | None = None,
    batch_size: int = BATCH,
    bf16: bool = False,
    device: str | None = None,
    reporter: Reporter | None = None,
) -> Diff:
    """Compare two checkpoints of any origin on the same text: what was forgotten, and what was learnt.

    ```python
    found = everlearn.diff("HuggingFaceTB/SmolLM2-135M", "my-model", texts={"wikipedia": "wikipedia.jsonl"})
    print(found.verdict)
    found.save("diff.html")
    ```

    Args:
        before: the earlier model: a folder that ``save_pretrained`` wrote, a stage or export of everlearn, a PEFT
            adapter or a hub id; also ``LABEL=PATH``.
        after: the later model.
        texts: name → a file, folder, glob or hub id, or a :class:`everlearn.Corpus`; or only paths.
        tasks: end tasks without fine-tuning: YAML files with tasks, or their options.
        on: a recipe, whose held-out text, general text and end tasks are compared too.
        blocks: approximate number of rows per text; passages are drawn from the complete text.
        block_size: tokens per row. Default: 512, or the shorter of the models' longest inputs.
        tolerate: a text does not count as forgotten if the whole interval of its loss, in bits per byte, lies below.
            Default: 0.02.
        batch_size: rows in a forward pass.
        bf16: compute in bfloat16; the weights stay float32.
        device: torch device. Default: the first GPU, or the CPU if there is none.
        reporter: shows progress; None for no output.

    Raises:
        RecipeError: a model does not exist, or there is nothing to compare on.
        DataError: a text cannot be read, or is shorter than a row.
        ModelError: a model cannot be loaded, or the two cannot be compared.
    """
    if tolerate is not None and not (math.isfinite(tolerate) and tolerate >= 0):
        raise RecipeError(f"`--tolerate` is {tolerate:g}; it must be a number of bits per byte, 0 or more.")
    reporter = reporter or Reporter()
    sides = open_sides(before, after)
    notes: list[str] = []
    sources = documents_of(texts, notes)
    configs = [
        config for each in tasks for config in (read_tasks(Path(each)) if isinstance(each, str | Path) else [each])
    ]
    if on is not None:
        more, own = of_recipe(on, notes)
        sources, configs = {**more, **sources}, [*own, *configs]
    if not sources and not configs:
        raise RecipeError(
            "There is nothing to compare on: name a text (`--text PATH`), an end task (`--task FILE`), or a run or "
            "recipe that has them (`--on RUN`)."
        )
    if len(names := [*sources, *(config.name for config in configs)]) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f"Two texts or tasks would be called '{twice}'. Write `NAME=PATH` for one of them.")
    place = _place(device)
    size = _row(sides, block_size)
    chosen = _chosen(sources, sides, size, blocks)
    work = _Measuring([make_task(config) for config in configs], chosen, size, batch_size, place, bf16, reporter)
    for task in work.tasks:
        task.check()
        task.check_model(sides[0].kind)
    (losses, cells), (later_losses, later_cells) = (work.measure(side, sides[0]) for side in sides)
    parts, why = moved(*sides)
    result = Diff(
        sides[0].label,
        sides[1].label,
        KINDS[sides[0].kind],
        size,
        TOLERATED_DRIFT if tolerate is None else tolerate,
        [
            held_out.compare(name, chosen[name].passages, losses[name], later_losses[name], sides[0].tokenizer)
            for name in chosen
        ],
        [end_tasks.compare(task, cells[task.name], later_cells[task.name]) for task in work.tasks],
        parts,
        [*notes, *([why] if why else [])],
    )
    if any(not text.by_token for text in result.texts):
        result.notes.append(
            "The two tokenizers differ: texts are compared by passage, in bits per byte, and not token by token."
        )
    return result


def _place(device: str | None) -> torch.device:
    """Return the device of the computation.

    Raises:
        RecipeError: torch cannot use the device.
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise RecipeError(
            f"`--device` is '{name}', which torch cannot use here. Name another one, such as cpu."
        ) from None


# -- texts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    """Passages of a text, and whether both models read the same tokens of them."""

    passages: list[TextPassage]
    same_tokens: bool


def _row(sides: Sequence[ModelSide], block_size: int | None) -> int:
    """Return the number of tokens of a row.

    Raises:
        RecipeError: the requested number is above a model's longest input.
    """
    limits = [(_longest(side), side) for side in sides]
    longest, side = min(
        ((limit, side) for limit, side in limits if limit), default=(None, sides[0]), key=lambda x: x[0]
    )
    if block_size is not None and longest is not None and block_size > longest:
        raise RecipeError(
            f"`--block-size` is {block_size}, but '{side.label}' reads {longest} tokens at most. Lower it."
        )
    return block_size or min(LONGEST_ROW, longest or LONGEST_ROW)


def _longest(side: ModelSide) -> int | None:
    """Return a model's longest input in tokens; None if it has no limit. No weights are loaded."""
    model = empty_model(load_config(Model(path=side.path)))
    return make_objective(None, model, side.tokenizer).longest_input(model)


def _chosen(sources: Mapping[str, Documents], sides: Sequence[ModelSide], size: int, blocks: int) -> dict[str, _Chosen]:
    """Draw the passages of each text, about as many as fill the requested rows.

    Raises:
        ModelError: the kind of model cannot score plain text, or masks would fall on different tokens.
        DataError: a text is shorter than a row.
    """
    if sources and sides[0].kind == "encoder-decoder":
        raise ModelError(
            f"'{sides[0].label}' is an encoder-decoder, which reads prompts and writes answers, so plain text says "
            "nothing about it. Compare on end tasks (`--task FILE`)."
        )
    encoders = [Encoder(side.tokenizer, side.kind) for side in sides]
    texts_by_name = {}
    for name, documents in sources.items():
        drawn = choose(documents(), LENGTH * size, SPARE * size * blocks)
        ids = encoders[0]([passage.text for passage in drawn])
        if (total := sum(map(len, ids))) < size:
            raise DataError(
                f"Text '{name}' has {total} tokens, fewer than a row of {size}. Give a longer text, or lower "
                "`--block-size`."
            )
        passages = few(drawn, ids, size * blocks)
        texts = [passage.text for passage in passages]
        same = encoders[0](texts) == encoders[1](texts)
        if not same and sides[0].kind == "encoder":
            raise ModelError(
                f"'{sides[0].label}' and '{sides[1].label}' cut '{name}' into different tokens, so no masks are the "
                "same for both. Compare masked models of one tokenizer."
            )
        texts_by_name[name] = _Chosen(passages, same)
    return texts_by_name


# -- one model at a time ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measuring:
    """Measurements of each of the two models."""

    tasks: list[Task]
    texts: Mapping[str, _Chosen]
    size: int
    batch_size: int
    device: torch.device
    bf16: bool
    reporter: Reporter

    def measure(self, side: ModelSide, first: ModelSide) -> tuple[dict[str, TokenLosses], dict[str, Cell]]:
        """Load a model, score every text and evaluate every task, and free its memory.

        Args:
            side: the model.
            first: the earlier model. If both read the same tokens of a text, its special tokens are used for both.
        """
        model = side.load().to(self.device)
        losses, cells = {}, {}
        for name, chosen in self.texts.items():
            like = first if chosen.same_tokens else side
            objective = make_objective(None, model, like.tokenizer, seed=MASK_SEED)
            losses[name] = self._losses(name, chosen, side, model, objective, Encoder(like.tokenizer, like.kind))
        for task in self.tasks:
            task.check_tokenizer(side.tokenizer)
            objective = make_objective(None, model, side.tokenizer, seed=MASK_SEED)
            with self.reporter.activity(f"{side.label}: {task.name}", task.work(1).units) as done:
                how = Conditions(
                    side.label, side.tokenizer, objective, self.batch_size, (0,), self.device, self.bf16, done
                )
                cells[task.name] = task.measure(Checkpoint(model, objective), how)
        del model
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return losses, cells

    def _losses(
        self,
        name: str,
        chosen: _Chosen,
        side: ModelSide,
        model: torch.nn.Module,
        objective: Objective,
        encoder: Encoder,
    ) -> TokenLosses:
        ids = encoder([passage.text for passage in chosen.passages])
        rows = rows_of(ids, encoder, self.size)
        with self.reporter.activity(f"{side.label}: {name}", len(rows.blocks)) as done:
            return score(
                model,
                objective,
                rows,
                ids,
                name=side.label,
                batch_size=self.batch_size,
                device=self.device,
                bf16=self.bf16,
                progress=done,
            )
