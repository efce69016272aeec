"""Estimate the cost of a run in advance: tokens, steps, memory, disk and time, with and without the methods."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from everlearn import wording
from everlearn.commands.memory_estimate import ESTIMATED, MemoryEstimate, Setup
from everlearn.commands.memory_verdict import FitVerdict, judge
from everlearn.config.arguments import training_arguments
from everlearn.config.recipe import Recipe
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Domain
from everlearn.data.loader import BlockLoader
from everlearn.data.phases import in_silence
from everlearn.errors import RecipeError
from everlearn.evaluation import make_task
from everlearn.learner import ContinualLearner
from everlearn.methods import build
from everlearn.methods.base import REVEALS, Cost, Method
from everlearn.methods.engine.protection import Protection, costs_of, read_shards
from everlearn.methods.sequential import PLAIN
from everlearn.model.depth import frozen_parameters
from everlearn.model.loading import load_skeleton
from everlearn.model.vocabulary_head import unwrap, without_mixed_precision
from everlearn.run.disk import Sizes, disk_bytes
from everlearn.run.dry_run import why_not_sharded
from everlearn.run.measurement_plan import held_out_names, sets_inside, tasks_inside, wanted_sets, wanted_tasks
from everlearn.run.method_checks import check_run_methods
from everlearn.run.progress import Reporter
from everlearn.run.trainer import StageTrainer
from everlearn.seeding import set_all
from everlearn.wording import duration

WARM_UP, MEASURED = 1, 3
"""Numbers of steps that are run for the estimate: first without, then with timing."""
ENOUGH = 30.0
"""Seconds after which one measured step is enough: on a slow machine all of them would take minutes."""
UNSTEADY = 1.3
"""Ratio of the slowest to the fastest measured step above which a note says that times are uncertain."""
BACKWARD = 3
"""A training step costs about three forward passes."""


@dataclass(frozen=True)
class DomainPlan:
    """One domain: its size, and the passes over it; None for unknown sizes of a stream."""

    name: str
    documents: int | None
    tokens: int | None
    rows: int | None
    steps: int
    passes: float | None
    rows_per_step: int
    """Rows of one step on all devices: the global batch."""
    trained_tokens: int
    """Tokens of all steps."""
    train: dict[str, Any]
    """Training arguments of its own."""

    def cells(self) -> list[str]:
        """Return it for a table."""
        counts = [self.documents, self.tokens, self.rows, self.steps, self.rows_per_step, self.trained_tokens]
        passes = "stream" if self.passes is None else f"{self.passes:.2f}"
        return ["stream" if count is None else f"{count:,}" for count in counts] + [passes]


@dataclass(frozen=True)
class Timing:
    """The training time of a run in seconds: estimates from the fastest and from the slowest measured step."""

    seconds_per_step: float
    low: float
    high: float


@dataclass(frozen=True)
class EvaluationPlan:
    """The cost of evaluation."""

    scores: int
    """Scores of held-out text: (checkpoint, set) pairs, including those during stages."""
    scored_tokens: int
    """Tokens of these, each with a forward pass only."""
    tasks: int
    """(checkpoint, end task) pairs."""
    task_tokens: int
    """Tokens of these in units of a forward pass; a backward pass counts twice."""
    seconds: float | None = None
    """Estimated from the time of a training step; None if none was measured."""

    def words(self) -> str:
        """Return it for a table."""
        parts = [
            f"{wording.count(self.scores, 'score')} of held-out text ({wording.count(self.scored_tokens, 'token')})"
        ]
        if self.tasks:
            parts.append(f"{wording.count(self.tasks, 'end task')} asked ({wording.count(self.task_tokens, 'token')})")
        about = "" if self.seconds is None else f"; about {duration(self.seconds)}"
        return ", ".join(parts) + about

    @property
    def tokens(self) -> int:
        """Return the total, in units of a forward pass."""
        return self.scored_tokens + self.task_tokens


@dataclass(frozen=True)
class Plan:
    """The cost of a run, in bytes and seconds; all values are estimates except the counts."""

    domains: list[DomainPlan]
    parameters: int
    trainable: int
    block_size: int
    rows_per_step: int
    devices: int
    distribution: str
    """How the model lies on several devices: DDP or FSDP2; "" with one."""
    memory: dict[str, int]
    """Use → bytes of each device at the peak of a step."""
    measuring: dict[str, int]
    """Use → bytes of each device between two domains, while a method measures or FSDP2's shards are gathered; empty if
    neither happens."""
    methods: dict[str, Cost]
    disk: int
    evaluation: EvaluationPlan
    plain: Timing | None = None
    protected: Timing | None = None
    notes: list[str] = field(default_factory=list)
    verdict: FitVerdict | None = None
    """Whether it fits the memory that was asked about."""

    @property
    def steps(self) -> int:
        """Return the optimizer steps of the complete run."""
        return sum(domain.steps for domain in self.domains)

    @property
    def peak(self) -> int:
        """Return the largest number of bytes held, in a step or during a measurement."""
        return max(_sum(self.memory), _sum(self.measuring))

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, amount) pairs for a table."""
        tokens = sum(domain.trained_tokens for domain in self.domains)
        fewest, most = (bound(domain.rows_per_step for domain in self.domains) for bound in (min, max))
        rows = wording.count(most, "row") if fewest == most else f"{fewest:,} to {most:,} rows"
        machine = f", {self.distribution} over {self.devices:,} devices" if self.distribution else ""
        shown = [
            ("Parameters", f"{self.parameters:,} in the base model; {self.trainable:,} trained in the last stage"),
            (
                "Training",
                f"{wording.count(self.steps, 'step')} of {rows} of {self.block_size}: {wording.count(tokens, 'token')}",
            ),
            (f"Memory{' of each device' if machine else ''}, about", f"{wording.size(self.peak)} at the most{machine}"),
            ("… in a step", f"{wording.size(_sum(self.memory))}: {_listed(self.memory)}"),
        ]
        if self.measuring:
            shown.append(("… between domains", f"{wording.size(_sum(self.measuring))}: {_listed(self.measuring)}"))
        if self.distribution == "FSDP2":
            beside = sum(cost.disk_bytes + cost.host_bytes for cost in self.methods.values())
            host = self.devices * (4 * self.parameters + beside)
            what = "each process loads the weights before sharding, and the memory and teachers of methods"
            shown.append(("Memory of the host", f"{wording.size(host)}: {what}"))
        for domain in self.domains:
            if domain.train:
                own = ", ".join(f"{name} {value}" for name, value in domain.train.items())
                shown.insert(2, (f"Training on {domain.name}", own))
        for name, cost in self.methods.items():
            extra = [
                f"{wording.size(cost.memory_bytes)} of memory",
                f"{passes(cost.passes_per_step)} per step",
                extra_rows(cost),
                f"saves {saved(cost)}",
            ]
            shown.append((f"Method {name}", ", ".join(extra)))
        shown.append(("Evaluation", self.evaluation.words()))
        shown.append(("Disk, about", wording.size(self.disk)))
        for label, timing in (("Training time, plain", self.plain), ("Training time, with methods", self.protected)):
            if timing is not None:
                between = f"{duration(timing.low)} to {duration(timing.high)}"
                shown.append((label, f"{between} ({timing.seconds_per_step:.3g} s a step)"))
        return shown

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self) | {"steps": self.steps, "peak": self.peak}


def make_plan(
    recipe: Recipe,
    *,
    measure: bool = True,
    reporter: Reporter | None = None,
    devices: int | None = None,
    memory: int | None = None,
) -> Plan:
    """Estimate the cost of a recipe. Without `measure` only the configuration of the model is read, and no weight.

    Args:
        recipe: the recipe; nothing is written to its run folder.
        measure: time a few steps on this machine, without the methods and with them.
        reporter: receives progress messages.
        devices: number of devices of another machine; None for those of this run.
        memory: bytes of each device, to say whether the run fits.

    Raises:
        EverlearnError: the recipe cannot be run as it is; ``everlearn validate`` lists everything that is wrong.
    """
    learner = ContinualLearner(recipe, reporter=reporter)
    learner.devices = devices or learner.devices
    model = load_skeleton(recipe.model)
    check_run_methods(learner, model)
    for parameter in frozen_parameters(model, recipe.model.frozen):
        parameter.requires_grad_(False)
    domains = [_domain_plan(learner, domain) for domain in recipe.domains]
    methods = recipe.methods()
    costs = dict(zip((method.label for method in methods), costs_of(methods, model), strict=True))
    sizes = Sizes.of(model, methods, len(recipe.domains))
    block_size, objective = learner.setting().block_size, learner.setting().objective
    arguments = learner.all_arguments()
    estimate = MemoryEstimate(
        model,
        sizes,
        costs,
        objective,
        block_size,
        arguments[0],
        quantised=recipe.model.quantization_config,
        shards=read_shards(methods),
        carried=recipe.optimizer == "carry",
    )
    packed = "`model.quantization_config` packs the weights"
    undivided = why_not_sharded(model, methods) if recipe.model.quantization_config is None else packed
    if arguments[0].fsdp and undivided:
        raise RecipeError(f"`train.fsdp` cannot divide this run: {undivided}. Leave it out (plain DDP).")
    if arguments[0].fsdp and learner.devices == 1:
        raise RecipeError(
            "`train.fsdp` divides a run over several devices, and this plan is for one. Say for how many to plan "
            "(`--devices 8`), or leave `train.fsdp` out."
        )
    setups = [Setup.of(args, learner.devices) for args in arguments]
    held = [estimate.held(setup) for setup in dict.fromkeys(setups)]
    plan = Plan(
        domains=domains,
        parameters=sizes.base,
        trainable=estimate.trained_numbers,
        block_size=block_size,
        rows_per_step=max(domain.rows_per_step for domain in domains),
        devices=learner.devices,
        distribution=setups[0].distribution,
        memory=max((each.step for each in held), key=_sum),
        measuring=max((each.between for each in held), key=_sum),
        methods=costs,
        disk=disk_bytes(learner, model),
        evaluation=evaluation_plan(learner),
        notes=_notes(learner, estimate, measure),
        verdict=None if memory is None else judge(estimate, setups, memory, undivided),
    )
    del model
    if not measure:
        return plan
    plain, protected = [], []
    for alike in _alike(learner, domains):
        steps, domain = sum(each.steps for each in alike), recipe.domains[domains.index(alike[0])]
        plain.append((steps, _timing(_step_seconds(learner, domain, [build(PLAIN)]), steps)))
        # A row of an importance pass costs what a row of a plain step costs; a pass ends with the domain's last row.
        rows = sum(
            cost.outside(each.rows, trained=each.steps * each.rows_per_step, earlier=domains.index(each))
            for cost in costs.values()
            for each in alike
        )
        if domains[0] in alike and any(cost.passes_once for cost in costs.values()):
            text = domains[0].rows if recipe.general is None else learner.prepared(recipe.general.name).train.size
            rows += sum(cost.outside_once(domains[0].rows, text) for cost in costs.values())
        once = rows * plain[-1][1].seconds_per_step / alike[0].rows_per_step
        protected.append((steps, _timing(_step_seconds(learner, domain, methods), steps, once)))
    first = domains[0]
    forward = plain[0][1].seconds_per_step / (BACKWARD * first.rows_per_step * block_size)
    evaluation = replace(plan.evaluation, seconds=plan.evaluation.tokens * forward)
    times = _together(plain), _together(protected)
    notes = [*plan.notes, *_unsteady(times)]
    return replace(plan, plain=times[0], protected=times[1], evaluation=evaluation, notes=notes)


def evaluation_plan(learner: ContinualLearner) -> EvaluationPlan:
    """Return the cost of evaluation between, during and after the stages (`evaluation`, `stop`)."""
    recipe, block_size, last = learner.recipe, learner.setting().block_size, len(learner.recipe.domains)
    blocks = {}
    for name in held_out_names(recipe):
        held_out = learner.prepared(name).validation
        blocks[name] = 0 if held_out is None else min(recipe.evaluation.blocks, len(held_out))
    scored = [name for row in range(last + 1) for name in wanted_sets(recipe, row)]
    if (every := recipe.scored_every) is not None:
        for index, domain in enumerate(recipe.domains, 1):
            steps = learner.steps(domain.name)
            scored += sets_inside(recipe, index) * math.ceil(steps / every)
    if recipe.evaluation.alone:
        scored += [domain.name for domain in recipe.domains if domain.name in blocks]
    work = {task.name: make_task(task).work(recipe.evaluation.end_task_seeds) for task in recipe.tasks}
    task_names = [task.name for row in range(last + 1) for task in wanted_tasks(recipe, row)]
    if (every := recipe.evaluation.tasks_every) is not None:
        looks = sum((learner.steps(domain.name) - 1) // every for domain in recipe.domains)
        task_names += [task.name for task in tasks_inside(recipe)] * looks
    return EvaluationPlan(
        scores=len(scored),
        scored_tokens=block_size * sum(blocks[name] for name in scored),
        tasks=len(task_names),
        task_tokens=sum(work[name].forward_tokens for name in task_names),
    )


def _sum(parts: dict[str, int]) -> int:
    return sum(parts.values())


def _alike(learner: ContinualLearner, domains: list[DomainPlan]) -> list[list[DomainPlan]]:
    """Group the domains whose steps take equally long."""
    groups: dict[tuple[Any, ...], list[DomainPlan]] = {}
    for domain, args in zip(domains, learner.all_arguments(), strict=True):
        shape = (args.per_device_train_batch_size, args.gradient_accumulation_steps, str(args.optim))
        groups.setdefault((*shape, args.activation_checkpointing), []).append(domain)
    return list(groups.values())


def _domain_plan(learner: ContinualLearner, domain: Domain) -> DomainPlan:
    prepared, steps = learner.prepared(domain.name), learner.steps(domain.name)
    args = learner.arguments(domain.name)
    rows, each = prepared.train.size, learner.rows_per_step(args)
    passes = None if rows is None else steps * each / rows
    learnt = steps * each * learner.setting().block_size
    return DomainPlan(
        domain.name, prepared.documents, prepared.tokens, rows, steps, passes, each, learnt, dict(domain.train)
    )


def _notes(learner: ContinualLearner, estimate: MemoryEstimate, timed: bool) -> list[str]:
    recipe = learner.recipe
    notes = [*learner.notes()]
    for method in recipe.methods():
        if method.needs.keeps != "nothing":
            notes.append(f"{method.title}: {REVEALS[method.needs.keeps][0].lower()}{REVEALS[method.needs.keeps][1:]}")
        notes += [f"{method.title}: {rule}" for rule in method.rules_of_thumb]
    if not estimate.optimizer_is_exact:
        notes.append("The state of `train.optim` could not be traced here; it is counted as AdamW's.")
    if not timed:
        return notes
    if recipe.end_tasks:
        notes.append("Fine-tuning the end tasks and measuring held-out text are not part of the training time.")
    else:
        notes.append("The training time does not include the evaluation on held-out text.")
    if recipe.evaluation.alone:
        notes.append("`evaluation.alone` trains each domain once more; that is not part of the training time.")
    return notes


# -- time -----------------------------------------------------------------------------------------------------


def _together(parts: Sequence[tuple[int, Timing]]) -> Timing:
    """Combine the timings of several kinds of step, each with its number of steps."""
    steps = sum(count for count, _ in parts)
    mean = sum(count * timing.seconds_per_step for count, timing in parts) / steps
    return Timing(mean, sum(timing.low for _, timing in parts), sum(timing.high for _, timing in parts))


def _timing(steps: Sequence[float], count: int, once: float = 0.0) -> Timing:
    return Timing(statistics.median(steps), min(steps) * count + once, max(steps) * count + once)


def _unsteady(timings: Iterable[Timing]) -> list[str]:
    """Return a note if steps of one kind took so different times that two kinds cannot be compared."""
    spread = max(timing.high / timing.low for timing in timings)
    if spread < UNSTEADY:
        return []
    return [
        f"Of the measured steps the slowest took {spread:.1f} times as long as the fastest of the same kind, as if "
        "other programs used the machine. The difference between the two training times may be chance."
    ]


class _StepTimes(TrainerCallback):
    """Take the time at the end of each step, and end the training when it has taken long enough."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self.begun, self.done = time.monotonic(), done
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.ends.append(time.monotonic())
        self.done(len(self.ends))
        if len(self.ends) > WARM_UP and self.ends[-1] - self.begun > ENOUGH:
            control.should_training_stop = True


def _step_seconds(learner: ContinualLearner, domain: Domain, methods: list[Method]) -> list[float]:
    """Return the seconds of each measured step of a second domain under these methods, with a temporary model.

    A few rows serve as both domains, so importance passes are short, and masks, penalties or replayed rows are active
    as in the middle of a stream.
    """
    steps, label = WARM_UP + MEASURED, f"Timing a few steps of {'; '.join(method.title for method in methods)}"
    with tempfile.TemporaryDirectory() as folder, learner.reporter.activity(label, steps) as done:
        options = learner.recipe.train_of(domain.name) | {
            "save_strategy": "no",
            "report_to": "none",
            "logging_steps": 10**6,
        }
        args = training_arguments(options, Path(folder), learner.recipe.run.seed, steps)
        name = domain.name
        source = learner.prepared(name).train.fresh(0)
        rows = min(source.size or 4096, args.per_device_train_batch_size * 2)
        few = PackedBlocks.from_blocks([next(source) for _ in range(rows)], seed=0, name=name)
        stage = learner.stage(1, domain, methods)
        stage.source, stage.steps, stage.phase = few, steps, in_silence
        stage.general = few if stage.general is not None else None
        protection = Protection(methods, stage)
        protection.begin()
        protection.end()
        stage.model = learner.to_train(stage.model, args.device, methods)
        stage.index, stage.domain, stage.earlier = 2, "second", (name,)
        data = protection.begin()
        batches = steps * args.gradient_accumulation_steps
        loader = BlockLoader(data, stage.objective, args.per_device_train_batch_size, batches)
        times = _StepTimes(done)
        trainer = StageTrainer(protection=protection, loader=loader, args=args, callbacks=[times])
        set_all(0)
        trainer.train()
        stage.model = without_mixed_precision(unwrap(stage.model))
        protection.end()
    return [later - earlier for earlier, later in zip(times.ends[WARM_UP - 1 :], times.ends[WARM_UP:], strict=False)]


# -- words ----------------------------------------------------------------------------------------------------


def passes(count: float) -> str:
    """Write a number of extra passes with three digits."""
    shown = f"{count:.3g}"
    return f"{shown} extra pass" + ("" if shown == "1" else "es")


def extra_rows(cost: Cost) -> str:
    """Return the number of rows that are run outside of training steps."""
    parts = [f"{wording.count(cost.outside(None), 'extra row')} per domain"]
    parts += [f"{cost.passes_per_earlier:,} more for each earlier one"] if cost.passes_per_earlier else []
    parts += [f"{passes(cost.passes_per_row)} over each different row"] if cost.passes_per_row else []
    parts += [f"{cost.passes_once:,} once"] if cost.passes_once else []
    return ("at most " if cost.at_most else "") + " and ".join(parts)


def saved(cost: Cost) -> str:
    """Return the disk space of a method's memory, in words."""
    more = (
        f" and {wording.size(cost.disk_bytes_per_domain)} more for each domain learnt"
        if cost.disk_bytes_per_domain
        else ""
    )
    return f"{wording.size(cost.disk_bytes)} with each stage{more}"


def _listed(parts: dict[str, int]) -> str:
    about = dict.fromkeys(ESTIMATED, "about ")
    return ", ".join(f"{name} {about.get(name, '')}{wording.size(value)}" for name, value in parts.items() if value)
