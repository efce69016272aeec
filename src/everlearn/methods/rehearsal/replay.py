"""Replay: mix rows of earlier domains, of a general corpus, or generated ones into the training of each domain."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import nn

from everlearn.data.blocks import Block, BlockSource, PackedBlocks
from everlearn.data.mixing import Anneal, Concatenation, Mixture
from everlearn.data.reservoir import Reservoir
from everlearn.errors import MethodError
from everlearn.methods.base import (
    FORWARD,
    Cost,
    Method,
    MethodConfig,
    Needs,
    Setting,
    Stage,
    Variant,
    register,
)
from everlearn.methods.rehearsal.generated import generated_rows
from everlearn.methods.state import TextRows
from everlearn.model.anatomy import kind_of
from everlearn.options import Options
from everlearn.ranges import Between, ranges
from everlearn.seeding import seed_for

USUAL_BLOCK = 512
"""Default number of tokens per block, if the model supports that many."""
USUAL_LOOKS = 7
"""Forward passes of a sweep over a row if 15 % of it are masked at a time."""


class AnnealedShare(Options):
    """A share that changes along each domain."""

    start: float = Field(ge=0, lt=1)
    """Share at the first row of a domain."""
    end: float = Field(ge=0, lt=1)
    """Share at the last row."""


@register
class Replay(Method):
    """Experience replay (arXiv 1811.11682), as used in continued pre-training (arXiv 2403.08763).

    A share r of the tokens of each domain's training comes from a reservoir of earlier domains, from the general
    corpus, or from both; the share is exact to one block at every moment. It may change along a domain, in a straight
    line: then the tokens are exact that its shares so far add up to. The reservoir is a uniform sample of all
    blocks of all earlier domains (Vitter's algorithm R), whatever their number and sizes.

    With `source: generated` nothing is stored: before each domain, including the first, the model generates rows with
    the weights at its beginning, and these are replayed (arXiv 2605.26097). A causal model samples texts from their
    beginning at temperature 1. A masked model defines no distribution of texts; its rows are filled by sampling masked
    positions in turn, which approximates one if its conditional distributions are consistent.

    With `sample` q it is the replay of continual fine-tuning (LoRAReplay and FTReplay of arXiv 2406.17245): of the n
    rows of each domain int(q · n) are stored, sampled without replacement, and the training set of a domain consists of
    its own rows and all stored ones of every earlier domain, each once, shuffled together.
    """

    name = "replay"
    title = "Replay"
    summary = "mixes old text in, exact to the token share"
    paper = "https://arxiv.org/abs/1811.11682"
    needs = Needs(old_data=True)
    identity: ClassVar[dict[str, Any] | None] = {"share": 0}
    rules_of_thumb: ClassVar[tuple[str, ...]] = (
        "published shares of old text are 5 % where the new text is much like it (other English web text) and 25 % "
        "where it differs (German after English); 1 % helps already, 50 % cost learning (arXiv 2403.08763, continued "
        "pre-training of 0.4 billion parameters on hundreds of billions of tokens).",
        "the largest share of new text at which general loss does not rise was predicted as 30 % to 48 % for models of "
        "0.5 to 3 billion parameters, which leaves 52 % to 70 % of old text; it grows with the model (arXiv "
        "2407.17467). Short runs of your own tell more: `everlearn tune` tries shares.",
    )
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            "replay_sample",
            "Replay (2 % of each domain)",
            "2 % of the rows of every earlier domain beside a domain's own rows: with `lora` it is LoRAReplay, alone "
            "FTReplay.",
            {"sample": 0.02},
            paper="https://arxiv.org/abs/2406.17245",
        ),
        Variant(
            "continual_t0",
            "ContinualT0",
            "1 % of the examples of every earlier task beside a task's own, for streams of prompts and answers.",
            {"sample": 0.01},
            paper="https://arxiv.org/abs/2205.12393",
        ),
        Variant(
            "replay_generated",
            "Replay (self-generated)",
            "A tenth of the tokens is what the model itself writes before each domain; no old text is kept or read.",
            {"source": "generated"},
            paper="https://arxiv.org/abs/2605.26097",
        ),
    )

    class Config(MethodConfig):
        """How much old text is replayed, and where it comes from."""

        share: Annotated[float, Field(ge=0, lt=1)] | AnnealedShare = 0.1
        """Share of the training tokens that is old text; 0 is plain training. `{start: 0.3, end: 0.05}` changes it in a
        straight line from the first row of each domain to the last."""
        source: Literal["earlier", "general", "both", "generated"] = "earlier"
        """Source of old text: earlier domains of the stream (nothing to replay in the first one), the recipe's general
        corpus, half of the share from each, or the model, which generates it before each domain."""
        capacity: int = Field(2048, ge=1)
        """Blocks stored of all earlier domains together, saved with every stage. With `generated`, the largest number
        of blocks generated before each domain; no more than its training needs."""
        sweeps: int = Field(4, ge=1)
        """For generation by a masked model: how often each position of a row is sampled; each sweep takes as many
        forward passes as masking at `data.mask_probability` needs to cover a row, 7 at 0.15."""
        sample: float | None = Field(None, gt=0, le=1)
        """q: int(q · n) of the n rows of every earlier domain are added to a domain's rows, instead of a share of the
        tokens."""

        @model_validator(mode="after")
        def _one_way(self) -> Self:
            # A resolved recipe lists every option, so an option with its default value counts as not set.
            for name in ("share", "source", "sweeps"):
                value = getattr(self, name)
                if self.sample is not None and value != type(self).model_fields[name].default:
                    raise ValueError(
                        f"option '{name}': {value} does not go with `sample: {self.sample}`, which adds rows of "
                        "earlier domains. Set one of the two"
                    )
            if self.source != "generated" and self.sweeps != type(self).model_fields["sweeps"].default:
                raise ValueError(
                    f"option 'sweeps': {self.sweeps} is of a model that writes, and `source` is '{self.source}'. "
                    "Remove it, or set `source: generated`"
                )
            return self

    search = ranges(share=Between(0.02, 0.3, log=True))
    config: Config
    _reservoir = TextRows[Reservoir | None]("", lambda: None)
    """The kept rows, the domain of each, and how many went by."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, old_data=self._keeps)
        if self._writes:
            self.needs = replace(
                self.needs, importance_pass=True, predictions=True, objectives=frozenset({"causal", "masked"})
            )
        self._written: list[Block] = []

    @property
    def _shares(self) -> tuple[float, float]:
        """Share at the beginning and at the end of a domain."""
        share = self.config.share
        return (share.start, share.end) if isinstance(share, AnnealedShare) else (share, share)

    @property
    def _keeps(self) -> bool:
        return any(self._shares) and self.config.source in ("earlier", "both")

    @property
    def _reads_general(self) -> bool:
        return any(self._shares) and self.config.source in ("general", "both")

    @property
    def _writes(self) -> bool:
        return any(self._shares) and self.config.source == "generated"

    def check(self, setting: Setting) -> None:
        """Require a general corpus, or a model that can generate text, if the options need it."""
        if self._writes:
            self._check_writing(setting)
        super().check(setting)
        if isinstance(self.config.share, AnnealedShare) and not setting.block_size:
            raise MethodError(
                f"Method '{self.label}', option 'share': a share that changes along a domain needs rows in the order "
                "in which they are learnt, and here they are shuffled later. Set one share, or use `everlearn run`."
            )
        if self._reads_general and not setting.has_general:
            raise MethodError(
                f"Method 'replay', option 'source': '{self.config.source}' mixes in the general corpus, but the recipe "
                "names none. Add `general`, or set `source: earlier`."
            )

    def _check_writing(self, setting: Setting) -> None:
        said = f"Method '{self.label}', option 'source': 'generated' has"
        if setting.objective.name not in self.needs.objectives:
            raise MethodError(
                f"{said} the model write plain text, and objective '{setting.objective.name}' learns prompts with "
                "answers. Set `source: earlier`, or take method 'lfpt5', which learns to write them."
            )
        if not setting.block_size:
            raise MethodError(f"{said} the model write rows as a run packs them. Use it with `everlearn run`.")
        for other in setting.methods:
            if not other.tested_as_saved:
                raise MethodError(
                    f"{said} the plain model write, but with method '{other.label}' a text is read with more than "
                    "that. Set `source: earlier`, or remove one of them."
                )

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: the reservoir, counted twice as it is also a source, or the generated blocks.

        Blocks of the usual size have two 4-byte numbers per token (those of the recipe may be shorter). Generating a
        block takes as much as a forward pass over it, with the cache of a decoder, or one pass for each step of a
        masked model.
        """
        if not (self._keeps or self._writes):
            return Cost()
        longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or USUAL_BLOCK
        held = self.config.capacity * min(USUAL_BLOCK, longest) * 8
        if self._writes:
            looks = self.config.sweeps * USUAL_LOOKS if kind_of(model) == "encoder" else 1
            passes = math.ceil(self.config.capacity * looks * FORWARD)
            return Cost(memory_bytes=2 * held, passes_elsewhere=passes, at_most=True)
        return Cost(memory_bytes=2 * held, disk_bytes=held)

    def begin_domain(self, stage: Stage) -> None:
        """Generate the rows to replay, if configured; a resumed stage reads the existing ones."""
        if not self._writes:
            return
        room = math.ceil(sum(self._shares) / 2 * stage.steps * stage.rows_per_step)
        self._written, texts = generated_rows(stage, max(1, min(self.config.capacity, room)), self.config.sweeps)
        stage.notes.append(
            f"Method '{self.label}': before '{stage.domain}' the model wrote {len(self._written):,} rows in "
            f"{texts:,} texts; in its training there is room for {room:,}."
        )

    def training_data(self, source: BlockSource, stage: Stage) -> BlockSource:
        """Return the domain with old text mixed in; the ``asked`` and ``realised`` shares of the mixture are logged."""
        if self.config.sample is not None:
            return self._with_sample(source, stage, self.config.sample)
        old: list[tuple[str, BlockSource]] = []
        seed = seed_for(stage.seed, "replay", stage.index)
        if self._keeps and self._reservoir is not None and len(self._reservoir):
            old.append(("earlier domains", self._reservoir.source(seed)))
        if self._reads_general and stage.general is not None:
            old.append(("general", stage.general.fresh(seed)))
        if self._written:
            old.append(("generated", PackedBlocks.from_blocks(self._written, seed, "generated")))
            self._written = []
        if not old:
            return source
        start, end = (
            {stage.domain: 1 - share, **{name: share / len(old) for name, _ in old}} for share in self._shares
        )
        parts = [(name, part, start[name]) for name, part in ((stage.domain, source), *old)]
        anneal = None if start == end else Anneal(end, stage.steps * stage.rows_per_step)
        return Mixture(parts, name=f"{stage.domain} with replay", anneal=anneal)

    def _with_sample(self, source: BlockSource, stage: Stage, share: float) -> BlockSource:
        """Return the rows of the domain and the stored ones of all earlier domains, if its own will fit too."""
        kept, rows = self._reservoir or (), _rows(stage)
        if len(kept) + int(share * rows) > self.config.capacity:
            raise MethodError(
                f"Method '{self.label}', option 'capacity': {self.config.capacity} rows are fewer than the {len(kept)} "
                f"that are kept and {int(share * rows)} of domain '{stage.domain}'. Raise it, or lower `sample`."
            )
        if self._reservoir is None or not len(kept):
            return source
        seed = seed_for(stage.seed, "replay", stage.index)
        parts = [(stage.domain, source, rows), ("earlier domains", self._reservoir.source(seed), len(kept))]
        return Concatenation(parts, seed, name=f"{stage.domain} with replay")

    def end_domain(self, stage: Stage) -> None:
        """Offer every block of the domain to the reservoir; for a stream one pass, or as many as the stage had rows."""
        if not self._keeps:
            return
        if self._reservoir is None:
            self._reservoir = Reservoir(self.config.capacity, stage.seed)
        blocks = islice(stage.source.once(seed_for(stage.seed, "reservoir", stage.index)), _rows(stage))
        if self.config.sample is None:
            self._reservoir.extend(blocks, stage.domain)
        elif wanted := int(self.config.sample * _rows(stage)):
            drawn = Reservoir(wanted, seed_for(stage.seed, "sample", stage.index))
            drawn.extend(blocks, stage.domain)
            self._reservoir.extend(drawn.blocks, stage.domain)  # the capacity suffices for all of them
        else:
            stage.notes.append(
                f"Method '{self.label}' keeps nothing of '{stage.domain}': `sample: {self.config.sample:g}` of its "
                f"{_rows(stage):,} rows is less than one."
            )


def _rows(stage: Stage) -> int:
    """Return the number of rows of a domain; for a stream the number that the stage trains on."""
    return stage.source.size if stage.source.size is not None else stage.steps * stage.rows_per_step
