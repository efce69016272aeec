"""Replay: mix blocks of earlier domains, or of a general corpus, into each domain's training."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from everlearn.data.blocks import BlockSource, tokens_in
from everlearn.data.mixing import Mixture
from everlearn.data.reservoir import Reservoir
from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Memory, Method, MethodConfig, Needs, Setting, Stage, register
from everlearn.seeding import seed_for

_LOOKED_AT = 64
"""Rows from which the mean length of a domain's rows is taken."""
USUAL_BLOCK = 512
"""Tokens in a block when a recipe does not say otherwise and the model takes that many."""


@register
class Replay(Method):
    """Experience replay (arXiv 1811.11682), as continued pre-training uses it (arXiv 2403.08763).

    Of the tokens of each domain's training, a share r comes from a reservoir of earlier domains, from the general
    corpus, or from both; the share is exact to one block at every moment. The reservoir is a uniform sample of all
    blocks of all earlier domains (Vitter's algorithm R), whatever their number and sizes.

    With ``each`` = q the reservoir is int(q · n) of the n rows of every earlier domain instead, drawn without
    replacement, and a pass has all of them beside the domain's own rows: FTReplay and LoRAReplay of arXiv 2406.17245.
    """

    name = "replay"
    title = "Replay"
    paper = "https://arxiv.org/abs/1811.11682"
    needs = Needs(old_data=True)
    identity: ClassVar[dict[str, Any] | None] = {"share": 0}

    class Config(MethodConfig):
        """Options of replay."""

        share: float = Field(0.1, ge=0, lt=1)
        """Share of the training tokens that is old text; 0 is plain training."""
        each: float | None = Field(None, gt=0, le=1)
        """Keep this share of the rows of each earlier domain, and learn all of them in every pass, instead of `share`
        (the MIGU paper: 0.02; how old and new rows are mixed it does not say: here evenly)."""
        source: Literal["earlier", "general", "both"] = "earlier"
        """Where old text comes from: earlier domains of the stream (nothing to replay in the first one), the recipe's
        general corpus, or half of the share from each."""
        capacity: int = Field(2048, ge=1)
        """Blocks kept of all earlier domains together; they are saved with every stage."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, old_data=self._keeps)
        self._reservoir: Reservoir | None = None

    @property
    def _keeps(self) -> bool:
        return (self.config.share > 0 or self.config.each is not None) and self.config.source != "general"

    def check(self, setting: Setting) -> None:
        """A general corpus must exist where it is asked for."""
        super().check(setting)
        if self.config.each is not None and self.config.source != "earlier":
            raise MethodError(
                f"Method 'replay', option 'source': '{self.config.source}' has no part in `each`, which is a share of "
                "earlier domains. Set `source: earlier`, or remove `each`."
            )
        if self.config.share > 0 and self.config.source != "earlier" and not setting.has_general:
            raise MethodError(
                f"Method 'replay', option 'source': '{self.config.source}' mixes in the general corpus, but the recipe "
                "names none. Add `general`, or set `source: earlier`."
            )

    def cost(self, model: nn.Module) -> Cost:
        """The reservoir, and once more as the source that is mixed in: two 4-byte numbers a token, for blocks of the
        usual size (the recipe's may be shorter)."""
        if not self._keeps:
            return Cost()
        longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or USUAL_BLOCK
        held = self.config.capacity * min(USUAL_BLOCK, longest) * 8
        return Cost(memory_bytes=2 * held, disk_bytes=held)

    def training_data(self, source: BlockSource, stage: Stage) -> BlockSource:
        """The domain with old text mixed in; the mixture's ``asked`` and ``realised`` shares go to the log."""
        old: list[tuple[str, BlockSource]] = []
        seed = seed_for(stage.seed, "replay", stage.index)
        if self.config.each is not None:
            return self._beside(source, stage, seed)
        if self._keeps and self._reservoir is not None and len(self._reservoir):
            old.append(("earlier domains", self._reservoir.source(seed)))
        if self.config.share > 0 and self.config.source != "earlier" and stage.general is not None:
            old.append(("general", stage.general.fresh(seed)))
        if not old:
            return source
        each = self.config.share / len(old)
        parts = [(stage.domain, source, 1 - self.config.share), *((name, part, each) for name, part in old)]
        return Mixture(parts, name=f"{stage.domain} with replay")

    def _beside(self, source: BlockSource, stage: Stage, seed: int) -> BlockSource:
        """A pass over the domain's own rows and every kept one, evenly mixed."""
        if not self._reservoir:
            return source
        kept = sum(map(tokens_in, self._reservoir.blocks))
        some = [tokens_in(block) for block in islice(source.fresh(seed), _LOOKED_AT)]
        rows = stage.steps * stage.rows_per_step if source.size is None else source.size
        own = rows * sum(some) / len(some)
        parts = [(stage.domain, source, own), ("earlier domains", self._reservoir.source(seed), float(kept))]
        return Mixture(parts, name=f"{stage.domain} with replay", size=rows + len(self._reservoir))

    def end_domain(self, stage: Stage) -> None:
        """Let every block of the domain go by the reservoir; of a stream one pass, or as many as the stage had rows."""
        if not self._keeps:
            return
        if self._reservoir is None:
            self._reservoir = Reservoir(self.config.capacity, stage.seed)
        blocks = stage.source.once(seed_for(stage.seed, "reservoir", stage.index))
        count = stage.source.size if stage.source.size is not None else stage.steps * stage.rows_per_step
        chosen = islice(blocks, count)
        if self.config.each is not None:  # rows come in a drawn order: the first of them are a sample
            chosen = islice(chosen, int(self.config.each * count))
        self._reservoir.extend(chosen, stage.domain)

    def memory(self) -> Memory:
        """The kept blocks, the domain of each, and how many went by."""
        return Memory(*self._reservoir.to_memory()) if self._reservoir is not None else Memory()

    def load_memory(self, memory: Memory) -> None:
        """Take the reservoir back."""
        self._reservoir = Reservoir.from_memory(memory.tensors, memory.facts)
