"""Build the components of the stages of a run: text, models, and methods with their memory.

Everything is built from the recipe and from finished stages; nothing is trained or evaluated here. Progress messages of
a run go through :class:`OpenRun`.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import nn
from transformers import TrainingArguments
from transformers.trainer_utils import enable_full_determinism

from everlearn import wording
from everlearn.config.arguments import training_arguments
from everlearn.config.public_paths import paths_of, without_folders
from everlearn.config.recipe import Recipe
from everlearn.data import prepare
from everlearn.data.blocks import DeferredBlocks
from everlearn.data.corpus import Domain
from everlearn.data.notes import notes_of
from everlearn.data.prepare import Prepared
from everlearn.errors import DataError, EverlearnError, ModelError, RecipeError, RunError
from everlearn.evaluation.results import Results, StageFacts, read
from everlearn.methods.base import Cost, Method, Stage
from everlearn.methods.engine.protection import costs_of, in_order
from everlearn.methods.stage import Checkpoints
from everlearn.model.anatomy import kind_of
from everlearn.model.depth import frozen_parameters
from everlearn.model.loading import check_vocabulary, load_model, load_tokenizer, load_weights
from everlearn.model.objectives import Causal, Objective, make_objective
from everlearn.model.options import Model
from everlearn.model.peft_adapter import CONFIG as ADAPTER
from everlearn.model.peft_adapter import PeftAdapter, with_adapter
from everlearn.model.quantising import quantised
from everlearn.model.routing import router_note
from everlearn.model.text_format import TextFormat
from everlearn.model.vocabulary_head import text_config
from everlearn.run import optimizer_state
from everlearn.run.dry_run import check_devices
from everlearn.run.folder import RunFolder
from everlearn.run.forecast import PASSES, Forecast
from everlearn.run.progress import Advance, Reporter
from everlearn.run.stage_files import MEMORY, load_memories
from everlearn.seeding import seed_for, seeded

T = TypeVar("T")


class OpenRun:
    """Provide text, models and methods of a run's stages.

    Args:
        recipe: the recipe of the run.
        reporter: shows progress; None for no output.
    """

    def __init__(self, recipe: Recipe, reporter: Reporter | None = None) -> None:
        self.recipe = recipe
        self.folder = RunFolder(recipe.folder())
        # One process evaluates while the others wait, which can take longer than the default timeout of ten minutes.
        # `cpu` is set as TrainingArguments set it: otherwise accelerate makes no process group on CPU.
        cpu = bool(recipe.train.get("use_cpu", not torch.accelerator.is_available()))
        check_devices(cpu)
        if recipe.train.get("full_determinism"):
            # The Trainer does so too, but only when a domain begins. The passes before it would differ from run to
            # run, and cuBLAS reads the environment at the first product of two matrices and never again.
            enable_full_determinism(recipe.run.seed)
        self.processes = PartialState(cpu=cpu, timeout=datetime.timedelta(days=2))
        self.devices = self.processes.num_processes
        """Number of processes that train, each on its device; a plan may be made for more than there are."""
        self.reporter = reporter if reporter is not None and self.processes.is_main_process else Reporter()
        self.reporter.left(None)  # the reporter may still show the estimate of an earlier run
        self.forecast = Forecast()
        self._prepared: dict[str, Prepared] = {}
        self.warnings: list[str] = []
        """Warnings of the checks, on the examples of end tasks and on the training of domains."""
        self.leaked: dict[str, float] = {}
        """Held-out set or end task → the share of it that the checks found in training text."""
        self._setting: TextFormat | None = None
        self._model_notes: list[str] = []
        self._costs: list[Cost] = []
        self.passes_left = 0
        """Rows of the declared passes of this stage's methods that are still to come."""

    # -- progress ---------------------------------------------------------------------------------------------

    def took(self, kind: str, amount: int, seconds: float | None) -> None:
        """Count finished work and report the remaining time; arguments as of :meth:`Forecast.took`."""
        self.forecast.took(kind, amount, seconds)
        self.reporter.left(self.forecast.left())

    @contextlib.contextmanager
    def phase(self, text: str, total: int | None) -> Iterator[Advance]:
        """Report a pass over `total` rows outside of the training steps, and count its time."""
        done, moment = 0, time.monotonic()
        with self.reporter.activity(text, total) as tell:

            def advance(now: int) -> None:
                nonlocal done, moment
                before, moment = moment, time.monotonic()
                # Rows beyond the declared number are not taken from later stages.
                declared = min(now - done, self.passes_left)
                self.passes_left -= declared
                self.took(PASSES, declared, moment - before)
                done = now
                tell(now)

            yield advance

    # -- text -------------------------------------------------------------------------------------------------

    def setting(self, model: nn.Module | None = None) -> TextFormat:
        """Return how text becomes model input; it is the same for the whole run."""
        if self._setting is None:
            if model is None:
                model = self.some_model()
            tokenizer = self.some_tokenizer()
            check_vocabulary(tokenizer, model)
            data = self.recipe.data
            objective = make_objective(
                self.recipe.objective,
                model,
                tokenizer,
                mask_probability=data.mask_probability,
                isolate=data.isolate_documents,
                examples=any(corpus.answers for corpus in self.corpora),
            )
            longest = objective.longest_input(model)
            if data.block_size is not None and longest is not None and data.block_size > longest:
                raise ModelError(
                    f"`data.block_size` is {data.block_size}, but the model's longest input is {longest}. Set it to "
                    f"{longest} or less."
                )
            size = data.block_size or min(512, longest or 512)
            self._check_stride(objective, size)
            self._model_notes = [note for note in [router_note(text_config(model))] if note]
            self._setting = TextFormat(tokenizer, objective, kind_of(model), size)
            with contextlib.suppress(EverlearnError):  # a method that does not fit is reported by the checks
                self._costs = costs_of(self.recipe.methods(), model)
        return self._setting

    def settled(self) -> dict[str, Any]:
        """Return the values in effect of keys whose defaults depend on the model; None if a key has no effect."""
        setting, model = self.setting(), self.recipe.model
        masked = setting.objective.name == "masked"
        return {
            "data.block_size": setting.block_size,
            "data.isolate_documents": setting.objective.isolate,
            "data.mask_probability": self.recipe.data.mask_probability if masked else None,
            "model.tokenizer": None if model.tokenizer == model.path else model.tokenizer,
        }

    def _check_stride(self, objective: Objective, size: int) -> None:
        stride = self.recipe.evaluation.stride
        if stride is not None and not isinstance(objective, Causal):
            raise RecipeError(
                f"`evaluation.stride` is {stride}, but the objective is '{objective.name}': only a causal model is "
                "scored in overlapping windows. Remove it."
            )
        if stride is not None and stride > size:
            raise RecipeError(
                f"`evaluation.stride` is {stride}, but a window has {wording.count(size, 'token')} "
                "(`data.block_size`): tokens "
                f"between windows would not be scored. Set it to {size} or less."
            )

    @property
    def corpora(self) -> tuple[Domain, ...]:
        """Return the domains, and the general text if the recipe names it."""
        return (*self.recipe.domains, *([] if self.recipe.general is None else [self.recipe.general]))

    def prepared(self, name: str) -> Prepared:
        """Return the token blocks of a domain or of the general text; they are built once and cached."""
        if name not in self._prepared:
            format_ = self.setting()
            corpus = next(corpus for corpus in self.corpora if corpus.name == name)
            with self.processes.main_process_first(), self.reporter.activity(f"Reading {name}", None) as done:
                self._prepared[name] = prepare(
                    corpus,
                    format_.tokenizer,
                    format_.kind,
                    format_.block_size,
                    seed=self.recipe.run.seed,
                    cache=self.recipe.data.cache,
                    isolated=format_.objective.isolate,
                    predicted=format_.objective.predicted_share,
                    progress=done,
                )
            if corpus.continues is not None:
                self._check_same_text(corpus, corpus.continues)
        return self._prepared[name]

    def _check_same_text(self, again: Domain, first: str) -> None:
        """Refuse a domain that continues another with different text if the end of the text is held out.

        The end of the new text is not that of the old one, so rows that were held out would be learnt.
        """
        index = next(number for number, domain in enumerate(self.recipe.domains, 1) if domain.name == first)
        if self.folder.finished(index, first):  # its text may have grown since, or be gone
            before = read(StageFacts, self.folder.stage(index, first) / "stage.json").held_out_end
        else:
            before = self.prepared(first).held_out_end
        if before not in ("unknown", self._prepared[again.name].held_out_end):
            raise DataError(
                f"Domain '{again.name}' continues '{first}' with different text. Of a text with few documents the end "
                f"is held out, so what '{first}' held out would be learnt. Learn the new text alone, as a domain of "
                "its own, without `continues`."
            )

    def costs(self) -> list[Cost]:
        """Return the additional cost of each method over plain training."""
        self.setting()
        return self._costs

    def steps(self, domain: str) -> int:
        """Return the optimizer steps of a stage: `train.max_steps`, or those of `train.num_train_epochs` passes."""
        args = self.arguments(domain)
        if args.max_steps > 0:
            return args.max_steps
        source = self.prepared(domain).train
        if source.size is None:
            raise RecipeError("A streaming corpus has no length: set `train.max_steps`.")
        return max(1, int(args.num_train_epochs * source.size / self.rows_per_step(args)))

    def arguments(self, domain: str, steps: int = -1) -> TrainingArguments:
        """Return the training arguments of a domain, apart from its folder and seed."""
        return training_arguments(self.recipe.train_of(domain), self.folder.path, self.recipe.run.seed, steps)

    def all_arguments(self) -> list[TrainingArguments]:
        """Return the training arguments of every domain."""
        return [self.arguments(domain.name) for domain in self.recipe.domains]

    def rows_per_step(self, args: TrainingArguments) -> int:
        """Return the rows of one optimizer step: of all processes and micro-batches."""
        return args.per_device_train_batch_size * args.gradient_accumulation_steps * self.devices

    # -- models and methods -----------------------------------------------------------------------------------

    def some_model(self) -> nn.Module:
        """Return the base model, or the first stage that has weights if the base model is no longer available."""
        return self._base_or_stage(functools.partial(load_model, seed=self.recipe.run.seed))

    def some_tokenizer(self) -> Any:
        """Return the base model's tokenizer, or the copy in the first stage."""
        return self._base_or_stage(load_tokenizer)

    def _base_or_stage(self, load: Callable[[Model], T]) -> T:
        try:
            return load(self.recipe.model)
        except ModelError:
            for index, domain in enumerate(self.recipe.domains, 1):
                place = self.folder.stage(index, domain.name)
                if place.is_dir() and not self.folder.without_weights(index, domain.name):
                    return load(Model(path=str(place), attn_implementation=self.recipe.model.attn_implementation))
            raise

    def model_after(self, index: int) -> nn.Module:
        """Load the model after a stage, in float32; 0 is the base model."""
        if index == 0:
            return load_model(self.recipe.model, self.recipe.run.seed)
        name = self.recipe.domains[index - 1].name
        if self.folder.without_weights(index, name):
            raise ModelError(
                f"The weights of stage {index} ('{name}') of {self.folder.path} were removed: `run.keep_stages` is "
                f"{self.recipe.run.keep_stages}. Set it to `all`, in a new run, to keep them."
                if self.recipe.run.keep_stages != "all"
                else f"The weights of stage {index} ('{name}') are not in {self.folder.path}: it began from an export."
            )
        return self.load(self.folder.stage(index, name))

    def saved_after(self, index: int, copy: Path) -> str:
        """Return a path from which transformers can load the model after a stage; write a copy if there is none.

        Args:
            index: number of the stage; 0 is the base model.
            copy: folder for models that are stored nowhere in this form: random weights, a certain revision, or a
                base model with an adapter.
        """
        base = self.recipe.model
        if index == 0 and base.path is not None and base.config is None and base.revision is None:
            return base.path
        if index > 0 and self.has_weights(index):
            place = self.folder.stage(index, self.recipe.domains[index - 1].name)
            if not (place / ADAPTER).is_file():
                return str(place)
        model: Any = self.model_after(index)
        model.save_pretrained(copy)
        return str(copy)

    def has_weights(self, index: int) -> bool:
        """Return whether :meth:`model_after` has weights to load; the base model is assumed to be available."""
        if index == 0:
            return True
        name = self.recipe.domains[index - 1].name
        return self.folder.finished(index, name) and not self.folder.without_weights(index, name)

    def carried_to(self, index: int) -> optimizer_state.Carried | None:
        """Return the optimizer state with which a stage begins; None for a fresh one."""
        if self.recipe.optimizer == "reset" or index == 1:
            return None
        return optimizer_state.load(self.folder.stage(index - 1, self.recipe.domains[index - 2].name))

    def checkpoints(self, count: int) -> Checkpoints:
        """Return the models before a stage, for its methods; only stages with intact checksums are read."""
        return Checkpoints(count, self._sealed_model_after)

    def _sealed_model_after(self, index: int) -> nn.Module:
        if index > 0:
            self.must_be_learnt(index, self.recipe.domains[index - 1].name)
        return self.model_after(index)

    def load(self, place: Path) -> nn.Module:
        """Load a model that this run saved, in float32."""
        base = functools.partial(load_model, self.recipe.model, self.recipe.run.seed)
        if (place / ADAPTER).is_file():
            return with_adapter(base, str(place))
        return load_weights(
            str(place),
            self.recipe.model.attn_implementation,
            trust_remote_code=self.recipe.model.trust_remote_code,
        )

    def adapter_of(self, model: nn.Module, methods: Sequence[Method]) -> PeftAdapter | None:
        """Return everything that the stream has changed in the base model as one adapter, if it can be one."""
        base = functools.partial(self.model_after, 0)
        try:
            adapters = [method.peft_adapter(model, base) for method in methods]
        except ModelError as error:  # the base model is no longer available
            if not all(method.merges for method in methods):
                raise
            self.reporter.say(f"The stage keeps no adapter: {error}")
            return None
        return next((adapter for adapter in adapters if adapter is not None), None)

    def to_train(self, model: nn.Module, device: torch.device, methods: Sequence[Method]) -> nn.Module:
        """Put a stage's model on the device for training; quantise it there if the recipe asks for adapters on it."""
        options = self.recipe.model.quantization_config
        if options is None or not any(method.adds_peft for method in methods):
            return model.to(device)
        return quantised(model, options, device)  # type: ignore[arg-type]

    def methods_after(self, index: int) -> list[Method]:
        """Return the methods in the order in which they act, with their memory after a stage."""
        methods = in_order(self.recipe.methods())
        if index > 0:
            load_memories(self.folder.stage(index, self.recipe.domains[index - 1].name) / MEMORY, methods)
        return methods

    def must_be_learnt(self, index: int, name: str) -> None:
        """Raise ``RunError`` unless the stage of a domain is there and intact."""
        if self.folder.finished(index, name):
            return
        if self.folder.results_file.is_file() and name in Results.load(self.folder.results_file).domains:
            raise RunError(
                f"Domain '{name}' was learnt, but its model is no longer in {self.folder.path}. `everlearn bench` "
                "removes the models of finished cells unless it is told to `--keep` them; "
                f"`{wording.command('resume', self.folder.path)}` would train this one again."
            )
        raise RunError(f"Domain '{name}' is not learnt yet: `{wording.command('resume', self.folder.path)}` first.")

    # -- a stage ----------------------------------------------------------------------------------------------

    def stage(self, index: int, domain: Domain, methods: list[Method]) -> Stage:
        """Return the view of a domain's training that methods get before it begins."""
        format_ = self.setting()
        args = self.arguments(domain.name, steps=1)
        model = self.to_train(self.model_after(index - 1), args.device, methods)
        for parameter in frozen_parameters(model, self.recipe.model.frozen):
            parameter.requires_grad_(False)
        for method in methods:
            with seeded(self.recipe.run.seed, index, method.name, "prepare"):
                model = method.prepare_model(model)
        prepared, steps, rows = self.prepared(domain.name), self.steps(domain.name), self.rows_per_step(args)
        general = None
        if self.recipe.general is not None:
            name = self.recipe.general.name
            general = DeferredBlocks(name, lambda: self.prepared(name).train)
        return Stage(
            index=index,
            domain=domain.name,
            earlier=tuple(d.name for d in self.recipe.domains[: index - 1]),
            model=model,
            tokenizer=format_.tokenizer,
            objective=format_.objective.reseeded(self.recipe.run.seed, index, "mask"),
            source=prepared.train.fresh(seed_for(self.recipe.run.seed, index, "order")).along(steps * rows),
            general=general,
            batch_size=args.per_device_train_batch_size,
            rows_per_step=rows,
            seed=self.recipe.run.seed,
            steps=steps,
            sharded=bool(args.fsdp) and self.processes.num_processes > 1,
            checkpoints=self.checkpoints(index),
            folder=self.folder.training(index, domain.name),
            phase=self.phase,
        )

    def notes(self) -> list[str]:
        """Return notes for the reader of the results."""
        precision = next((name for name in ("bf16", "fp16") if self.recipe.train.get(name)), "float32")
        notes = [f"Weights and optimizer are float32; the computation is {precision}."]
        if (quantised_to := self.recipe.model.quantization_config) is not None:
            bits = 4 if quantised_to.get("load_in_4bit") else 8
            notes = [
                f"Adapters were trained on weights in {bits} bits and added to the float32 weights, which are what is "
                f"saved and scored; the computation is {precision}."
            ]
        if (kept := self.recipe.run.stage_dtype) != "float32":
            notes.append(
                f"Stages keep weights in {kept} (`run.stage_dtype`): these are scored, and the next domain begins with "
                "them."
            )
        if (why := self.setting().objective.why_shared) != "":
            notes.append(f"Documents that share a row see each other, because of the model: {why}.")
        elif self.setting().objective.leaks:
            notes.append(
                "Documents that share a row see each other (as in most published work on encoders); "
                "`data.isolate_documents: true` hides them from each other."
            )
        return [*notes, *self._model_notes, *self.data_notes(), *self.recipe.run.notes]

    def data_notes(self) -> list[str]:
        """Return the warnings of the checks and of reading the data, from the start of the run and from now."""
        read = []
        if self._prepared:
            setting = self.setting()
            read = notes_of(self.corpora, self._prepared, setting.block_size, len(setting.tokenizer))
        notes = dict.fromkeys([*self.folder.data_notes(), *read, *self.warnings])
        if not notes:
            return []
        # Results and reports are shared, so local folders are left out.
        return list(dict.fromkeys(without_folders([*notes], paths_of(self.recipe.to_yaml()))))
