"""``everlearn diff``: what a model forgot and learnt between two checkpoints, on texts and tasks, without a recipe."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from everlearn.analysis.diff import tasks as end_tasks
from everlearn.analysis.diff import texts as held_out
from everlearn.analysis.diff.models import KINDS, Side, moved, open_sides
from everlearn.analysis.diff.passages import LENGTH, SPARE, Passage, choose, few, rows_of
from everlearn.analysis.diff.scoring import TokenLosses, score
from everlearn.analysis.diff.tasks import TaskDifference, read_tasks
from everlearn.analysis.diff.texts import TextDifference
from everlearn.analysis.diff.verdict import TOLERATED, judge
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.documents import read_documents
from everlearn.data.endtask import TaskConfig
from everlearn.data.held_out import OwnHeldOut
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, ModelError, RecipeError
from everlearn.evaluation import KINDS as TASK_KINDS
from everlearn.evaluation import Cell, Checkpoint, Conditions, Task, make_task
from everlearn.model.loading import CLASSES, load_config
from everlearn.model.movement import Moved, together, whole
from everlearn.model.objectives import Objective, make_objective
from everlearn.model.source import Model
from everlearn.options import path_or_id
from everlearn.run.progress import Reporter
from everlearn.version import __version__

BLOCKS = 64
"""Rows of each text that are read unless more are asked for."""
LONGEST_ROW = 512
"""Tokens of a row, unless a model reads fewer or another number is asked for."""
BATCH = 8
MASK_SEED = 0
FORMAT = 1
"""Of the JSON: raise it when a key changes its meaning or goes."""

Documents = Callable[[], Iterable[Document]]


@dataclass(frozen=True)
class Diff:
    """What two checkpoints differ in.

    Attributes:
        before: label of the earlier one.
        after: of the later one.
        kind: masked, causal or text-to-text.
        block_size: tokens of a row.
        tolerated: bits per byte that a text may lose before it counts as forgotten.
        texts: the difference on each text.
        tasks: on each end task.
        layers: how far each part of each layer moved; None where the weights cannot be compared.
        notes: sentences that a reader should know.
    """

    before: str
    after: str
    kind: str
    block_size: int
    tolerated: float
    texts: list[TextDifference]
    tasks: list[TaskDifference]
    layers: list[Moved] | None
    notes: list[str] = field(default_factory=list)

    @property
    def verdicts(self) -> dict[str, str]:
        """Text or task → forgot, lost within tolerance, learnt, no difference or unknown."""
        of_texts = {text.name: judge(text.difference, self.tolerated) for text in self.texts}
        return of_texts | {task.name: judge(task.loss) for task in self.tasks}

    @property
    def verdict(self) -> str:
        """What was forgotten and what was learnt, in a sentence or two."""
        from everlearn.analysis.diff.words import sentence

        return sentence(self)

    def to_json(self) -> dict[str, Any]:
        """For another program."""
        layers = None if self.layers is None else [*together(self.layers).values(), whole(self.layers)]
        return {
            "format": FORMAT,
            "everlearn": __version__,
            **{name: getattr(self, name) for name in ("before", "after", "kind", "block_size", "tolerated", "verdict")},
            "texts": [{"verdict": self.verdicts[text.name], **text.to_json()} for text in self.texts],
            "tasks": [{"verdict": self.verdicts[task.name], **task.to_json()} for task in self.tasks],
            "layers": None
            if layers is None
            else [
                {"layer": part.layer or "all", "relative": part.relative, "cosine": part.cosine, "share": part.share}
                for part in layers
            ],
            "parts": None if self.layers is None else [asdict(part) for part in self.layers],
            "notes": self.notes,
        }

    def save(self, path: str | Path) -> Path:
        """Write the page, one HTML file that opens offline."""
        from everlearn.analysis.diff.page import write

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
    tolerate: float = TOLERATED,
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
        before: the earlier model: a folder that ``save_pretrained`` wrote, a stage or export of everlearn, a PEFT adapter or
            a hub id; also ``LABEL=PATH``.
        after: the later one.
        texts: name → a file, folder, glob or hub id, or a :class:`everlearn.Corpus`; or paths alone.
        tasks: end tasks that ask a model as it is: files of them, or their options.
        on: a recipe, whose held-out text, general text and end tasks are compared too.
        blocks: rows of each text that are read, about; its passages are drawn from all over the text.
        block_size: tokens of a row; 512, or as many as both models can read, when left out.
        tolerate: bits per byte that a text may lose before it counts as forgotten.
        batch_size: rows in a forward pass.
        bf16: compute in bfloat16; the weights stay float32.
        device: as torch names it; the first GPU when left out, or the processor where there is none.
        reporter: who is told what is going on; nobody when left out.

    Raises:
        RecipeError: a model is nowhere, or there is nothing to compare on.
        DataError: a text cannot be read, or is shorter than a row.
        ModelError: a model cannot be read, or the two cannot be compared.
    """
    reporter = reporter or Reporter()
    sides = open_sides(before, after)
    notes: list[str] = []
    sources = _sources(texts)
    configs = [config for each in tasks for config in (read_tasks(Path(each)) if isinstance(each, str | Path) else [each])]
    if on is not None:
        more, own = _of_recipe(on, notes)
        sources, configs = {**more, **sources}, [*own, *configs]
    if not sources and not configs:
        raise RecipeError("There is nothing to compare on: name a text (`--text PATH`) or an end task (`--task FILE`).")
    if len(names := [*sources, *(config.name for config in configs)]) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise RecipeError(f"Two texts or tasks would be called '{twice}'. Write `NAME=PATH` for one of them.")
    place = _place(device)
    size = _row(sides, block_size)
    chosen = _chosen(sources, sides, size, blocks)
    work = _Work([make_task(config) for config in configs], chosen, size, batch_size, place, bf16, reporter)
    for task in work.tasks:
        task.check()
        task.check_model(sides[0].kind)
    (losses, cells), (later_losses, later_cells) = (work.measure(side, sides[0]) for side in sides)
    parts, why = moved(*sides)
    found = Diff(
        sides[0].label,
        sides[1].label,
        KINDS[sides[0].kind],
        size,
        tolerate,
        [
            held_out.compare(name, chosen[name].passages, losses[name], later_losses[name], sides[0].tokenizer)
            for name in chosen
        ],
        [end_tasks.compare(task, cells[task.name], later_cells[task.name]) for task in work.tasks],
        parts,
        [*notes, *([why] if why else [])],
    )
    if any(not text.by_token for text in found.texts):
        found.notes.append(
            "The two tokenizers differ: texts are compared by passage, in bits per byte, and not token by token."
        )
    return found


def _place(device: str | None) -> torch.device:
    """Where models are measured.

    Raises:
        RecipeError: there is no such device here.
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise RecipeError(f"`--device` is '{name}', which torch cannot use here. Name another one, such as cpu.") from None


# -- texts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    """Passages of a text, and whether both models read the same tokens of them."""

    passages: list[Passage]
    same_tokens: bool


def _sources(texts: Mapping[str, str | Path | Corpus] | Sequence[str | Path]) -> dict[str, Documents]:
    found: dict[str, Documents] = {}
    named = texts.items() if isinstance(texts, Mapping) else ((_name(path), path) for path in texts)
    for name, source in named:
        if name in found:
            raise RecipeError(f"Two texts would be called '{name}'. Write `NAME=PATH` for one of them.")
        corpus = source if isinstance(source, Corpus) else Corpus(path=path_or_id(source, "--text"))
        found[name] = lambda corpus=corpus: (document for document, _ in read_documents(corpus))  # type: ignore[misc]
    return found


def _name(path: str | Path) -> str:
    """What a text is called that was given without a name: as its file, without endings."""
    return Path(path).name.split(".")[0] or str(path)


def _of_recipe(recipe: Recipe, notes: list[str]) -> tuple[dict[str, Documents], list[TaskConfig]]:
    """The held-out text of a recipe's domains and its general text, and those end tasks that ask a model as it is."""
    corpora = [*recipe.domains, *([recipe.general] if recipe.general is not None else [])]
    texts: dict[str, Documents] = {}
    for corpus in corpora:
        if corpus.validation is None:
            continue
        if any(part.target_column is not None for part in corpus.parts):
            notes.append(f"'{corpus.name}' holds prompts and answers, which are compared as an end task only (`--task`).")
            continue
        texts[corpus.name] = lambda corpus=corpus: _held_out(corpus)  # type: ignore[misc]
    asked = [task for task in recipe.end_tasks if not TASK_KINDS[task.kind].fine_tunes]
    if left := [task.name for task in recipe.end_tasks if task not in asked]:
        notes.append(f"Left out, for they fine-tune copies of each model: {', '.join(left)}. `everlearn evaluate` has them.")
    return texts, asked


def _held_out(corpus: Domain) -> Iterator[Document]:
    for part in corpus.parts:
        if part.held_out_corpus is not None:
            yield from (document for document, _ in read_documents(part.held_out_corpus))
        elif part.held_out_share:
            documents = (document for document, _ in read_documents(part))
            parted = OwnHeldOut(part, part.held_out_share).parted(documents)
            yield from (document for document, held in parted if held)


def _row(sides: Sequence[Side], asked: int | None) -> int:
    """Tokens of a row.

    Raises:
        RecipeError: more than a model can read are asked for.
    """
    limits = [(_longest(side), side) for side in sides]
    longest, side = min(((limit, side) for limit, side in limits if limit), default=(None, sides[0]), key=lambda x: x[0])
    if asked is not None and longest is not None and asked > longest:
        raise RecipeError(f"`--block-size` is {asked}, but '{side.label}' reads {longest} tokens at most. Lower it.")
    return asked or min(LONGEST_ROW, longest or LONGEST_ROW)


def _longest(side: Side) -> int | None:
    """Tokens that a model can read in a row; None where there is no limit. No weights are made."""
    with torch.device("meta"):
        model = CLASSES[side.kind].from_config(load_config(Model(path=side.path)))
    return make_objective(None, model, side.tokenizer).longest_input(model)


def _chosen(sources: Mapping[str, Documents], sides: Sequence[Side], size: int, blocks: int) -> dict[str, _Chosen]:
    """Passages of each text, about as many as fill the rows that are asked for.

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
    found = {}
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
        found[name] = _Chosen(passages, same)
    return found


# -- one model at a time ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """What is measured on each of the two models."""

    tasks: list[Task]
    texts: Mapping[str, _Chosen]
    size: int
    batch_size: int
    device: torch.device
    bf16: bool
    reporter: Reporter

    def measure(self, side: Side, first: Side) -> tuple[dict[str, TokenLosses], dict[str, Cell]]:
        """Load a model, score every text and ask every task, and let go of it.

        Args:
            side: the model.
            first: the earlier one, whose special tokens both read where their other tokens are the same.
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
                how = Conditions(side.label, side.tokenizer, objective, self.batch_size, (0,), self.device, self.bf16, done)
                cells[task.name] = task.measure(Checkpoint(model, objective), how)
        del model
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return losses, cells

    def _losses(
        self, name: str, chosen: _Chosen, side: Side, model: torch.nn.Module, objective: Objective, encoder: Encoder
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
