"""DER++: replay text together with its earlier representations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.data.reservoir import Reservoir
from everlearn.methods.base import Batch, Cost, Method, MethodConfig, Needs, Setting, Stage, View, register
from everlearn.methods.cost import usual_row
from everlearn.methods.distillation.comparisons import over_texts
from everlearn.methods.rehearsal.rows_in_batch import own_rows, refuse_encoder_decoder, refuse_other_width
from everlearn.methods.state import Fact, OneTensor, Tensors
from everlearn.model.content import counted
from everlearn.model.objectives import Outputs, row_means
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import config_of
from everlearn.ranges import Around, ranges
from everlearn.seeding import seed_for

ROWS = "rows"
"""Key of the row numbers among the tensors of the selected sequences."""


@register
class DERpp(Method):
    """Dark experience replay++ (arXiv 2004.07211, eq. 6), for pre-training as in arXiv 2302.03241.

    L = L_t + α · E[‖h(x) − z‖²] + β · E[ℓ(x)] over stored sequences x, with z the last hidden state of x, [S, H], after
    the domain of x (averaged over tokens and features), and ℓ the loss of the objective. Both expectations are
    estimated on the same rows, as many as the batch has, sampled uniformly with replacement, in the forward pass of the
    batch. The paper stores outputs of the classifier; those of a language model would need the whole vocabulary for
    each token, so the last hidden state is used instead, as in the DAS authors' code.

    After each domain a uniform sample of its sequences is stored, and z is computed without dropout. The mask of a
    sequence never changes. Row i of the training of a domain gets the same stored row for every batch size and number
    of processes.
    """

    name = "derpp"
    title = "DER++"
    summary = "replays old text with its earlier representations"
    paper = "https://arxiv.org/abs/2004.07211"
    kinds = ("replay", "data-focused")
    in_das_paper: ClassVar[tuple[str, ...]] = ("der++",)
    needs = Needs(old_data=True)
    identity: ClassVar[dict[str, Any] | None] = {"alpha": 0, "beta": 0}

    class Config(MethodConfig):
        alpha: float = Field(0.5, ge=0, allow_inf_nan=False)
        """α, the weight of the distance to the stored representations."""
        beta: float = Field(0.5, ge=0, allow_inf_nan=False)
        """β, the weight of the loss on replayed sequences; 0 is DER."""
        per_domain: int = Field(100, ge=1)
        """Sequences stored of each domain; the DAS paper stores 16.4 K tokens, which are 100 sequences of 164."""
        capacity: int = Field(600, ge=1)
        """Sequences stored in total. When domains exceed it, each keeps an equal share."""

    search = ranges(alpha=Around(10), beta=Around(10))
    config: Config
    _blocks = Tensors("blocks/", kind="any", dims=2, rows="_domains")
    _hidden = OneTensor("hidden", dims=3, rows="_domains", beside="_domains")
    _domains = Fact("domains", list[str], beside="_blocks")
    _masks = Fact("masks", list[int], rows="_domains", beside="_domains")
    """The sequences, their hidden states, domains and mask numbers."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, old_data=self._active)

    @property
    def _active(self) -> bool:
        return self.config.alpha > 0 or self.config.beta > 0

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self._active:
            refuse_encoder_decoder(self, setting)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: the stored sequences with their hidden states, and one more row per row.

        A sequence has a float32 hidden state and up to three 4-byte numbers per token, in rows of the usual length
        (those of the recipe may be shorter). Each domain takes one forward pass over its stored sequences.
        """
        if not self._active:
            return Cost()
        config = config_of(model).get_text_config()
        held = self.config.capacity * usual_row(config) * (4 * config.hidden_size + 12)
        return Cost(memory_bytes=held, disk_bytes=held, passes_per_step=1.0)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Select as many stored sequences as the batch has rows, with their original masks."""
        if not self._active or not self._domains:
            return {}
        refuse_other_width(self, stage, self._blocks["input_ids"].shape[1], batch)
        rows, device = self._draw(stage, len(batch["labels"])), batch["input_ids"].device
        old = {name: value.to(device) for name, value in self._collated(stage, rows).items()}
        return {ROWS: torch.tensor(rows), **old}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        old = own_rows(self, batch)
        if old.pop(ROWS, None) is None:
            return []
        labels = old["labels"] if self.config.beta else None
        return [View(stage.objective.inputs(old), labels=labels, positions=old.get("positions"))]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return α times the squared distance and β times the loss; each is a mean over rows with equal weights."""
        if not outputs.views:
            return {}
        losses, old = {}, own_rows(self, batch)
        if self.config.alpha:
            now = outputs.views[0].float()
            stored = self._hidden[old[ROWS]].to(device=now.device, dtype=torch.float32)
            losses["distance"] = self.config.alpha * over_texts((now - stored).square().mean(-1), counted(old))
        if (nats := outputs.view_losses[0]) is not None:
            losses["replay"] = self.config.beta * row_means(nats, old["labels"])
        return losses

    def end_domain(self, stage: Stage) -> None:
        """Store a sample of the domain with its current hidden states, and remove old sequences to make room."""
        if not self._active:
            return
        share = max(1, self.config.capacity // (len(set(self._domains)) + 1))
        share = min(share, self.config.per_domain)
        sample = Reservoir(share, seed_for(stage.seed, "derpp", stage.index))
        blocks = stage.source.once(seed_for(stage.seed, "derpp order", stage.index))
        count = stage.source.size if stage.source.size is not None else stage.steps * stage.rows_per_step
        sample.extend(islice(blocks, count), stage.domain)

        # Shuffle, because the order of a reservoir is not random and the last rows of each domain are removed first.
        chosen = [sample.blocks[place] for place in torch.randperm(len(sample)).tolist()]
        new = {key: torch.from_numpy(np.stack([block[key] for block in chosen])) for key in chosen[0]}
        places = [self._domains[:row].count(domain) for row, domain in enumerate(self._domains)]
        kept = [row for row, place in enumerate(places) if place < share]
        kept = kept[max(0, len(kept) + len(sample) - self.config.capacity) :]
        first = max(self._masks, default=-1) + 1
        if kept:
            both = {key: (_column(self._blocks, key)[kept], _column(new, key)) for key in {**self._blocks, **new}}
            new = {key: torch.cat(parts) for key, parts in both.items()}
        self._blocks = new
        self._domains = [self._domains[row] for row in kept] + sample.domains
        self._masks = [self._masks[row] for row in kept] + list(range(first, first + len(sample)))
        hidden = self._hidden_states(stage, list(range(len(kept), len(self._domains))))
        self._hidden = torch.cat([self._hidden[kept], hidden]) if kept else hidden

    def _draw(self, stage: Stage, rows: int) -> list[int]:
        """Return stored rows for this process's next rows of the stage, numbered globally as by the loader."""
        numbers = range(stage.row, stage.row + rows)
        return [seed_for(stage.seed, "derpp", stage.index, row) % len(self._domains) for row in numbers]

    def _collated(self, stage: Stage, rows: list[int]) -> Batch:
        """Collate stored rows, with masks that depend on the sequence only."""
        blocks: list[Block] = [{key: value[row].numpy() for key, value in self._blocks.items()} for row in rows]
        objective = stage.objective.reseeded(stage.seed, "derpp")
        return objective.collate(blocks, [self._masks[row] for row in rows])

    def _hidden_states(self, stage: Stage, rows: list[int]) -> Tensor:
        """Return z of stored rows, [rows, S, H]; in float32, so that it does not depend on the number of processes."""
        device = next(stage.model.parameters()).device
        parts = []
        with torch.no_grad(), torch.autocast(device.type, enabled=False), evaluating(stage.model):
            for start in range(0, len(rows), stage.batch_size):
                batch = self._collated(stage, rows[start : start + stage.batch_size])
                inputs = {name: value.to(device) for name, value in stage.objective.inputs(batch).items()}
                parts.append(stage.objective.hidden(stage.model, inputs).to("cpu", torch.float32))
        return torch.cat(parts)


def _column(blocks: Mapping[str, Tensor], key: str) -> Tensor:
    """Return a column of blocks; the labels of plain text are its tokens."""
    return blocks.get(key, blocks["input_ids"]) if key == "labels" else blocks[key]
