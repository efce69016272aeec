"""The engine: apply a list of methods to a stage and to each of its steps, in any Trainer or loop.

```python
protection = Protection([DAS(), Replay()], stage)
source = protection.begin()
optimizer = protection.optimizer(torch.optim.AdamW(trained(stage.model)))
for batch in batches_of(source):
    loss, parts = protection.loss(model, batch)
    loss.backward()
    protection.after_backward()
    with protection.update():
        optimizer.step()
    optimizer.zero_grad()
protection.end()
```

Methods act in the order of their names, whatever their order in the list. The beginning and end of a stage have phases:
first all methods measure, then all attach; at the end first all measure, then all detach.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from everlearn.data.blocks import BlockSource
from everlearn.errors import MethodError
from everlearn.methods.base import ApplyTo, Cost, Factor, Mask, Method, Reading, Setting, Stage, View
from everlearn.methods.engine.beside import OutputsBeside
from everlearn.methods.engine.processes import processes, rank
from everlearn.methods.engine.references import reference_gradients
from everlearn.methods.engine.transforms import Transforms
from everlearn.methods.gradients import Gradients
from everlearn.methods.state import fit_state
from everlearn.model.anatomy import head_path
from everlearn.model.objectives import Outputs
from everlearn.model.sharding import Blueprint, divided, local, shard_like
from everlearn.model.vocabulary_head import last_hidden_state, output_head, unwrap
from everlearn.seeding import Stream

Result = TypeVar("Result")
ROUTER = "model/router"
"""Key, in the parts of a loss, of the model's own load-balancing loss."""
EXCLUSIVE = {
    "starting_weights": "sets the weights that a domain starts from",
    "optimizer": "chooses the optimizer",
    "schedule": "chooses the learning-rate schedule",
    "gradients": "changes the accumulated gradients",
    "confine": "moves the weights back after each step",
    "final_weights": "sets the weights that a domain ends with",
}
"""Hooks that only one method of a list may have, because with two the result would depend on their order."""
BESIDE_TRAINING = (
    *("starting_weights", "begin_domain", "attach", "end_training", "final_weights", "end_domain", "detach", "export"),
)
"""Hooks before and after the steps that see the model."""


def overrides(method: Method, hook: str) -> bool:
    """Return whether a method implements a hook, in its class or as an attribute of the object."""
    own = getattr(getattr(method, hook), "__func__", None)
    return hook not in method.idle and own is not getattr(Method, hook)


def check_methods(methods: Sequence[Method], setting: Setting) -> None:
    """Refuse, before training, methods that do not fit the setting or each other.

    Raises:
        MethodError: the message names the method and the conflict.
    """
    for method in methods:
        labels = [f"'{other.label}'" for other in methods if other.name == method.name]
        if len(labels) > 1:
            raise MethodError(
                f"Method '{method.name}' is listed {len(labels)} times (`method`: {', '.join(labels)}). List it once."
            )
    for hook, does in EXCLUSIVE.items():
        having = [method.label for method in methods if overrides(method, hook)]
        if len(having) > 1:
            raise MethodError(
                f"Method '{having[0]}' {does}, and so does '{having[1]}'. Remove one of them from `method`."
            )
    for method in methods:
        method.check(setting)


def check_carrying(methods: Sequence[Method]) -> None:
    """Refuse methods that do not allow the next domain to keep the optimizer's state (`optimizer: carry`).

    Raises:
        MethodError: a method chooses the optimizer, or the set of trained parameters changes between domains.
    """
    for method in methods:
        changes = method.needs.extra_parameters or method.adds_peft or method.freezes or method.grows
        if overrides(method, "starting_weights"):
            what = "starts that domain from other weights"
        elif changes:
            what = "trains other parameters in each domain"
        elif overrides(method, "optimizer") or overrides(method, "parameter_groups"):
            what = "creates its own optimizer"
        else:
            continue
        raise MethodError(
            f"`optimizer: carry` keeps the optimizer's state for the next domain, but method '{method.label}' {what}. "
            "Set `optimizer: reset`."
        )


def in_order(methods: Sequence[Method]) -> list[Method]:
    """Return the methods in the order in which they act: by name, so that their order in a list does not matter."""
    return sorted(methods, key=lambda method: method.name)


def read_shards(methods: Sequence[Method]) -> bool:
    """Return whether what methods do before and after the steps works on a model that FSDP2 has divided."""
    beside = [method for method in methods if any(overrides(method, hook) for hook in BESIDE_TRAINING)]
    needs_full = any(method.needs.start or (method in beside and not method.reads_shards) for method in methods)
    return bool(beside) and not needs_full


def moved_by(methods: Sequence[Method], model: nn.Module) -> frozenset[str] | None:
    """Return the weights that methods train by low-rank matrices (:meth:`Method.moves`), or None."""
    moved = [set(names) for method in methods if (names := method.moves(model)) is not None]
    return frozenset[str]().union(*moved) if moved else None


def costs_of(methods: Sequence[Method], model: nn.Module) -> list[Cost]:
    """Return the cost of each method in this combination (:meth:`Method.cost`).

    If another method trains low-rank matrices, a penalty only stores the weights that these change.
    """
    moved = moved_by(methods, model)
    others = [each for name, each in model.named_parameters() if moved is not None and name not in moved]
    frozen = [parameter for parameter in others if parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        return [method.cost(model) for method in methods]
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def as_tested(methods: Sequence[Method], model: nn.Module, reading: Reading) -> nn.Module:
    """Attach the modules that methods add for evaluation to `model`, a new copy of a plain model."""
    for method in methods:
        model = method.test_model(model, reading)
    return model


class Protection:
    """A list of methods applied to the training of one stage.

    Args:
        methods: the methods; masks are multiplied, losses added, and views run in one pass.
        stage: the stage that the methods see; the engine updates its `step`, `row` and `optimizer`.
    """

    def __init__(self, methods: Sequence[Method], stage: Stage) -> None:
        self.methods = in_order(methods)
        self.stage = stage
        if any(overrides(method, "test_model") for method in methods):
            stage.as_tested = self._as_tested
        self.rows = 0
        """Rows of all processes that the stage has trained on; set it on resume."""
        self._model: nn.Module | None = None
        self._transforms: Transforms | None = None
        self._masks: list[tuple[Method, Mask]] = []
        self._reaching: set[str] = set()
        self._local: dict[int, tuple[Mask, list[tuple[nn.Parameter, Factor]]]] = {}
        self._before: list[tuple[nn.Parameter, list[Factor], Tensor]] = []

    # -- the stage --------------------------------------------------------------------------------------------

    def begin(self) -> BlockSource:
        """Run the hooks before training: measure, then attach. Return the data to train on.

        On resume, `step` of the stage is where it continues, and the methods have loaded the memory of the checkpoint.
        """
        stage = self.stage
        stage.moved = moved_by(self.methods, stage.model)
        streams = self._streams("begin")
        for method in self._with("hold_out"):
            with streams[method.name](), stage.acting(_doing("Holding rows out", method)):
                method.hold_out(stage)
        for method in self._with("starting_weights"):
            with streams[method.name](), stage.acting(_doing("Comparing weights to start from", method)):
                self._set_weights(method, method.starting_weights(stage))
        beginning = self._with("begin_domain")
        with self._divided() if beginning else contextlib.nullcontext():
            for method in beginning:
                with streams[method.name](), stage.acting(_doing("Preparing", method)):
                    method.begin_domain(stage)
        for method in self.methods:
            with stage.acting(_doing("Preparing", method)):
                if overrides(method, "attach"):
                    with streams[method.name]():
                        method.attach(stage)
                fit_state(method, method.label, stage.model)
        if any(method.needs.start for method in self.methods):
            trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
            stage.start = {name: parameter.detach().clone() for name, parameter in trained.items()}
        source = stage.source
        for method in self._with("training_data"):
            with streams[method.name](), stage.acting(_doing("Preparing", method)):
                source = method.training_data(source, stage)
        return source

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer that the methods require, from one over the parameters that are trained now."""
        groups: list[dict[str, Any]] = optimizer.param_groups
        streams = self._streams("optimizer")
        for method in self._with("parameter_groups"):
            with streams[method.name]():
                groups = method.parameter_groups(self.stage, groups)
        if groups is not optimizer.param_groups:
            # Fill in the defaults, as torch does for a group that sets only some options.
            optimizer.param_groups = [{**optimizer.defaults, **group} for group in groups]
        for method in self._with("optimizer"):
            with streams[method.name]():
                optimizer = method.optimizer(self.stage, optimizer)
        self.stage.optimizer = optimizer
        return optimizer

    def schedule(self, scheduler: LRScheduler) -> LRScheduler:
        """Return the schedule that the methods require, from one for the optimizer."""
        groups = scheduler.optimizer.param_groups
        for method in self.methods:
            if overrides(method, "schedule"):
                now = [group["lr"] for group in groups]
                for group in groups:
                    # A new scheduler takes the current rate for the full rate, but this one has already warmed up.
                    # A scheduler by metrics stores no initial rate: it starts from the current one.
                    group["lr"] = group.get("initial_lr", group["lr"])
                with self._streams("schedule")[method.name]():
                    chosen = method.schedule(self.stage, scheduler)
                if chosen is scheduler:
                    for group, rate in zip(groups, now, strict=True):
                        group["lr"] = rate
                scheduler = chosen
        return scheduler

    def start(self, outside: nn.Module | None = None) -> None:
        """Run the hooks before the first step, on the model that will be trained; :meth:`forward` calls it.

        Args:
            outside: a module whose parameters may be read without calling it (:class:`Transforms`).
        """
        if self._transforms is None:
            streams = self._streams("start")
            for method in self._with("begin_training"):
                with streams[method.name]():
                    method.begin_training(self.stage)
            transforms = []
            for method in self._with("transforms"):
                with streams[method.name]():
                    transforms.append((method.label, method.transforms(self.stage)))
            self._transforms = Transforms(transforms, self.stage, outside)

    def end(self, blueprint: Blueprint | None = None) -> None:
        """Run the hooks after training: merge, measure, detach; ``stage.model`` is then a plain, complete model.

        Args:
            blueprint: the structure of the model before FSDP2 divided it; None if it is complete.
        """
        stage = self.stage
        self.release()
        shards = blueprint is not None and self._on_shards(blueprint.model)
        if blueprint is not None:
            stage.model = blueprint.divided(stage.model) if shards else blueprint.filled(stage.model)
        streams = self._streams("end")
        for method in self._with("end_training"):
            with streams[method.name]():
                method.end_training(stage)
        for method in self._with("final_weights"):
            with streams[method.name](), stage.acting(_doing("Comparing weights to end with", method)):
                self._set_weights(method, method.final_weights(stage))
        for method in self._with("end_domain"):
            with streams[method.name](), stage.acting(_doing("Finishing", method)):
                method.end_domain(stage)
        for method in self._with("detach"):
            with streams[method.name]():
                method.detach(stage)
        if blueprint is not None and shards:
            stage.model = blueprint.filled(stage.model)
        stage.start = {}

    def release(self) -> None:
        """Remove the transforms from the model."""
        if self._transforms is not None:
            self._transforms.remove()
        self._transforms = self._model = None

    def _on_shards(self, model: nn.Module) -> bool:
        """Return whether to measure on shards, which add up gradients in the number format of the weights."""
        return read_shards(self.methods) and all(each.dtype == torch.float32 for each in model.parameters())

    @contextlib.contextmanager
    def _divided(self) -> Iterator[None]:
        """Divide the model over the processes inside the block, if the methods measure on shards."""
        stage, complete = self.stage, self.stage.model
        if not stage.sharded or not self._on_shards(complete):
            yield
            return
        with divided(complete) as stage.model:
            stage.complete = complete
            try:
                yield
            finally:
                stage.model, stage.complete = complete, None

    def _as_tested(self, model: nn.Module) -> nn.Module:
        """Attach to a copy of the plain model what a test of the new domain would attach now."""
        stage = self.stage
        reading = Reading(
            domain=stage.domain,
            learnt=stage.earlier,
            objective=stage.objective,
            language_model=lambda: stage.model,
            batches=stage.batches,
            checkpoints=stage.checkpoints.on(next(model.parameters()).device),
        )
        return as_tested(self.methods, model, reading)

    def _with(self, hook: str) -> list[Method]:
        """Return the methods with this hook; for others the random streams, which take up to 1 ms, are not set."""
        return [each for each in self.methods if overrides(each, hook)]

    def _streams(self, phase: str) -> dict[str, Stream]:
        stage = self.stage
        return {method.name: Stream(stage.seed, stage.index, method.name, phase) for method in self.methods}

    def _set_weights(self, method: Method, weights: Mapping[str, Tensor]) -> None:
        parameters = dict(self.stage.model.named_parameters()) if weights else {}
        for name, value in weights.items():
            if name not in parameters or parameters[name].shape != value.shape:
                raise MethodError(
                    f"Method '{method.label}' returns weights for '{name}' with shape {tuple(value.shape)}, but the "
                    "model has no such parameter."
                )
            with torch.no_grad():
                parameters[name].copy_(value)

    # -- the step ---------------------------------------------------------------------------------------------

    def forward(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Outputs, dict[str, Tensor]]:
        """Run one forward pass over the batch and the views of all methods.

        Args:
            model: the model of the stage, in its distributed wrapper if it has one.
            batch: the batch of this process; every process has equally many rows.

        Returns:
            The outputs of the objective (without views) and the extra losses by "<method>/<loss>".
        """
        full_batch = self._before_forward(model, batch)
        views = [method.views(self.stage, full_batch) for method in self.methods]
        masks = [method.trained_labels(self.stage, full_batch) for method in self.methods]
        trained = [mask for mask in masks if mask is not None]
        together = [view for group in views for view in group]
        outputs = self.stage.objective.forward(model, batch, together, summed=not trained)
        extra = self._extra_losses(full_batch, views, outputs)
        for mask in trained:
            outputs.losses = torch.where(mask, outputs.losses, outputs.losses.detach())
        if outputs.router_loss is not None:
            extra[ROUTER] = outputs.router_loss
        return replace(outputs, views=[], view_losses=[]), extra

    def beside(
        self, model: nn.Module, batch: dict[str, Tensor], external: Callable[[], Result]
    ) -> tuple[Result, dict[str, Tensor]]:
        """Compute the losses of the methods in addition to an external forward pass, which has its own loss.

        Views run in a second pass. The hidden states of the batch are captured in the external pass if it uses the
        vocabulary head, and otherwise recomputed when a method needs them.

        Args:
            model: the model, as in :meth:`forward`.
            batch: the batch of the external pass, in the format of the objective.
            external: runs the external pass.

        Returns:
            The result of `external` and the extra losses by "<method>/<loss>".
        """
        core, caught = unwrap(model), list[Tensor]()
        last = output_head(core)
        self.start(last)
        full_batch = self._before_forward(model, batch)
        with contextlib.ExitStack() as hooks:
            # A compiled pass would run the hook of its first call in all later ones.
            if last is not None and not hasattr(model, "_orig_mod"):
                head = core.get_submodule(head_path(core))

                def catch(_: nn.Module, args: tuple[Any, ...], last: nn.Module = last) -> None:
                    caught.append(last_hidden_state(core, last, args[0]))

                hooks.callback(head.register_forward_pre_hook(catch).remove)
            result = external()
        views = [method.views(self.stage, full_batch) for method in self.methods]
        outputs = OutputsBeside(self.stage.objective, core, batch, caught, [v for group in views for v in group])
        return result, self._extra_losses(full_batch, views, outputs)

    def _before_forward(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Call ``before_forward`` of all methods, and return the batch with their tensors."""
        self.start()
        self._model = model
        count = len(next(iter(batch.values())))
        self.stage.row = self.rows + rank() * count
        self.rows += count * processes()
        full_batch = dict(batch)
        for method in self.methods:
            tensors = method.before_forward(self.stage, batch)
            full_batch |= {f"{method.name}/{key}": value for key, value in tensors.items()}
        return full_batch

    def _extra_losses(
        self, full_batch: dict[str, Tensor], views: Sequence[Sequence[View]], outputs: Outputs
    ) -> dict[str, Tensor]:
        extra: dict[str, Tensor] = {}
        hidden, losses = iter(outputs.views), iter(outputs.view_losses)
        for method, group in zip(self.methods, views, strict=True):
            own = copy.copy(outputs)
            own.views, own.view_losses = [next(hidden) for _ in group], [next(losses) for _ in group]
            for name, value in method.extra_losses(self.stage, full_batch, own).items():
                extra[f"{method.name}/{name}"] = value
        return extra

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total loss of a batch, and its parts for the log."""
        outputs, extra = self.forward(model, batch)
        total = outputs.loss
        for value in extra.values():
            total = total + value
        return total, {"loss": outputs.loss.detach(), **{name: value.detach() for name, value in extra.items()}}

    def after_backward(self, backward: Callable[[Tensor], Any] = torch.Tensor.backward, scale: float = 1.0) -> None:
        """Change gradients and apply gradient masks; call it after the last backward pass of a step, before clipping.

        Args:
            backward: runs the backward pass of the loss of reference rows (``accelerator.backward`` under a Trainer).
            scale: the power of two by which `backward` multiplies losses (fp16); methods see gradients without it, and
                it is restored afterwards.
        """
        self._rescale(1 / scale)
        self._run_gradient_hooks(backward, scale)
        self._rescale(scale)

    def _rescale(self, factor: float) -> None:
        if factor != 1:
            for parameter in self.stage.model.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).mul_(factor)

    def _run_gradient_hooks(self, backward: Callable[[Tensor], Any], scale: float) -> None:
        self._masks = [(m, mask) for m in self.methods if (mask := m.mask(self.stage)) is not None]
        for method, mask in self._masks:
            self._check_reach(method, mask)
        for method in self.methods:
            if overrides(method, "gradients"):
                self._change_gradients(method, backward, scale)
        for parameter, factor in self._factors("gradient"):
            if parameter.grad is not None:
                local(parameter.grad).mul_(_local_factor(factor, parameter))

    def _change_gradients(self, method: Method, backward: Callable[[Tensor], Any], scale: float) -> None:
        parameters = {name: p for name, p in self.stage.model.named_parameters() if p.requires_grad}
        rows = method.references(self.stage)
        references: Mapping[str, Gradients] = {}
        if rows and self._model is not None:
            references = reference_gradients(self.stage, self._model, parameters, rows, backward)
            if scale != 1:
                references = {name: gradients * (1 / scale) for name, gradients in references.items()}
        own = Gradients.of(parameters)
        changed = method.gradients(self.stage, own, references)
        if changed is own:
            return
        for name, value in changed.items():
            parameter = parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            local(parameter.grad).copy_(value)

    def before_update(self) -> None:
        """Copy the parameters that have update masks; call it before ``optimizer.step()``."""
        masked: dict[int, tuple[nn.Parameter, list[Factor]]] = {}
        for parameter, factor in self._factors("update"):
            masked.setdefault(id(parameter), (parameter, []))[1].append(factor)
        self._before = [(p, factors, local(p).detach().clone()) for p, factors in masked.values() if p.requires_grad]

    def after_update(self) -> None:
        """Undo the masked part of the update, whatever caused it; call it after ``optimizer.step()``."""
        for method in self.methods:
            method.pull(self.stage)
        with torch.no_grad():
            for parameter, factors, old in self._before:
                factor = functools.reduce(torch.mul, (_local_factor(factor, parameter) for factor in factors))
                # lerp is exact at both ends: a factor of 1 gives the new value and 0 the old one, bit for bit.
                torch.lerp(old, local(parameter), factor.expand_as(old), out=local(parameter))
        self._before = []
        if self._transforms is not None:
            self._transforms.check_used()
        for method in self.methods:
            method.confine(self.stage)
        for method in self.methods:
            method.after_step(self.stage)
        self.stage.step += 1

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Wrap ``optimizer.step()`` in a plain loop."""
        self.before_update()
        yield
        self.after_update()

    # -- masks ------------------------------------------------------------------------------------------------

    def masked(self) -> dict[str, tuple[ApplyTo, int, float]]:
        """Return what each mask of the last step applies to, how many parameters it covers, and its mean factor."""
        effects: dict[str, tuple[ApplyTo, int, float]] = {}
        for method, mask in self._masks:
            count, total = 0, 0.0
            for parameter, factor in self._localised(method, mask):
                size = local(parameter).numel()
                count, total = count + size, total + size * float(_local_factor(factor, parameter).float().mean())
            if count:
                effects[method.label] = (mask.apply_to, count, total / count)
        return effects

    def _factors(self, apply_to: ApplyTo) -> Iterator[tuple[nn.Parameter, Factor]]:
        for method, mask in self._masks:
            if mask.apply_to == apply_to:
                yield from self._localised(method, mask)

    def _check_reach(self, method: Method, mask: Mask) -> None:
        """Check that a mask covers tensors that the optimizer updates.

        Some launchers give the optimizer flat copies of the parameters.
        """
        if self.stage.optimizer is None or method.name in self._reaching:
            return
        stepped = {id(p) for group in self.stage.optimizer.param_groups for p in group["params"]}
        for parameter, _ in self._localised(method, mask):
            if parameter.requires_grad and id(parameter) not in stepped:
                raise MethodError(
                    f"The masks of method '{method.label}' have no effect, because the optimizer updates its own "
                    "tensors instead of the model's parameters (DeepSpeed ZeRO does). Train with DDP or FSDP2."
                )
        self._reaching.add(method.name)

    def _localised(self, method: Method, mask: Mask) -> list[tuple[nn.Parameter, Factor]]:
        """Return the local factors of a mask with their parameters; cached for a constant mask."""
        known = self._local.get(id(method))
        if known is not None and known[0] is mask:
            return known[1]
        parameters = dict(self.stage.model.named_parameters())
        placed: list[tuple[nn.Parameter, Factor]] = []
        for name, factor in mask.factors.items():
            if name not in parameters:
                raise MethodError(f"Method '{method.label}' masks '{name}', which is not a parameter of the model.")
            parameter = parameters[name]
            placed.append((parameter, shard_like(factor, parameter) if isinstance(factor, Tensor) else factor))
        self._local[id(method)] = (mask, placed)
        return placed


def _local_factor(factor: Factor, parameter: nn.Parameter) -> Tensor:
    """Evaluate a factor from :meth:`Protection._localised`."""
    return factor if isinstance(factor, Tensor) else shard_like(factor(), parameter)


def _doing(what: str, method: Method) -> str:
    """Return the name of the phase in which a method measures something."""
    measures = method.needs.importance_pass and method.needs.memory == "statistics"
    title = getattr(method, "title", method.name)  # only registered methods must have one
    return f"{'Measuring importance' if measures else what}: {title}"
