"""Rows that a stage's model writes before it learns a domain: replay without any old text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from everlearn import files
from everlearn.data.blocks import Block
from everlearn.data.packing import TextPacker
from everlearn.data.tokenize import Encoder
from everlearn.errors import MethodError
from everlearn.evaluation.decoding import Ending, continuation, decode
from everlearn.methods.engine.processes import processes, rank, wait_for_all
from everlearn.methods.stage import Stage
from everlearn.model.anatomy import kind_of
from everlearn.model.modes import evaluating
from everlearn.model.objectives import Masked
from everlearn.seeding import seed_for

TEXTS_PER_ROW = 32
"""How many texts are written at most for each row that is wanted: a model may end its texts after a word."""
FOLDER, IDS, LENGTHS = "generated", "ids", "lengths"


def generated_rows(stage: Stage, wanted: int, sweeps: int) -> tuple[list[Block], int]:
    """Rows of the stage's own block size, packed as text is, and the number of texts in them.

    Texts are written in lots of ``stage.batch_size``. A lot depends on its number alone and is kept in a sealed folder
    of its own in ``stage.folder``, so a stage that is resumed makes those that are missing; several processes share
    the lots out. Outside a run folder every process writes them all.

    Args:
        stage: its model is a plain one, with the weights that the domain begins with.
        wanted: rows; fewer are found where the texts are too short.
        sweeps: of a masked model (:func:`_filled`).

    Raises:
        MethodError: the model's texts do not fill a single row.
    """
    size, encoder = stage.source.block_tokens, Encoder(stage.tokenizer, kind_of(stage.model))
    if size is None:
        raise MethodError(
            f"Rows of '{stage.domain}' differ in length, and a model's own texts are packed into rows of one length: "
            "set method 'replay', option 'source', to 'earlier' or 'general'."
        )
    packer, blocks = TextPacker(encoder, size), list[Block]()
    lots, number = math.ceil(TEXTS_PER_ROW * wanted / stage.batch_size), 0
    with stage.phase(f"Writing text of its own before {stage.domain}", wanted) as done:
        while len(blocks) < wanted and number < lots:
            several = range(number, min(number + (processes() if stage.folder else 1), lots))
            for texts in _lots(stage, several, encoder, size, sweeps):
                blocks += packer.feed_ids(texts)
            number = several.stop
            done(min(len(blocks), wanted))
        done(wanted)
    if not blocks:
        raise MethodError(
            f"What the model writes before '{stage.domain}' does not fill one row: {packer.count.documents:,} texts "
            f"have {packer.count.tokens:,} tokens. Lower `data.block_size`, or set method 'replay', option 'source', "
            "to 'earlier' or 'general'."
        )
    return blocks[:wanted], packer.count.documents


def _lots(stage: Stage, numbers: range, encoder: Encoder, size: int, sweeps: int) -> Iterator[list[list[int]]]:
    """The texts of these lots; with a folder each is made by one process and read by all."""
    for number in numbers:
        place = None if stage.folder is None else stage.folder / FOLDER / f"{number:06d}"
        if place is not None and (number % processes() != rank() or files.damage(place) is None):
            continue
        texts = _written(
            stage, range(number * stage.batch_size, (number + 1) * stage.batch_size), encoder, size, sweeps
        )
        if place is None:
            yield texts
        else:
            _save(place, texts)
    if stage.folder is not None:
        wait_for_all()
        for number in numbers:
            yield _load(stage.folder / FOLDER / f"{number:06d}")


def _save(place: Path, texts: Sequence[Sequence[int]]) -> None:
    with files.new_folder(place) as folder:
        ids = torch.tensor([token for text in texts for token in text], dtype=torch.int32)
        files.save_tensors(folder / "texts.safetensors", {IDS: ids, LENGTHS: torch.tensor([*map(len, texts)])})


def _load(place: Path) -> list[list[int]]:
    found = files.load_tensors(place / "texts.safetensors")
    return [part.tolist() for part in found[IDS].split(found[LENGTHS].tolist())]


def _written(stage: Stage, numbers: range, encoder: Encoder, size: int, sweeps: int) -> list[list[int]]:
    """Texts number so and so, with special tokens; what each draws depends on its number alone."""
    seeds = [seed_for(stage.seed, FOLDER, stage.index, number) for number in numbers]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with torch.no_grad(), evaluating(stage.model):
        if encoder.kind == "encoder":
            return _filled(stage, generators, encoder, size, sweeps)
        return _sampled(stage, generators, encoder, size)


def _sampled(stage: Stage, generators: Sequence[torch.Generator], encoder: Encoder, size: int) -> list[list[int]]:
    """Of a decoder: from the beginning of a text, at temperature 1, to its end or to the length of a row."""
    end = encoder.end
    start = encoder.prefix or [encoder.pad if end is None else end]
    most = size - len(start)
    ids = torch.tensor([start] * len(generators), device=_device(stage))
    draws = torch.stack([torch.rand(most, generator=each, dtype=torch.float64) for each in generators])
    steps = continuation(stage.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    texts = decode(steps, Ending(most, () if end is None else (end,), temperature=1, draws=draws))
    # A text that was cut off has no end, and none is taught.
    return [[*start, *text, *([end] if end is not None and len(text) < most else [])] for text in texts]


def _filled(
    stage: Stage, generators: Sequence[torch.Generator], encoder: Encoder, size: int, sweeps: int
) -> list[list[int]]:
    """Of a masked model: a row of masks, whose positions are drawn again and again given the others (arXiv 1902.04094).

    A sweep takes every position once, in an order of the row's own, as many at a time as training masks. In the first
    sweep what is yet to come is still masked. Special tokens are never drawn.
    """
    objective, mask = stage.objective, stage.tokenizer.mask_token_id
    inner = size - len(encoder.prefix) - len(encoder.suffix)
    rows = [[*encoder.prefix, *[mask] * inner, *encoder.suffix]] * len(generators)
    ids = torch.tensor(rows, device=_device(stage))
    at_once = max(1, round(objective.probability * inner)) if isinstance(objective, Masked) else 1
    for _ in range(sweeps):
        orders = torch.stack([torch.randperm(inner, generator=each) for each in generators]) + len(encoder.prefix)
        for positions in orders.to(ids.device).split(at_once, 1):
            chances = [torch.rand(positions.shape[1], generator=each, dtype=torch.float64) for each in generators]
            ids.scatter_(1, positions, mask)
            batch = {"input_ids": ids, "positions": positions, "labels": ids.gather(1, positions)}
            words = objective.drawn_labels(stage.model, batch, torch.stack(chances), stage.tokenizer.all_special_ids)
            ids.scatter_(1, positions, words)
    return ids.tolist()


def _device(stage: Stage) -> torch.device:
    parameter: Tensor = next(stage.model.parameters())
    return parameter.device
