"""The interface of a method: a frozen config and one class, whose hooks do nothing unless overridden.

A method protects old knowledge or transfers it to new domains. It never calls ``backward``, ``step`` or ``zero_grad``,
never prints and never sees the trainer. It reads a :class:`Stage`, returns losses, masks, data or a model, and keeps
what it must carry to the next domain in its :class:`Memory`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from everlearn.data.blocks import Block, BlockSource
from everlearn.errors import MethodError, did_you_mean, no_such_method
from everlearn.importance.normalisation import Normalisation
from everlearn.methods.config import MethodConfig as MethodConfig
from everlearn.methods.config import configured
from everlearn.methods.cost import FORWARD as FORWARD
from everlearn.methods.cost import Cost as Cost
from everlearn.methods.gradients import Gradients
from everlearn.methods.stage import Batch as Batch
from everlearn.methods.stage import Reading as Reading
from everlearn.methods.stage import Stage as Stage
from everlearn.methods.state import Memory as Memory
from everlearn.methods.state import load_state, save_state
from everlearn.model.objectives import Objective, Outputs, View
from everlearn.model.peft_adapter import PeftAdapter
from everlearn.plugins import Registry
from everlearn.predictors.predictor import Predictor
from everlearn.ranges import Range, ranges

ApplyTo = Literal["update", "gradient"]


REVEALS = {
    "nothing": "Its memory holds nothing of the text.",
    "statistics": "Its memory holds numbers about units or weights, from which no text can be read.",
    "parameters": "Its memory holds parameters trained on each domain; like any model, they may reveal memorised text.",
    "text": "Its memory holds training text of earlier domains as tokens, which anyone who has it can read.",
}
"""What a memory reveals, by its content (:attr:`Needs.keeps`)."""


KINDS = {
    "none": "Plain training.",
    "replay": "Replay: the model trains on old text again, stored or generated.",
    "isolation": "Parameter isolation: a domain has its own parameters, or the parameters that it uses are protected.",
    "ensembling": "Ensembling: several models, or branches of one, answer together.",
    "data-focused": "Regularisation by data: the outputs for a text stay near those of an earlier model.",
    "prior-focused": "Regularisation by a prior: the weights stay near those of earlier domains.",
    "trick": "Fine-tuning trick: other learning rates, schedules or trained parameters; no record of old domains.",
}
"""The kinds of methods that surveys of forgetting distinguish; a method may be of several (:attr:`Method.kinds`)."""


@dataclass(frozen=True)
class Needs:
    """The requirements of a method; the capability table and ``everlearn plan`` are generated from them."""

    old_data: bool = False
    """Stores text of earlier domains."""
    domain_id_training: bool = False
    """Must be told where one domain ends and the next begins, beyond the stream's own stage boundaries."""
    domain_id_test: bool = False
    """Needs the domain of an input at test time."""
    extra_parameters: bool = False
    """Adds trainable parameters to the model."""
    importance_pass: bool = False
    """Runs additional passes over a part of the data before or after a domain."""
    objectives: frozenset[str] = frozenset({"masked", "causal", "text-to-text"})
    """Names of the supported objectives."""
    peft: bool = True
    """Supports a model with PEFT adapters."""
    predictions: bool = False
    """Reads predicted tokens, so the model must have a vocabulary head; a reward model has none."""
    losses: bool = False
    """Measures the loss of single examples; a contrastive loss, which compares examples, has none."""
    anatomy: bool = False
    """Reads the structure of the model: its layers, their projections, or heads and neurons."""
    earlier_models: bool = False
    """Reads the models of all earlier domains (``checkpoints``), not only the base model and the last."""
    base_model: bool = False
    """Reads the base model (``checkpoints[0]``) in every domain, so a run cannot continue without it."""
    writes: bool = False
    """Generates text with the model in each step, for which every process needs the complete model."""
    start: bool = False
    """Reads the values of the trained parameters at the beginning of the domain (``stage.start``)."""
    memory: Literal["nothing", "statistics", "parameters"] = "nothing"
    """Content of its memory besides old text: statistics of units or weights, or trained parameters of each domain."""

    @property
    def keeps(self) -> str:
        """What the memory reveals to whoever reads it: a key of :data:`REVEALS`."""
        return "text" if self.old_data else self.memory


Factor = Tensor | Callable[[], Tensor]
"""A tensor in [0, 1] that broadcasts to a parameter. A function is called after the optimizer step: for
update masks that depend on its new state."""


@dataclass(frozen=True)
class Mask:
    """Factors for parameters: 1 leaves a gradient or an update unchanged, 0 removes it.

    Attributes:
        factors: parameter name (as in ``model.named_parameters()``) → factor. A method whose mask is constant over a
            stage returns the same object each time.
        apply_to: ``update`` scales the change that the optimizer makes, weight decay and momentum included;
            ``gradient`` scales the gradient that the optimizer reads, which Adam's normalisation mostly undoes.
    """

    factors: Mapping[str, Factor]
    apply_to: ApplyTo = "update"


@dataclass(frozen=True)
class UnitImportance:
    """Importance of units in the memory of a method (:meth:`Method.importance`).

    Attributes:
        general: for general knowledge, before the first domain: site name → [units] in [0, 1); may be empty.
        accumulated: the importance in effect after the domains learnt so far.
        normalise: how raw scores were normalised to [0, 1).
        grows: whether maps accumulate over the domains. If not, the map of a domain is the one in effect while it was
            learnt.
    """

    general: Mapping[str, Tensor]
    accumulated: Mapping[str, Tensor]
    normalise: Normalisation = "tanh_abs"
    grows: bool = True


Transform = Callable[[Tensor], Tensor]
"""From a parameter to what the forward pass reads instead of it, of the same shape."""


@dataclass(frozen=True)
class Variant:
    """A published configuration of a method with a name of its own: other defaults, nothing else.

    Attributes:
        name: name in recipes and tables (snake_case).
        title: name as the paper writes it.
        description: a sentence or two.
        options: the defaults that differ from the method's; a recipe may change options further.
        paper: URL; that of the method by default.
    """

    name: str
    title: str
    description: str
    options: Mapping[str, Any]
    paper: str | None = None


@dataclass(frozen=True)
class Setting:
    """What is known before training, for :meth:`Method.check`."""

    model: nn.Module
    objective: Objective
    methods: tuple[Method, ...]
    has_peft: bool
    has_general: bool
    """Whether the recipe names a general corpus."""
    block_size: int
    """Tokens per row."""
    domains: tuple[str, ...] = ()
    """Names of the domains of the stream, as far as known."""
    rounded: bool = False
    """Whether adapters are trained on a copy of the weights in 4 or 8 bits, and added to the float32 ones."""


class Method:
    """Base class of all methods. Subclass it, set the class attributes, override hooks, decorate with ``@register``.

    Class attributes:
        name: name in recipes and tables (snake_case).
        title: its name as the paper writes it.
        summary: what it does, in a few words, for the table of all methods.
        paper: URL of the paper, or "" for plain training.
        kinds: keys of :data:`KINDS`; by default those of its family, which the package lists in ``KINDS``.
        needs: its requirements. If they depend on options, ``__init__`` sets them.
        identity: options that make it equal to plain training, bit for bit (used by the conformance tests); None if the
            method changes the model or data itself and has no such setting.
        adds_peft: whether ``attach`` adds PEFT adapters to the model; a setting with such a method has ``has_peft``.
        grows: number of the first stage in which ``attach`` may enlarge the model; 0 for none. If it depends on
            options, ``__init__`` sets it.
        freezes: whether nothing but the added parameters is trained. If it depends on options, ``__init__`` sets it.
        goes_back: whether a domain may start from another model than the last one. If it depends on options,
            ``__init__`` sets it.
        merges: whether a stage keeps its complete model; otherwise its :meth:`peft_adapter` only. If it depends on
            options, ``__init__`` sets it.
        importance_samples: whether its option `samples` is the number of rows for measuring importance, which a grid
            sets for all such methods at once, and not a number of rows that it stores, generates or trains on.
        idle: hooks that its options leave unused; if they are exclusive, another method of a list may use them.
        reads_shards: whether its hooks before and after the steps also work on a model that FSDP2 has divided. If not,
            every process gathers the complete model for them. If it depends on options, ``__init__`` sets it.
        in_das_paper: its name in the DAS paper, without spaces and hyphens; set only if it differs from `name`.
        search: options that ``everlearn tune`` draws, with their ranges: the first always, others where the recipe
            has another value than the default.
        rules_of_thumb: published advice on its options, a sentence with its source each; `plan` shows it.
        variants: published configurations with names of their own; an object created by such a name has the title and
            paper of the variant, and the name as its ``label``.
    """

    name: ClassVar[str]
    title: str
    summary: str = ""
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
    reads_shards: bool = False
    in_das_paper: ClassVar[tuple[str, ...]] = ()
    search: ClassVar[Mapping[str, Range]] = ranges()
    rules_of_thumb: ClassVar[tuple[str, ...]] = ()

    class Config(MethodConfig):
        """Options of the method."""

    config: Any

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        """Take a config, or the options by name.

        Raises:
            MethodError: an option is unknown or its value is not allowed; the message names the key.
        """
        self.config = configured(self.name, self.Config, options) if config is None else config
        self.label = self.name

    def check(self, setting: Setting) -> None:
        """Raise an error if the method cannot work in this setting. Call ``super().check(setting)`` first."""
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

    def moves(self, model: nn.Module) -> Collection[str] | None:
        """Return the names of the weights into which its trained low-rank matrices are merged at the end, or None."""
        return None

    def adds_low_rank(self, model: nn.Module) -> bool:
        """Return whether the method attaches low-rank matrices to a frozen model (``Attachment.low_rank``)."""
        return False

    def adopts(self, model: nn.Module) -> bool:
        """Return whether the method uses adapters that the model already has, instead of attaching its own."""
        return False

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of this method, for ``everlearn plan``; `model` may be on the meta device."""
        return Cost()

    # -- hooks, in the order in which they run ----------------------------------------------------------------

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Wrap or extend the model; called once before the first stage and after every load."""
        return model

    def hold_out(self, stage: Stage) -> None:
        """Exclude rows from ``stage.source`` and ``stage.general``; called first before each stage.

        All methods then train and measure on what remains (:class:`everlearn.data.holdout_view.Without`). On resume it
        is called again, and must exclude the same rows.
        """

    def starting_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """Return other weights to start the domain from, by parameter name; called before each stage.

        The other parameters keep their weights. `stage.checkpoints` holds the earlier models. Only one method of a list
        may have this hook.
        """
        return {}

    def begin_domain(self, stage: Stage) -> None:
        """Measure or copy the model, or set anchors, before each stage; nothing may be attached yet.

        On resume it is called again with the memory of the checkpoint already loaded: do not recompute what the memory
        holds.
        """

    def attach(self, stage: Stage) -> None:
        """Add adapters, gates or prompts to the model, or grow it; called after ``begin_domain`` of every method."""

    def training_data(self, source: BlockSource, stage: Stage) -> BlockSource:
        """Return the data to train on, before each stage; by default the unchanged domain."""
        return source

    def parameter_groups(self, stage: Stage, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the parameter groups for a stage's optimizer; by default `groups`, its ``param_groups``, unchanged."""
        return groups

    def optimizer(self, stage: Stage, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer of a stage; by default the one that `train` configures. Its state is saved and resumed.

        A new optimizer takes over ``optimizer.param_groups``. Only one method of a list may have this hook.
        """
        return optimizer

    def schedule(self, stage: Stage, scheduler: LRScheduler) -> LRScheduler:
        """Return the learning-rate schedule of a stage; by default the one that `train` configures.

        A new schedule is created for ``stage.optimizer``, whose groups have their full learning rates at this moment.
        Only one method of a list may have this hook.
        """
        return scheduler

    def begin_training(self, stage: Stage) -> None:
        """Place hooks or tensors that need the model as it is trained; called before the first step.

        The model then has everything attached, is distributed, and on resume has the weights of the checkpoint.
        """

    def transforms(self, stage: Stage) -> Mapping[str, Transform]:
        """Return, by parameter name, functions of the parameter whose value the forward pass reads in its place.

        Called before the first step. The function maps the full parameter to a tensor of its shape; the gradient flows
        back through it. It is called in each pass in training mode, under a seed of step and name: random numbers of
        torch are the same in all micro-batches of a step and on all processes.
        """
        return {}

    def before_forward(self, stage: Stage, batch: Batch) -> Batch:
        """Set what the forward pass depends on; called for each micro-batch before the pass.

        The returned tensors are in the batch as "<method>/<key>" for :meth:`views` and :meth:`extra_losses`.
        """
        return {}

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return extra rows to run in the same forward pass; called for each micro-batch."""
        return []

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return named scalars that are added to the loss and logged separately, with weights already applied.

        Called for each micro-batch. ``outputs.views`` holds the hidden states of this method's own :meth:`views`, in
        order.
        """
        return {}

    def trained_labels(self, stage: Stage, batch: Batch) -> Tensor | None:
        """Return which labels the objective's own loss is trained at, [B, K] bool; None for all.

        Called for each micro-batch after :meth:`views`; :meth:`extra_losses` replaces that loss at the others. It is
        logged there all the same, so that runs can be compared.
        """
        return None

    def mask(self, stage: Stage) -> Mask | None:
        """Return a mask on gradients or updates; called at each optimizer step after the backward pass."""
        return None

    def references(self, stage: Stage) -> Mapping[str, Sequence[Block]]:
        """Return rows whose gradients :meth:`gradients` needs, by name.

        Called at each optimizer step after the backward pass. Return all rows on every process: the engine distributes
        them, and computes the gradient of their mean loss.
        """
        return {}

    def gradients(self, stage: Stage, own: Gradients, references: Mapping[str, Gradients]) -> Gradients:
        """Change the accumulated gradients; called at each optimizer step before clipping.

        Only one method of a list may have this hook.

        Args:
            stage: the training of the domain.
            own: the gradient of the complete loss.
            references: the gradients of :meth:`references`.
        """
        return own

    def pull(self, stage: Stage) -> None:
        """Move weights by other means than their gradients; called at each step right after the optimizer.

        Masks on updates also restore what this hook changes (masks on gradients scale only what the optimizer reads). A
        parameter whose gradient is None must be left alone, as the optimizer leaves it: another method froze it for
        this step.
        """

    def confine(self, stage: Stage) -> None:
        """Move the weights back into an allowed region; called at each step right after the update.

        Only one method of a list may have this hook; every :meth:`after_step` sees its result.
        """

    def after_step(self, stage: Stage) -> None:
        """Act after the update of each optimizer step."""

    def end_training(self, stage: Stage) -> None:
        """Measure what depends on the weights of the last step; called first after each stage.

        A method of the list may change them after it (:meth:`final_weights`). Everything is still attached.
        """

    def final_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """Return other weights for the domain to end with, by parameter name (a merge); called after each stage.

        Later measurements use them. Only one method of a list may have this hook.
        """
        return {}

    def end_domain(self, stage: Stage) -> None:
        """Measure importance, Fisher information or outputs, or sample text, after each stage.

        Everything is still attached. The model must not be changed.
        """

    def detach(self, stage: Stage) -> None:
        """Restore the plain model and store attached modules as memory; called after ``end_domain`` of every method."""

    def export(self, model: nn.Module) -> nn.Module:
        """Return the model to save for a stage, which must load without everlearn (with adapters merged, for example).

        `model` must not be changed.
        """
        return model

    def peft_adapter(self, model: nn.Module, base: Callable[[], nn.Module]) -> PeftAdapter | None:
        """Return all changes of the stream to the base model as one PEFT adapter, or None; called after each stage.

        Args:
            model: the plain model at the end of the stage.
            base: loads the base model, for a method that needs its weights.
        """
        return None

    def test_model(self, model: nn.Module, reading: Reading) -> nn.Module:
        """Add the method's modules (adapters, gates, prompts) for a text to a plain checkpoint, at test time.

        `model` is a new copy of the checkpoint, with its language-model head for held-out text and with a new
        classification head before it is fine-tuned on an end task; module paths are the same in both. It may be
        changed. A method that needs a domain id reads text of no domain, or of one that is not learnt yet, without the
        additions of a domain. The default is the unchanged model.
        """
        return model

    def test_predictor(self, predictor: Predictor, reading: Reading) -> Predictor:
        """Return the predictor that replaces a single checkpoint at test time.

        It may be an ensemble, or a model selected by the text. `predictor` is the checkpoint after :meth:`test_model`,
        or the result of the previous method (in the order of their names). The default is the unchanged predictor.
        """
        return predictor

    @property
    def tested_as_saved(self) -> bool:
        """Whether the model is evaluated as the plain checkpoint in the folder of its stage, without additions."""
        own = type(self)
        return own.test_model is Method.test_model and own.test_predictor is Method.test_predictor

    def importance(self) -> UnitImportance | None:
        """Return the importance of units in the memory of this method, for ``everlearn analyse``, or None."""
        return None

    # -- state: declared in the class (everlearn.methods.state); these save and load what is declared ------------

    def memory(self) -> Memory:
        """Return the state to save with a stage and with each checkpoint inside it."""
        return save_state(self)

    def load_memory(self, memory: Memory) -> None:
        """Restore the state from the result of :meth:`memory`.

        Raises:
            MethodError: the content does not match what the class declares; the message names the file and the key.
        """
        load_state(self, self.label, memory)

    def __repr__(self) -> str:
        set_options = {name: getattr(self.config, name) for name in sorted(self.config.model_fields_set)}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in set_options.items())})"


M = TypeVar("M", bound=Method)
REGISTRY: Registry[type[Method]] = Registry("methods")
VARIANTS: Registry[tuple[type[Method], Variant]] = Registry("methods")


def register(cls: type[M]) -> type[M]:
    """Register a method and its variants by name for recipes, tables and the conformance tests.

    Raises:
        TypeError: the class is not complete; the message says what is missing (a mistake of its author).
    """
    for attribute in ("name", "title", "paper"):
        if not isinstance(cls.__dict__.get(attribute), str):  # results and pages have it
            raise TypeError(f"{cls.__name__} must define `{attribute}` in its own class body, as text.")
    if not issubclass(cls.Config, MethodConfig):
        raise TypeError(f"{cls.__name__}.Config must subclass MethodConfig.")
    if not (cls.__doc__ or "").strip():
        raise TypeError(f"{cls.__name__} needs a docstring that says what it does and cites the equation.")
    if "summary" not in cls.__dict__:  # a parent's summary describes the parent
        cls.summary = ""
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
        VARIANTS.add(variant.name, (cls, variant))
    REGISTRY.add(cls.name, cls)
    return cls


def names() -> list[str]:
    """Return all names that a recipe may use: methods, and variants of them."""
    return sorted({*REGISTRY, *VARIANTS})


def build(spec: str | Mapping[str, Any] | Method) -> Method:
    """Create a method from its specification in a recipe: a name, or a mapping with ``name`` and options.

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
        raise no_such_method(name, names(), {own: cls.name for cls in REGISTRY.values() for own in cls.in_das_paper})
    cls, variant = VARIANTS[name]
    method = cls(configured(name, cls.Config, options, variant.options))
    method.label, method.title, method.paper = variant.name, variant.title, variant.paper or cls.paper
    return method
