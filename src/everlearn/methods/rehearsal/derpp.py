"""DER++: replay text together with its earlier representations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.data.reservoir import Reservoir
from everlearn.errors import MethodError
from everlearn.methods.base import Batch, Cost, Method, MethodConfig, Needs, Setting, Stage, View, register
from everlearn.methods.distillation.comparisons import over_texts
from everlearn.methods.rehearsal.replay import USUAL_BLOCK
from everlearn.methods.state import Fact, OneTensor, Tensors
from everlearn.model.anatomy import kind_of
from everlearn.model.content import counted
from everlearn.model.head import config_of
from everlearn.model.modes import evaluating
from everlearn.model.objectives import IGNORE
from everlearn.ranges import Around, ranges
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs

OWN, ROWS = "derpp/", "rows"
"""Prefix in the batch of the sequences selected for a pass, and the name of their row numbers."""


@register
class DERpp(Method):
    """Dark experience replay++ (arXiv 2004.07211, eq. 6), for pre-training as in arXiv 2302.03241.

    L = L_t + α · E[‖h(x) − z‖²] + β · E[ℓ(x)] over stored sequences x, with z the last hidden state of x, [S, H], after
    the domain of x (averaged over tokens and features), and ℓ the loss of the objective. Both expectations are
    estimated on the same rows, as many as the batch has, sampled uniformly with replacement, in the forward pass of the
    batch. The paper stores outputs of the classifier; those of a language model would need the whole vocabulary for
    each token, so the last hidden state is used instead, as in the DAS authors' code.

    After each domain a uniform sample of its sequences is stored, and z is computed without dropout. A sequence is
    masked once, as in training, and always the same afterwards. Row i of the training of a domain gets the same stored
    row independently of batch sizes and the number of processes.
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
        """Sequences stored of each domain: the DAS paper's 16.4 K tokens are 100 of 164."""
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
        """Require rows of constant length, which an encoder-decoder does not have."""
        super().check(setting)
        if self._active and kind_of(setting.model) == "encoder-decoder":
            raise MethodError(
                "Method 'derpp' does not work with encoder-decoder models: their rows differ in width, and replayed "
                "rows share the batch's forward pass. Use 'replay'."
            )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: the hidden state of each stored sequence, and one more row per row.

        A sequence has a float32 hidden state and up to three 4-byte numbers per token, in rows of the usual length
        (those of the recipe may be shorter). Storing hidden states takes one forward pass over the stored sequences of
        each domain.
        """
        if not self._active:
            return Cost()
        config = config_of(model).get_text_config()
        tokens = self.config.capacity * min(USUAL_BLOCK, getattr(config, "max_position_embeddings", USUAL_BLOCK))
        held = tokens * (4 * config.hidden_size + 12)
        return Cost(memory_bytes=held, disk_bytes=held, passes_per_step=1.0)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Select as many stored sequences as the batch has rows, with their original masks."""
        if not self._active or not self._domains:
            return {}
        length, now = self._blocks["input_ids"].shape[1], batch["input_ids"].shape[1]
        if length != now:
            raise MethodError(
                f"Method 'derpp' remembers sequences of {length} tokens, but those of domain '{stage.domain}' have "
                f"{now}. Set `data.block_size` to {length}."
            )
        rows, device = self._draw(stage, len(batch["labels"])), batch["input_ids"].device
        old = {name: value.to(device) for name, value in self._collated(stage, rows).items()}
        return {ROWS: torch.tensor(rows), **old}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the selected sequences, with labels."""
        old = {name.removeprefix(OWN): value for name, value in batch.items() if name.startswith(OWN)}
        if old.pop(ROWS, None) is None:
            return []
        wanted = old["labels"] if self.config.beta else None
        return [View(stage.objective.inputs(old), labels=wanted, positions=old.get("positions"))]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return α times the squared distance and β times the loss; each is a mean over rows with equal weights."""
        if not outputs.views:
            return {}
        losses = {}
        if self.config.alpha:
            now = outputs.views[0].float()
            stored = self._hidden[batch[OWN + ROWS]].to(device=now.device, dtype=torch.float32)
            read = counted({name.removeprefix(OWN): value for name, value in batch.items() if name.startswith(OWN)})
            losses["distance"] = self.config.alpha * over_texts((now - stored).square().mean(-1), read)
        if (nats := outputs.view_losses[0]) is not None:
            labels = (batch[f"{OWN}labels"] != IGNORE).sum(1)
            losses["replay"] = self.config.beta * (nats.sum(1) / labels.clamp(min=1)).mean()
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
        met = range(stage.row, stage.row + rows)
        return [seed_for(stage.seed, "derpp", stage.index, row) % len(self._domains) for row in met]

    def _collated(self, stage: Stage, rows: list[int]) -> Batch:
        """Collate stored rows, with masks that depend on the sequence only."""
        blocks: list[Block] = [{key: value[row].numpy() for key, value in self._blocks.items()} for row in rows]
        objective = stage.objective.reseeded(stage.seed, "derpp")
        return objective.collate(blocks, [self._masks[row] for row in rows])

    def _hidden_states(self, stage: Stage, rows: list[int]) -> Tensor:
        """Return z of stored rows, [rows, S, H] float32; in lower precision the number of processes would matter."""
        device = next(stage.model.parameters()).device
        parts = []
        with torch.no_grad(), torch.autocast(device.type, enabled=False), evaluating(stage.model):
            for start in range(0, len(rows), stage.batch_size):
                batch = self._collated(stage, rows[start : start + stage.batch_size])
                inputs = {name: value.to(device) for name, value in stage.objective.inputs(batch).items()}
                parts.append(stage.objective.hidden(stage.model, inputs).to("cpu", torch.float32))
        return torch.cat(parts)


def _column(blocks: Mapping[str, Tensor], key: str) -> Tensor:
    """Return a column of blocks; plain text, which has no labels, is learnt everywhere."""
    return blocks.get(key, blocks["input_ids"]) if key == "labels" else blocks[key]
