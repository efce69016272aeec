"""The interface of a method: a frozen config, one class, hooks that do nothing unless overridden.

A method protects old knowledge or moves it to new domains. It never calls ``backward``, ``step`` or ``zero_grad``,
never prints and never sees the trainer. It reads a :class:`Stage`, hands back losses, masks, data or a model, and
keeps what it must carry to the next domain in its :class:`Memory`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from everlearn.data.blocks import Block, BlockSource
from everlearn.errors import MethodError, did_you_mean
from everlearn.evaluation.predictor import Predictor
from everlearn.importance.scores import Normalisation
from everlearn.methods.cost import FORWARD as FORWARD
from everlearn.methods.cost import Cost as Cost
from everlearn.methods.gradients import Gradients
from everlearn.methods.stage import Batch as Batch
from everlearn.methods.stage import Reading as Reading
from everlearn.methods.stage import Stage as Stage
from everlearn.model.objectives import Objective, Outputs, View
from everlearn.model.peft_adapter import PeftAdapter
from everlearn.options import Options, key_of, wrong_value

ApplyTo = Literal["update", "gradient"]


REVEALS = {
    "nothing": "Its memory holds nothing of the text.",
    "statistics": "Its memory holds numbers about units or weights, from which no text can be read.",
    "parameters": "Its memory holds parameters trained on each domain, which know of its text what a model knows.",
    "text": "Its memory holds training text of earlier domains as tokens: whoever has it can read them.",
}
"""What a memory reveals, by what it keeps (:attr:`Needs.keeps`)."""


KINDS = {
    "none": "Plain training.",
    "replay": "Replay: old text is trained on again, kept or generated.",
    "isolation": "Parameter isolation: a domain has parameters of its own, or those that it uses are held back.",
    "ensembling": "Ensembling: several models, or branches of one, answer together.",
    "data-focused": "Regularisation by data: what is made of a text stays near what an earlier model made of it.",
    "prior-focused": "Regularisation by a prior: the weights stay near those of earlier domains.",
    "trick": "Fine-tuning trick: other rates, schedules or parts that move; nothing of earlier domains is kept.",
}
"""The kinds of remedy that surveys of forgetting tell apart; a method may be of several (:attr:`Method.kinds`)."""


class MethodConfig(Options):
    """Base of every method's options: unknown keys are refused, values are checked, nothing changes afterwards."""


@dataclass(frozen=True)
class Needs:
    """What a method asks of its user; the capability table and ``everlearn plan`` are made from this."""

    old_data: bool = False
    """Keeps text of earlier domains."""
    domain_id_training: bool = False
    """Must be told where one domain ends and the next begins, beyond the stream's own stage boundaries."""
    domain_id_test: bool = False
    """Needs to know at test which domain an input belongs to."""
    extra_parameters: bool = False
    """Adds trainable parameters to the model."""
    importance_pass: bool = False
    """Runs extra passes over a part of the data before or after a domain."""
    objectives: frozenset[str] = frozenset({"masked", "causal", "text-to-text"})
    """Names of the objectives it works with."""
    peft: bool = True
    """Works on a model that carries PEFT adapters."""
    anatomy: bool = False
    """Must know where the heads and neurons are, so works on registered architectures only."""
    earlier_models: bool = False
    """Reads the models of all earlier domains (``checkpoints``), not only the base model and the last."""
    base_model: bool = False
    """Reads the base model (``checkpoints[0]``) in every domain, so nobody can learn on without it."""
    memory: Literal["nothing", "statistics", "parameters"] = "nothing"
    """What its memory holds beside old text: numbers about units or weights, or trained parameters of each domain."""

    @property
    def keeps(self) -> str:
        """What whoever has the memory has: a key of :data:`REVEALS`."""
        return "text" if self.old_data else self.memory


@dataclass
class Memory:
    """What a method carries from one stage to the next: named tensors and JSON facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tensors or self.facts)


Factor = Tensor | Callable[[], Tensor]
"""A tensor in [0, 1] that broadcasts to a whole parameter. A function is asked when the optimizer has stepped: for
update masks that depend on its new state."""


@dataclass(frozen=True)
class Mask:
    """Factors for parameters: 1 leaves a gradient or an update as it is, 0 removes it.

    Attributes:
        factors: parameter name (as in ``model.named_parameters()``) to its factor.
            A method whose mask is constant over a stage returns the same object each time.
        apply_to: ``update`` scales what the optimizer changes, weight decay and momentum included; ``gradient``
            scales what the optimizer reads, which Adam's normalisation mostly undoes.
    """

    factors: Mapping[str, Factor]
    apply_to: ApplyTo = "update"


@dataclass(frozen=True)
class UnitImportance:
    """How much units matter, as a method remembers it (:meth:`Method.importance`).

    Attributes:
        general: for general knowledge, before the first domain: site name → [units] in [0, 1); may be empty.
        accumulated: what counts after the domains learnt so far.
        normalise: how raw scores were brought to [0, 1).
        grows: whether maps accumulate over the domains. If not, a domain's map is what held while it was learnt.
    """

    general: Mapping[str, Tensor]
    accumulated: Mapping[str, Tensor]
    normalise: Normalisation = "tanh_abs"
    grows: bool = True


Transform = Callable[[Tensor], Tensor]
"""From a parameter to what the forward pass reads instead of it, of the same shape."""


@dataclass(frozen=True)
class Variant:
    """A published setting of a method that has a name of its own: other defaults, nothing else.

    Attributes:
        name: the word in recipes and tables (snake_case).
        title: its name as the paper writes it.
        description: what it is, a sentence or two.
        options: what differs from the method's defaults; a recipe may change options further.
        paper: URL; the method's own when left out.
    """

    name: str
    title: str
    description: str
    options: Mapping[str, Any]
    paper: str | None = None


@dataclass(frozen=True)
class Setting:
    """Where a method is about to work, for :meth:`Method.check`: known before anything is trained."""

    model: nn.Module
    objective: Objective
    methods: tuple[Method, ...]
    has_peft: bool
    has_general: bool
    """A general corpus is named in the recipe."""
    block_size: int
    """Tokens in a row."""
    domains: tuple[str, ...] = ()
    """Names of the stream's domains, as far as they are known."""


class Method:
    """Base of every method. Subclass, set the class attributes, override the hooks you need, decorate with
    ``@register``.

    Class attributes:
        name: the word in recipes and tables (snake_case).
        title: its name as the paper writes it.
        paper: URL of the paper, or "" for plain training.
        kinds: keys of :data:`KINDS`; those of its family (``KINDS`` of the folder) where a class does not say.
        needs: what it asks of its user. Where options decide that, ``__init__`` sets it for them.
        identity: options that turn it into plain training, bit for bit (used by the conformance tests); None when
            the method changes the model or data itself and has no such setting.
        adds_peft: whether ``attach`` puts PEFT adapters into the model; a setting with such a method has
            ``has_peft``.
        grows: number of the first stage into which ``attach`` may put a larger model; 0 for none. Where options
            decide that, ``__init__`` sets it.
        freezes: whether nothing but what it adds is trained. Where options decide that, ``__init__`` sets it.
        goes_back: whether a domain may begin with another model than the last one. Where options decide that,
            ``__init__`` sets it.
        merges: whether a stage keeps its whole model; without, its :meth:`peft_adapter` alone. Where options decide
            that, ``__init__`` sets it.
        importance_samples: whether its option `samples` counts rows that importance is measured on, which a grid sets
            for all such methods at once, and not rows that it keeps, writes or learns from.
        idle: exclusive hooks that its options leave unused, so that another method of a list may use them.
        in_das_paper: its name in the DAS paper, without spaces and hyphens; set only where it differs from `name`.
        variants: published settings with names of their own; an object made by such a name carries the variant's
            title and paper, and the name as its ``label``.
    """

    name: ClassVar[str]
    title: str
    paper: str
    kinds: tuple[str, ...] = ()
    needs: Needs = Needs()
    variants: ClassVar[tuple[Variant, ...]] = ()
    identity: ClassVar[dict[str, Any] | None] = None
    adds_peft: ClassVar[bool] = False
    grows: int = 0
    freezes: bool = False
    goes_back: bool = False
    merges: bool = True
    importance_samples: ClassVar[bool] = False
    idle: frozenset[str] = frozenset()
    in_das_paper: ClassVar[tuple[str, ...]] = ()

    class Config(MethodConfig):
        """Options of the method."""

    config: Any

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        """Take a ready config, or the options by name.

        Raises:
            MethodError: an option is unknown or its value is not allowed; the sentence names the key.
        """
        self.config = configured(self.name, self.Config, options) if config is None else config
        self.label = self.name

    def check(self, setting: Setting) -> None:
        """Refuse, with a sentence, what this method cannot work with. Call ``super().check(setting)`` first."""
        objective = setting.objective.name
        if objective not in self.needs.objectives:
            works = ", ".join(sorted(self.needs.objectives))
            raise MethodError(
                f"Method '{self.label}' does not work with objective '{objective}'; it works with {works}."
            )
        if setting.has_peft and not self.needs.peft:
            raise MethodError(f"Method '{self.label}' does not work on a model with PEFT adapters. Remove one of them.")
        if self.needs.anatomy:
            from everlearn.model.anatomy import anatomy

            anatomy(setting.model)

    def adds_low_rank(self, model: nn.Module) -> bool:
        """Whether what it attaches beside a model that it freezes are low-rank matrices (``Attachment.low_rank``)."""
        return False

    def cost(self, model: nn.Module) -> Cost:
        """What this method adds, for ``everlearn plan`` and the memory test. `model` may be on the meta device."""
        return Cost()

    # -- hooks, in the order in which they run ----------------------------------------------------------------

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Once, before the first stage and after every load: wrap or extend the model."""
        return model

    def hold_out(self, stage: Stage) -> None:
        """Before each stage, first of all: leave rows out of ``stage.source`` and ``stage.general``, which are then
        what everybody learns from and measures on (:class:`everlearn.data.without.Without`). On resume it runs again,
        and must leave the same rows out."""

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """Before each stage: other weights for the domain to start from, by parameter name; the rest stay as they are.

        `stage.checkpoints` has the models to take them from. One method of a list may have this hook."""
        return {}

    def begin_domain(self, stage: Stage) -> None:
        """Before each stage, on a plain model: measure it, copy it, take anchors. Nothing may be attached yet.

        On resume it runs again with the checkpoint's memory already loaded: do not recompute what the memory holds."""

    def attach(self, stage: Stage) -> None:
        """When every method's ``begin_domain`` has run: put adapters, gates, prompts into the model, or grow it."""

    def training_data(self, source: BlockSource, stage: Stage) -> BlockSource:
        """Before each stage: what to train on. The default is the domain as it is."""
        return source

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Before each stage: the optimizer's parameter groups."""
        return groups

    def optimizer(self, stage: Stage, optimizer: Optimizer) -> Optimizer:
        """Before each stage: the optimizer, given the one that `train` asks for; its state is saved and resumed.

        A new one takes over ``optimizer.param_groups``. One method of a list may have this hook."""
        return optimizer

    def schedule(self, stage: Stage, scheduler: LRScheduler) -> LRScheduler:
        """Before each stage: the learning rate's schedule, given the one that `train` asks for.

        A new one is made for ``stage.optimizer``, whose groups have their full rates at this moment. One method of a
        list may have this hook."""
        return scheduler

    def begin_training(self, stage: Stage) -> None:
        """Before the first step, when the model is as it will be trained: everything attached, distributed, and on
        resume with the checkpoint's weights. Hooks that watch the model, and what lies beside its parameters."""

    def transforms(self, stage: Stage) -> Mapping[str, Transform]:
        """Before the first step: by parameter name, what the forward pass reads instead of the parameter.

        The function gets the whole parameter and gives a tensor of its shape; the gradient flows back through it. It
        is called in each pass in training mode, under a seed of step and name: what it draws with torch is the same in
        all micro-batches of a step and on all processes."""
        return {}

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Each micro-batch, before the forward pass: set what the pass depends on.

        What is returned stands in the batch as "<method>/<key>" for :meth:`views` and :meth:`extra_losses`."""
        return {}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Each micro-batch, before the forward pass: extra rows to run in the same pass."""
        return []

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Each micro-batch: named scalars added to the loss and logged apart (weights already applied).

        ``outputs.views`` holds the hidden states of this method's own :meth:`views`, in order.
        """
        return {}

    def mask(self, stage: Stage) -> Mask | None:
        """Each optimizer step, after backward: what to hold back."""
        return None

    def references(self, stage: Stage) -> Mapping[str, Sequence[Block]]:
        """Each optimizer step, after backward: rows whose own gradients :meth:`gradients` wants to see, by a name.

        All rows, on every process: the engine shares them out, and computes the gradient of their mean loss."""
        return {}

    def gradients(self, stage: Stage, own: Gradients, references: Mapping[str, Gradients]) -> Gradients:
        """Each optimizer step, before clipping: change the accumulated gradients. One method of a list may have it.

        Args:
            stage: the domain's training.
            own: the gradient of the whole loss.
            references: those of :meth:`references`.
        """
        return own

    def pull(self, stage: Stage) -> None:
        """Each optimizer step, right after the optimizer: move weights in another way than by their gradients.

        What masks on updates hold back is taken back afterwards (one on gradients scales what the optimizer reads, and
        nothing else), and a parameter whose gradient is None is to be left alone, as the optimizer leaves it: another
        method froze it for this step.
        """

    def confine(self, stage: Stage) -> None:
        """Each optimizer step, right after the update: move the weights back to where they may be. One method of a list
        may have this hook; every :meth:`after_step` sees what it leaves."""

    def after_step(self, stage: Stage) -> None:
        """Each optimizer step, after the update."""

    def final_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """After each stage, first of all: other weights for the domain to end with, by parameter name (a merge).

        What is measured afterwards is measured on them. One method of a list may have this hook."""
        return {}

    def end_domain(self, stage: Stage) -> None:
        """After each stage, with everything still attached: measure importance, Fisher information, outputs; sample
        text. The model must be left as it is."""

    def detach(self, stage: Stage) -> None:
        """When every method's ``end_domain`` has run: leave a plain model and keep what was attached as memory."""

    def export(self, model: nn.Module) -> nn.Module:
        """The model to save for a stage, loadable without everlearn (for example with adapters merged).

        Must not change `model`."""
        return model

    def peft_adapter(self, model: nn.Module, base: Callable[[], nn.Module]) -> PeftAdapter | None:
        """After each stage: all that the stream has changed in the base model as one adapter; None where that is none.

        Args:
            model: as the stage leaves it, a plain one.
            base: reads the base model, for a method that needs its weights.
        """
        return None

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """At test: put back into the plain checkpoint what this method reads a text with (adapters, gates, prompts).

        `model` is a fresh copy of the checkpoint, with its language-model head when held-out text is measured and
        with a new classification head before an end task is fine-tuned; module paths are the same in both. It may be
        changed. A text of no domain, or of one that is not learnt yet, is read without a domain's additions by a
        method that needs a domain id. The default is the model as it is.
        """
        return model

    def test_predictor(self, predictor: Predictor, reading: Reading) -> Predictor:
        """At test: what answers in place of one checkpoint (an ensemble, a model that is chosen by the text).

        `predictor` is the checkpoint with what :meth:`test_model` put back, or what the method before this one (in
        the order of their names) made of it. The default is the predictor as it is.
        """
        return predictor

    @property
    def tested_as_saved(self) -> bool:
        """Whether scores are of the plain checkpoint: whoever loads a stage's folder has what was measured."""
        own = type(self)
        return own.test_model is Method.test_model and own.test_predictor is Method.test_predictor

    def importance(self) -> UnitImportance | None:
        """What this method remembers of how much units matter, for ``everlearn analyse``; None: nothing."""
        return None

    def memory(self) -> Memory:
        """What must be saved with a stage (and with each checkpoint inside it)."""
        return Memory()

    def load_memory(self, memory: Memory) -> None:
        """Take back what :meth:`memory` gave."""

    def __repr__(self) -> str:
        set_options = {name: getattr(self.config, name) for name in sorted(self.config.model_fields_set)}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in set_options.items())})"


C = TypeVar("C", bound=MethodConfig)


def configured(name: str, config: type[C], options: Mapping[str, Any]) -> C:
    """Checked options of what the user calls `name`.

    Raises:
        MethodError: an option is unknown or its value is not allowed; the sentence names the key.
    """
    try:
        return config.model_validate(options)
    except ValidationError as error:
        raise MethodError(explain(name, config, error)) from None


def explain(name: str, config: type[BaseModel], error: ValidationError) -> str:
    """One sentence for the first thing wrong with a method's options."""
    option = error.errors()[0]["loc"][:1]
    # Of the types that a value may have, the one whose parts were looked at is the one that was meant.
    first, *others = sorted((e for e in error.errors() if e["loc"][:1] == option), key=lambda e: -len(key_of(e)))
    key = ".".join(str(part) for part in key_of(first))
    if first["type"] == "extra_forbidden":
        return f"Method '{name}' has no option '{key}'.{did_you_mean(key, config.model_fields)}"
    if not key:  # a rule about several options
        return f"Method '{name}', {first['msg'].removeprefix('Value error, ')}."
    others = [each for each in others if key_of(each) == key_of(first)]
    return f"Method '{name}', option '{key}': {wrong_value(first, *others)}."


M = TypeVar("M", bound=Method)
REGISTRY: dict[str, type[Method]] = {}
VARIANTS: dict[str, tuple[type[Method], Variant]] = {}


def register(cls: type[M]) -> type[M]:
    """Make a method, and its variants, known by name to recipes, tables and the conformance tests.

    Raises:
        TypeError: the class is not complete; the sentence says what is missing (a mistake of its author).
    """
    for attribute in ("name", "title", "paper"):
        if attribute not in cls.__dict__:
            raise TypeError(f"{cls.__name__} must define `{attribute}` in its own class body.")
    if not issubclass(cls.Config, MethodConfig):
        raise TypeError(f"{cls.__name__}.Config must subclass MethodConfig.")
    if not (cls.__doc__ or "").strip():
        raise TypeError(f"{cls.__name__} needs a docstring that says what it does and cites the equation.")
    if "kinds" not in cls.__dict__:
        cls.kinds = getattr(sys.modules.get(cls.__module__.rpartition(".")[0]), "KINDS", cls.kinds)
    for kind in cls.kinds:
        if kind not in KINDS:
            raise TypeError(f"{cls.__name__} is of kind '{kind}', which is none of {', '.join(KINDS)}.")
    own = cls.__dict__.get("variants", ())
    for name in (cls.name, *(variant.name for variant in own)):
        if not name.replace("_", "").isalnum() or name != name.lower():
            raise TypeError(f"{cls.__name__} has the name '{name}': use snake_case.")
        known = REGISTRY.get(name) or VARIANTS.get(name, (None,))[0]
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise TypeError(f"The name '{name}' belongs to {known.__name__} already.")
    if cls.identity is not None:
        cls.Config.model_validate(cls.identity)
    for variant in own:
        cls.Config.model_validate(variant.options)
        VARIANTS[variant.name] = (cls, variant)
    REGISTRY[cls.name] = cls
    return cls


def names() -> list[str]:
    """Every name that a recipe may use: methods, and variants of them."""
    return sorted({*REGISTRY, *VARIANTS})


def plain_name(name: str) -> str:
    """A name without case, spaces, hyphens and underscores, in which papers differ."""
    return re.sub(r"[\s_-]", "", name.lower())


def build(spec: str | Mapping[str, Any] | Method) -> Method:
    """A method from what a recipe says: a name, or a mapping with ``name`` and options.

    Raises:
        MethodError: the name or an option is unknown.
    """
    if isinstance(spec, Method):
        return spec
    options = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise MethodError(f"A method needs a `name` (got {spec!r}).{did_you_mean('', names())}")
    if name in REGISTRY:
        return REGISTRY[name](configured(name, REGISTRY[name].Config, options))
    if name not in VARIANTS:
        ours = next((cls.name for cls in REGISTRY.values() if plain_name(name) in cls.in_das_paper), None)
        hint = f" In the DAS paper {name.upper()} is `{ours}`." if ours else did_you_mean(name.lower(), names())
        raise MethodError(f"There is no method '{name}'.{hint}")
    cls, variant = VARIANTS[name]
    method = cls(configured(name, cls.Config, {**variant.options, **options}))
    method.label, method.title, method.paper = variant.name, variant.title, variant.paper or cls.paper
    return method
