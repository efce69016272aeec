"""SAPT-LoRA: a low-rank block for each domain, combined by one attention module that all domains share.

Training on a new domain could change the attention weights for inputs of earlier domains. A loss on stored or generated
pseudo-samples of those domains prevents this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.errors import MethodError
from everlearn.methods.base import FORWARD, Cost, Method, MethodConfig, Needs, Setting, register
from everlearn.methods.composition.composed import KEY, Composed, Learnt, Modules, check_rows
from everlearn.methods.composition.low_rank_blocks import LowRankBlocks, places_for_blocks
from everlearn.methods.cost import usual_row
from everlearn.methods.engine.attachment import (
    attach_at_test,
    attached,
    detach,
    fill,
    learnt_by,
    refuse_other_additions,
)
from everlearn.methods.prompts.soft_prompt import at_rate, word_embeddings
from everlearn.methods.stage import Batch, Reading, Stage
from everlearn.methods.state import ByDomain, Kind, Memory, MemoryReader, StatePiece, Tensors
from everlearn.model.anatomy import kind_of
from everlearn.model.content import content_of
from everlearn.model.lora_targets import Targets
from everlearn.model.objectives import IGNORE, Outputs
from everlearn.model.packed_rows import PADDING
from everlearn.model.training_mode import evaluating
from everlearn.predictors.decoding import Ending, continuation, decode
from everlearn.seeding import seed_for

IDS, DOCUMENT, TARGET = "input_ids", "document", "attention"
NUMBERS: dict[str, tuple[Kind, int]] = {IDS: ("int", 2), DOCUMENT: ("int", 2), TARGET: ("float", 1)}
"""Kind of numbers and dimensions of each tensor."""


class PseudoSamples(StatePiece[dict[str, Mapping[str, Tensor]]]):
    """Rows of a domain and their mean attention, saved among its other tensors as "<domain>/<name>".

    Args:
        of: name of the piece with those other tensors, which lists the domains.
    """

    def __init__(self, *, of: str) -> None:
        super().__init__("", dict[str, Mapping[str, Tensor]])
        self.of = of

    def save(self, value: dict[str, Mapping[str, Tensor]], memory: Memory) -> None:
        memory.tensors |= {f"{domain}/{name}": tensor for domain, own in value.items() for name, tensor in own.items()}

    def load(self, reader: MemoryReader) -> dict[str, Mapping[str, Tensor]]:
        """Take the tensors of each domain that has a mean attention."""
        targets = [key for key in reader.tensors if key.rpartition("/")[2] == TARGET]
        domains = [key.rpartition("/")[0] for key in targets]
        return {
            domain: {name: reader.take_tensor(f"{domain}/{name}", *NUMBERS[name]) for name in NUMBERS}
            for domain in domains
        }

    def check(self, values: dict[str, Any], reader: MemoryReader) -> None:
        """Sort by the listed domains, and refuse others."""
        value, listed = values[self.name], values[self.of]
        reader.same_names(value, listed.keys() & value.keys())
        values[self.name] = {domain: value[domain] for domain in listed if domain in value}


SHARED = "projection"
"""Key of the query projection in the memory, besides those of the domains."""


@register
class SAPTLoRA(Method):
    """SAPT-LoRA (arXiv 2401.08295): shared attention over the low-rank blocks of all domains.

        y ← y + s Σ_{i ≤ t} a_i B_i A_i x,   a = softmax(K q / √d),   s = α / r
        q = LayerNorm(SiLU(W_2 W_1 e)),   e the element-wise maximum of a text's word embeddings

    with the same a in every layer (attentive learning and selection). B_t, A_t, the key k_t and the projection W_1, W_2
    are trained; earlier blocks and keys are frozen. The projection would forget which blocks a text of an earlier
    domain needs, so the loss at each step is (attention reflection)

        L_t + align · Σ_{i < t} KL(ā_i ‖ a(x̃)),   x̃ pseudo-samples of domain i

    with ā_i the mean attention of its texts after it was learnt, 0 for later blocks. Pseudo-samples are inputs without
    labels, and only a is computed for them. The model remains the base model, bit for bit.

    In a decoder e of a token is computed over its document up to it: the whole row would leak the tokens that are yet
    to be predicted.
    """

    name = "sapt_lora"
    title = "SAPT-LoRA"
    summary = "a low-rank block for each domain, with a shared attention over them"
    paper = "https://arxiv.org/abs/2401.08295"
    kinds = ("isolation", "replay")
    needs = Needs(old_data=True, extra_parameters=True, peft=False, anatomy=True, memory="parameters")
    freezes = True

    class Config(MethodConfig):
        r: int = Field(8, ge=1)
        """Rank of a block."""
        lora_alpha: float = Field(32, gt=0, allow_inf_nan=False)
        """α: blocks are scaled by α / r, besides their attention."""
        lora_dropout: float = Field(0.0, ge=0, lt=1)
        """Dropout on a block's input."""
        target_modules: Targets = "query-value"
        """Layers that get blocks: queries and values (as published), all attention projections, or those and the
        feed-forward ones."""
        bottleneck: int = Field(100, ge=1)
        """Width between W_1 and W_2."""
        align: float = Field(0.1, ge=0, allow_inf_nan=False)
        """Weight of the divergence; 0 stores no pseudo-samples."""
        pseudo: Literal["stored", "generated"] = "stored"
        """Pseudo-samples: a sample of each domain's own rows, which stores old text; or rows that a decoder generates
        when the domain ends. The authors train a second model that generates them."""
        samples: int = Field(100, ge=1)
        """Pseudo-samples stored for each domain, and rows that its mean attention is computed on. The authors use 2 %
        of the training set, 5 to 280."""
        pseudo_tokens: int = Field(64, ge=1)
        """Tokens of each generated row."""
        top_k: int = Field(50, ge=1)
        """Number of most likely tokens to sample from at each position of a generated row."""
        pseudo_batch: int = Field(16, ge=1)
        """Pseudo-samples of each earlier domain per step."""
        learning_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
        """Learning rate of all trained parameters, with the schedule of the run; by default `train.learning_rate`. The
        authors use 3e-4."""
        freeze_base_at_end_task: bool = False
        """Fine-tune only the classification head: blocks, attention and model are frozen."""

    config: Config
    _learnt = ByDomain()
    _pseudo = PseudoSamples(of="_learnt")
    _projection = Tensors(f"{SHARED}/", beside="_learnt")
    """Block, key and pseudo-samples of each domain, and the shared projection."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        stored = self.config.pseudo == "stored"
        self._generates = self.config.align > 0 and not stored
        self.needs = replace(
            type(self).needs, old_data=self.config.align > 0 and stored, importance_pass=self._generates
        )

    def check(self, setting: Setting) -> None:
        super().check(setting)
        check_rows(self, setting)
        refuse_other_additions(self, setting)
        places_for_blocks(setting.model, self.config.target_modules)
        if self._generates and kind_of(setting.model) != "decoder":
            raise MethodError(
                f"Method '{self.label}', option 'pseudo': 'generated' needs a decoder, since "
                f"'{type(setting.model).__name__}' cannot generate its own inputs. Set `pseudo: stored`."
            )

    def adds_low_rank(self, model: nn.Module) -> bool:
        return True

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: a block and key for each domain, the projection, and pseudo-samples.

        A pseudo-sample has two 4-byte numbers per token (id and document), in rows of the usual length; those of the
        recipe may be shorter. Generating one counts as a forward pass over a row, however short it is.
        """
        with torch.device("meta"):
            built = self._build(model, [])
        shared = sum(parameter.numel() for parameter in built.project.parameters())
        added = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
        kept = 8 * self.config.samples * usual_row(model.config) if self.config.align > 0 else 0
        return Cost(
            memory_bytes=8 * added + kept,
            disk_bytes=4 * shared,
            disk_bytes_per_domain=4 * (added - shared) + kept,
            parameters=added,
            passes_elsewhere=math.ceil(FORWARD * self.config.samples) if self._generates else 0,
        )

    def attach(self, stage: Stage) -> None:
        """Attach a new block and key beside the earlier ones; the projection continues; everything else is frozen."""
        built = self._build(stage.model, list(self._learnt.values()))
        expected = built.project.state_dict()
        if self._projection and {n: v.shape for n, v in expected.items()} != {
            n: v.shape for n, v in self._projection.items()
        }:
            raise MethodError(
                f"Method '{self.label}' remembers a projection that does not fit this model. Its memory belongs to "
                "another model or other options of the method."
            )
        built.continue_from(self._projection)
        built.attach(stage.model, self.name, freeze=True)

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return at_rate(groups, self.config.learning_rate)

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Set the pseudo-samples of the next pass, equally many of each earlier domain; the same for a whole step."""
        device = batch["labels"].device
        attached(stage.model, self.name).lessons = [
            {name: value.to(device) for name, value in self._lesson(stage, domain).items()} for domain in self._pseudo
        ]
        return {}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return align · Σ_i KL(ā_i ‖ a(x̃))."""
        divergence = attached(stage.model, self.name).divergence
        return {} if divergence is None else {"align": self.config.align * divergence}

    def end_domain(self, stage: Stage) -> None:
        """Compute the mean attention of the domain, and store its pseudo-samples."""
        if not self.config.align:
            return
        rows = list(islice(stage.source.once(seed_for(stage.seed, self.name, stage.index)), self.config.samples))
        own = _as_tensors(rows, stage.objective.isolate)
        attention: SharedAttention = attached(stage.model, self.name)
        with torch.no_grad():
            embed: Any = stage.model.get_input_embeddings()  # type: ignore[operator]
            device = embed.weight.device
            seen = attention.attend(embed, own[IDS].to(device), own[DOCUMENT].to(device))
        kept = own if self.config.pseudo == "stored" else self._generate(stage, len(rows))
        self._pseudo[stage.domain] = kept | {TARGET: seen.mean(0).cpu()}

    def detach(self, stage: Stage) -> None:
        attention: SharedAttention = detach(stage.model, self.name)
        self._learnt[stage.domain] = learnt_by(attention.own())
        self._projection = {
            name: value.detach().cpu().clone() for name, value in attention.project.state_dict().items()
        }

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Attach blocks and attention; fine-tuning may change the last block, its key and the projection."""
        if not self._learnt:
            return model
        *earlier, last = self._learnt.values()
        built = self._build(model, earlier)
        fill(built.own(), last, self)
        built.continue_from(self._projection)
        return attach_at_test(built, model, self.name, freeze=self.config.freeze_base_at_end_task)

    def _build(self, model: nn.Module, earlier: list[Learnt]) -> SharedAttention:
        options = self.config
        scale = options.lora_alpha / options.r
        blocks = LowRankBlocks(model, options.target_modules, options.r, scale, options.lora_dropout, earlier)
        key = torch.empty(word_embeddings(model).shape[1]).uniform_(-1, 1)
        return SharedAttention(blocks, key, [one[KEY] for one in earlier], options.bottleneck)

    def _lesson(self, stage: Stage, domain: str) -> dict[str, Tensor]:
        """Return some pseudo-samples of a domain, drawn anew for each step, and its mean attention."""
        kept = self._pseudo[domain]
        generator = torch.Generator().manual_seed(seed_for(stage.seed, self.name, stage.index, stage.step, domain))
        rows = torch.randint(len(kept[IDS]), (self.config.pseudo_batch,), generator=generator)
        return {IDS: kept[IDS][rows], DOCUMENT: kept[DOCUMENT][rows], TARGET: kept[TARGET]}

    def _generate(self, stage: Stage, count: int) -> dict[str, Tensor]:
        """Generate rows with the model and its attached modules."""
        tokenizer: Any = stage.tokenizer
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        device = next(stage.model.parameters()).device
        rows: list[list[int]] = []
        draws = torch.rand(count, self.config.pseudo_tokens, dtype=torch.float64)
        with torch.no_grad(), evaluating(stage.model):
            for part in draws.split(stage.batch_size):
                ids = torch.full((len(part), 1), start, device=device)
                steps = continuation(stage.model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
                ending = Ending(self.config.pseudo_tokens, temperature=1, draws=part, top_k=self.config.top_k)
                rows += decode(steps, ending)
        ids = torch.tensor(rows, dtype=torch.int32)
        return {IDS: ids, DOCUMENT: torch.zeros_like(ids)}


class SharedAttention(Composed):
    """a = softmax(K q / √d), q a projection of the maximum over word embeddings.

    Attributes:
        lessons: pseudo-samples of each earlier domain and its mean attention, for the next pass.
        divergence: Σ KL(ā_i ‖ a) of the last pass; None if it had no pseudo-samples.
    """

    def __init__(self, modules: Modules, key: Tensor, earlier: list[Tensor], bottleneck: int) -> None:
        super().__init__(modules, key, earlier)
        self.project = nn.Sequential(
            nn.Linear(len(key), bottleneck, bias=False),
            nn.Linear(bottleneck, len(key), bias=False),
            nn.SiLU(),
            nn.LayerNorm(len(key)),
        )
        self.lessons: list[dict[str, Tensor]] = []
        self.divergence: Tensor | None = None

    def query(self, base: nn.Module, inputs: dict[str, Any], document: Tensor) -> Tensor:
        embed: Any = base.get_input_embeddings()  # type: ignore[operator]
        self.compute_divergence(embed)
        words = embed(inputs["input_ids"]) if inputs.get("inputs_embeds") is None else inputs["inputs_embeds"]
        return self.projected(words, document)

    def projected(self, words: Tensor, document: Tensor) -> Tensor:
        """Return q, [B, 1 or S, E], for word embeddings [B, S, E]."""
        queries: Tensor = self.project(self.pooled(words, document, "max").to(self.key.dtype))
        return queries

    def weigh(self, queries: Tensor) -> Tensor:
        return (queries @ self.keys.T / self.keys.shape[1] ** 0.5).softmax(-1)

    def attend(self, embed: nn.Module, ids: Tensor, document: Tensor) -> Tensor:
        """Return a for every query of some rows, [N, t].

        Args:
            embed: word embeddings.
            ids: [B, S].
            document: document number of each token, [B, S].
        """
        seen = self.weigh(self.projected(embed(ids), document))
        return seen[document != PADDING] if self.token_by_token else seen[:, 0]

    def compute_divergence(self, embed: nn.Module) -> None:
        """Compute Σ_i KL(ā_i ‖ a(x̃)), averaged over the queries of a domain.

        It runs inside the forward pass, where FSDP2 has gathered the parameters.
        """
        lessons, self.lessons, self.divergence = self.lessons, [], None
        for lesson in lessons:
            target = lesson[TARGET]
            seen = self.attend(embed, lesson[IDS], lesson[DOCUMENT])[:, : len(target)]
            mean = (torch.xlogy(target, target) - target * seen.log()).sum(1).mean()
            self.divergence = mean if self.divergence is None else self.divergence + mean

    def continue_from(self, projection: Learnt) -> None:
        """Load the projection of the previous domain."""
        if projection:
            self.project.load_state_dict(dict(projection))


def _as_tensors(rows: list[Block], isolate: bool) -> dict[str, Tensor]:
    """Return rows of inputs, [N, S] int32, and the document number of each token."""
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int32)
    document = torch.full_like(ids, PADDING)
    for number, row in enumerate(rows):
        row_ids, length = torch.from_numpy(row["input_ids"]), len(row["input_ids"])
        packed = "segments" in row
        read = content_of([row], IGNORE)[0] if packed else torch.ones(length, dtype=torch.bool)
        own = torch.from_numpy(row["segments"]) if packed and isolate else torch.zeros_like(row_ids)
        ids[number, :length] = row_ids.masked_fill(~read, 0)
        document[number, :length] = own.masked_fill(~read, PADDING)
    return {IDS: ids, DOCUMENT: document}
