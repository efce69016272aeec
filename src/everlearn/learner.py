"""The loop over domains. Read this file first.

A run is a sequence of files: scores of the base model, then for each domain a stage folder and the scores after it.
Each is made atomically from the ones before it, by functions of the recipe and the seed alone. So `run`, `resume` and
`learn` are the same loop: make what is missing, in order.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import nn
from transformers import TrainingArguments

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.config.arguments import training_arguments
from everlearn.config.recipe import General, Model, Recipe
from everlearn.data import prepare
from everlearn.data.blocks import BlockSource, DeferredBlocks
from everlearn.data.corpus import Domain
from everlearn.data.endtask import TaskConfig
from everlearn.data.loader import BlockLoader
from everlearn.data.mixing import Mixture
from everlearn.data.prepare import Prepared
from everlearn.errors import ModelError, RecipeError, RunError, did_you_mean
from everlearn.evaluation.results import Results
from everlearn.methods.base import Method, Setting, Stage
from everlearn.methods.engine.protection import Protection, check_carrying, check_methods
from everlearn.methods.stage import Checkpoints
from everlearn.model.anatomy import kind_of
from everlearn.model.gathering import Blueprint
from everlearn.model.loading import load_model, load_tokenizer, load_weights
from everlearn.model.objectives import make_objective, unwrap
from everlearn.model.text_format import TextFormat
from everlearn.report import model_card, write_report
from everlearn.run import carrying
from everlearn.run.curves import Curves
from everlearn.run.folder import RunFolder, step_of
from everlearn.run.interruption import Interruption
from everlearn.run.memory import peak_memory, reset_peak_memory
from everlearn.run.outcome import Outcome
from everlearn.run.progress import Reporter
from everlearn.run.scoring import Scorer
from everlearn.run.trainer import MEMORY, StageTrainer, load_memories, save_memories, save_model
from everlearn.run.wanted import sets_inside
from everlearn.seeding import seed_for, seeded, set_all


class ContinualLearner:
    """Teaches a language model one domain after another, and measures what it learnt and forgot.

    ```python
    learner = ContinualLearner(
        model="FacebookAI/roberta-base",
        domains=[Domain(name="reviews", path="reviews.jsonl"), Domain(name="papers", path="papers.txt")],
        methods=[DAS()],
        train={"max_steps": 1000, "per_device_train_batch_size": 32},
        folder="runs/first",
    )
    results = learner.run()
    ```

    Args:
        recipe: everything in one object; or leave it out and give its groups by name.
        model: hub id or folder.
        domains: in the order in which they are learnt.
        methods: method objects, names or mappings.
        general: general text, whose drift is measured.
        end_tasks: what checkpoints are asked.
        train: ``TrainingArguments`` by their own names.
        folder: the run folder; also decides the run's name.
        reporter: who is told what is going on; nobody when left out.
        **groups: other groups of the recipe, as mappings: ``data``, ``evaluation``, ``run``, ``objective``.

    Raises:
        RecipeError: a key or value is wrong.
    """

    def __init__(
        self,
        recipe: Recipe | None = None,
        *,
        model: str | None = None,
        domains: Sequence[Domain] = (),
        methods: Sequence[Method | str | dict[str, Any]] = ("sequential",),
        general: General | str | None = None,
        end_tasks: Sequence[TaskConfig] = (),
        train: dict[str, Any] | None = None,
        folder: Path | str | None = None,
        reporter: Reporter | None = None,
        **groups: Any,
    ) -> None:
        if recipe is None:
            raw: dict[str, Any] = {"model": model, "train": train or {}, **groups}
            raw["domains"] = [domain.model_dump(exclude_unset=True) for domain in domains]
            raw["end_tasks"] = [{"kind": task.kind} | task.model_dump(exclude_unset=True) for task in end_tasks]
            raw["method"] = [_spec(method) for method in methods]
            if general is not None:
                raw["general"] = general if isinstance(general, str) else general.model_dump(exclude_unset=True)
            if folder is not None:
                raw["run"] = {"name": Path(folder).name, "folder": str(folder)} | dict(raw.get("run", {}))
            recipe = recipes.parse(raw)
        self.recipe = recipe
        self.folder = RunFolder(recipe.folder())
        # One process evaluates while the others wait: longer than the ten minutes after which they would give up.
        # As TrainingArguments are made: told nothing, accelerate makes no group of processes without an accelerator.
        cpu = bool(recipe.train.get("use_cpu", not torch.accelerator.is_available()))
        self.processes = PartialState(cpu=cpu, timeout=datetime.timedelta(days=2))
        self.reporter = reporter if reporter is not None and self.processes.is_main_process else Reporter()
        self.interruption = Interruption()
        self._prepared: dict[str, Prepared] = {}
        self._setting: TextFormat | None = None

    @classmethod
    def open(cls, folder: Path | str, reporter: Reporter | None = None) -> ContinualLearner:
        """The learner of an existing run folder."""
        learner = cls(RunFolder(folder).recipe(), reporter=reporter)
        learner.folder = RunFolder(folder)
        return learner

    # -- the three ways to continue, and the loop that they share ---------------------------------------------

    def run(self) -> Results:
        """Start a new run and take it to its end."""
        self.folder.check_free(self.recipe)
        self.check()
        if self.processes.is_main_process:
            self.folder.create(self.recipe)
        self.processes.wait_for_everyone()
        return self.resume()

    def resume(self) -> Results:
        """Make everything that is missing, in order.

        Raises:
            RunError: the folder holds a run of another recipe, or another process works on it.
        """
        if self.folder.recipe().model_dump() != self.recipe.model_dump():
            raise RunError(f"{self.folder.path} holds a run of another recipe. Set another `run.name` or `run.folder`.")
        with self.folder.lock(self.processes.is_main_process), self.interruption.of(self.folder.path):
            if self.processes.is_main_process:
                self.folder.clean_up()
            self.processes.wait_for_everyone()
            if self._is_finished():
                return Results.load(self.folder.results_file)
            for note in self.notes():
                self.reporter.say(note)
            scorer = self.scorer()
            scorer.prepare()
            scorer.score(0)
            for index, domain in enumerate(self.recipe.domains, 1):
                if not self.folder.finished(index, domain.name):
                    self.train_stage(index, domain, self.methods_after(index - 1))
                scorer.score(index)
                self._thin(index)
            if self.recipe.evaluation.alone:
                self.train_alone(scorer)
            return self._finish()

    def _is_finished(self) -> bool:
        """Whether there is nothing to make; looks at every stage, whole or damaged."""
        stages = [self.folder.finished(index, domain.name) for index, domain in enumerate(self.recipe.domains, 1)]
        return all(stages) and Outcome(self.recipe, self.folder).is_current()

    def _thin(self, index: int) -> None:
        """After a stage is learnt and scored, remove the weights that `run.keep_stages` does not keep."""
        keep = self.recipe.run.keep_stages
        if keep != "all" and self.processes.is_main_process:
            for old in range(1, index + 1 - (1 if keep == "last" else keep)):
                self.folder.thin(old, self.recipe.domains[old - 1].name)
        self.processes.wait_for_everyone()

    def _finish(self) -> Results:
        """Write ``results.json``, the model card and the report."""
        outcome = Outcome(self.recipe, self.folder)
        results = outcome.results(self.setting().objective.name, self.notes())
        if self.processes.is_main_process:
            results.save(self.folder.results_file)
            recipe = self.folder.recipe_file.read_text(encoding="utf-8")
            files.write_text(self.folder.card_file, model_card(results, recipe, folder=self.folder.path))
            write_report([self.folder.path], self.folder.report_file)
            outcome.set_mark()
        self.processes.wait_for_everyone()
        return results

    def learn(self, domain: Domain, end_tasks: Iterable[TaskConfig] = ()) -> Results:
        """Months later: learn one more domain from the saved model and memory. No old data is read.

        Raises:
            RunError: the run's earlier domains are not all learnt yet, or one of them has this name.
        """
        for index, known in enumerate(self.recipe.domains, 1):
            self._must_be_learnt(index, known.name)
            if known.name == domain.name:
                raise RunError(f"{self.folder.path} has learnt a domain '{known.name}' already. Use another name.")
        raw = self.recipe.model_dump(mode="json")
        raw["domains"].append(domain.model_dump(mode="json"))
        raw["end_tasks"] += [task.model_dump(mode="json") for task in end_tasks]
        self.recipe = recipes.parse(raw)
        self._setting = None
        self.check(only=domain.name)
        if self.processes.is_main_process:
            recipes.save(self.recipe, self.folder.recipe_file)
        self.processes.wait_for_everyone()
        return self.resume()

    def tested(self, domain: str | None = None, after: str | None = None) -> nn.Module:
        """The model that was scored: after a domain, as it reads held-out texts.

        Adapters, gates and prompts that a method reads a text with are put in, which the stage's folder alone leaves
        out; before an end task is fine-tuned they are put into the classifier alike. Of any other method this is the
        stage's model. No domain's text is read, unless a method chooses by what the run holds out of it. To be called
        in one process.

        ```python
        model = ContinualLearner.open("runs/first").tested("papers")
        ```

        Args:
            domain: whose texts are to be read; None for general text. Before it is learnt they are read as other
                text is.
            after: the last domain that the model has learnt; the stream's last one when left out.

        Returns:
            A new model on the run's device, for inference.

        Raises:
            RunError: there is no such domain, it is not learnt yet, or its model was removed.
        """
        names = [known.name for known in self.recipe.domains]
        for name in (domain, after):
            if name is not None and name not in names:
                raise RunError(f"The run has no domain '{name}'.{did_you_mean(name, names)}")
        row = len(names) if after is None else names.index(after) + 1
        self._must_be_learnt(row, names[row - 1])
        return self.scorer().tested(row, domain).eval()

    def _must_be_learnt(self, index: int, name: str) -> None:
        if self.folder.finished(index, name):
            return
        if self.folder.results_file.is_file() and name in Results.load(self.folder.results_file).domains:
            raise RunError(
                f"Domain '{name}' was learnt, but its model is not in {self.folder.path} any more. `everlearn bench` "
                "removes the models of finished cells unless it is told to `--keep` them; `everlearn resume "
                f"{self.folder.path}` would train this one again."
            )
        raise RunError(f"Domain '{name}' is not learnt yet: `everlearn resume {self.folder.path}` first.")

    # -- one stage --------------------------------------------------------------------------------------------

    def train_stage(self, index: int, domain: Domain, methods: list[Method]) -> None:
        """Learn one domain from the model before it, and seal its stage folder."""
        started = time.monotonic()
        reset_peak_memory()
        stage = self.stage(index, domain, methods)
        training = self.folder.training(index, domain.name)
        checkpoint = self.folder.checkpoint(index, domain.name, self.reporter.say)
        if self.processes.is_main_process:
            self.folder.forget_log_after(index, step_of(checkpoint) if checkpoint is not None else 0)
        if checkpoint is not None:
            load_memories(checkpoint / MEMORY, methods)
            stage.step = step_of(checkpoint)
        protection = Protection(methods, stage)
        source = protection.begin()

        args = training_arguments(
            self.recipe.train_of(domain.name), training, seed_for(stage.seed, index) % 2**31, stage.steps
        )
        loader = BlockLoader(
            source,
            stage.objective,
            args.per_device_train_batch_size,
            stage.steps * args.gradient_accumulation_steps,
            self.processes.process_index,
            self.processes.num_processes,
        )
        curves = self._curves(stage, loader)
        # TensorBoard's callback knows no other way; the stage's own folder of checkpoints is removed at its end.
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(self.folder.path / "tensorboard" / domain.name)
        with self.reporter.activity(
            f"Learning {domain.name} ({index}/{len(self.recipe.domains)})", stage.steps
        ) as done:
            trainer = StageTrainer(
                protection=protection,
                loader=loader,
                args=args,
                progress=done,
                log=self.folder.log,
                callbacks=[*curves, self.interruption.callback()],
                carried=self.carried_to(index),
            )
            blueprint = Blueprint(stage.model) if trainer.is_fsdp_enabled else None
            set_all(stage.seed, index, "train", self.processes.process_index)
            trainer.fit(checkpoint)
        self.interruption.stop_here()
        trainer.check_finite()
        trainer.check_weights()
        carried = trainer.optimizer_state() if self.recipe.optimizer == "carry" else None
        stage.model = unwrap(stage.model) if blueprint is None else blueprint.filled(stage.model)
        # Accelerate leaves mixed precision on the model itself; what methods measure now, they measure in float32.
        for name in ("forward", "_original_forward"):
            vars(stage.model).pop(name, None)
        protection.end()

        facts = {
            "domain": domain.name,
            "index": index,
            "steps": stage.steps,
            "seconds": round(time.monotonic() - started + trainer.seconds_before, 3),
            "training_seconds": round(trainer.seconds, 3),
            "peak_memory_bytes": peak_memory(),
            "tokens": trainer.tokens,
            "final_loss": trainer.last_loss,
            "mixture": _shares(source),
            "fingerprint": stage.source.fingerprint,
        }
        if self.processes.is_main_process:
            model = stage.model
            for method in reversed(methods):
                model = method.export(model)
            with files.new_folder(self.folder.stage(index, domain.name)) as folder:
                save_model(model, stage.tokenizer, folder)
                save_memories(folder / MEMORY, methods)
                if carried is not None:
                    carrying.save(folder, carried)
                files.write_json(folder / "stage.json", facts)
            shutil.rmtree(training, ignore_errors=True)
        self.processes.wait_for_everyone()

    def _curves(self, stage: Stage, loader: BlockLoader) -> list[Curves]:
        """What scores held-out text inside the stage (`evaluation.every`)."""
        every = self.recipe.evaluation.every
        if every is None:
            return []
        scorer = self.scorer()
        # Drawn by one process before training began; every process takes part, as sharded weights need.
        sets = [scorer.held_out(name) for name in sets_inside(self.recipe, stage.index)]
        line = {"stage": stage.index, "domain": stage.domain}
        write = (lambda found: self.folder.log(line | found)) if self.processes.is_main_process else None
        how = scorer.conditions(stage.index)
        return [Curves(every, sets, how, lambda: unwrap(stage.model), lambda: loader.tokens, write)]

    def stage(self, index: int, domain: Domain, methods: list[Method]) -> Stage:
        """What the methods see of a domain's training, before it begins."""
        format_ = self.setting()
        model: nn.Module = self.model_after(index - 1)
        for method in methods:
            with seeded(self.recipe.run.seed, index, method.name, "prepare"):
                model = method.prepare_model(model)
        prepared = self.prepared(domain.name)
        general = None
        if self.recipe.general is not None:
            name = self.recipe.general.name
            general = DeferredBlocks(name, lambda: self.prepared(name).train)
        args = training_arguments(self.recipe.train_of(domain.name), self.folder.path, 0, 1)
        return Stage(
            index=index,
            domain=domain.name,
            earlier=tuple(d.name for d in self.recipe.domains[: index - 1]),
            model=model.to(args.device),
            tokenizer=format_.tokenizer,
            objective=format_.objective.reseeded(self.recipe.run.seed, index, "mask"),
            source=prepared.train.fresh(seed_for(self.recipe.run.seed, index, "order")),
            general=general,
            batch_size=args.per_device_train_batch_size,
            rows_per_step=self.rows_per_step(args),
            seed=self.recipe.run.seed,
            steps=self.steps(domain.name),
            checkpoints=self.checkpoints(index),
        )

    def train_alone(self, scorer: Scorer) -> None:
        """Train each domain alone from the base model, with no method: FT in the causal study."""
        for domain in self.recipe.domains:
            recipe = self.recipe.changed(
                domains=[domain.model_dump(mode="json")],
                method=["sequential"],
                end_tasks=[],
                evaluation=self.recipe.evaluation.model_dump(mode="json") | {"every": None},
            )
            alone = ContinualLearner(recipe, reporter=self.reporter)
            alone.folder = RunFolder(self.folder.path / "alone" / domain.name)
            alone.interruption = self.interruption
            if not alone.folder.finished(1, domain.name):
                alone.train_stage(1, domain, recipe.methods())
            scorer.score_alone(domain.name, alone.folder.stage(1, domain.name))

    # -- what a stage is made of ------------------------------------------------------------------------------

    def check(self, only: str | None = None) -> None:
        """Everything that can be wrong with the recipe, checked without training.

        Args:
            only: check the data of this domain alone (the others are learnt and need not be there any more).
        """
        self.check_methods(self.some_model())
        for domain in self.recipe.domains:
            training_arguments(self.recipe.train_of(domain.name), self.folder.path, self.recipe.run.seed)
        for domain in self.recipe.domains:
            if only in (None, domain.name):
                self.steps(domain.name)
        if self.recipe.general is not None and only is None:
            self.prepared(self.recipe.general.name)
        self.scorer().check_end_tasks()

    def check_methods(self, model: nn.Module) -> None:
        """Refuse methods that do not fit the model, the objective or each other."""
        methods = tuple(self.recipe.methods())
        if self.recipe.optimizer == "carry":
            check_carrying(methods)
        format_ = self.setting(model)
        check_methods(
            methods,
            Setting(
                model=model,
                objective=format_.objective,
                methods=methods,
                has_peft=any(method.adds_peft for method in methods),
                has_general=self.recipe.general is not None,
                block_size=format_.block_size,
            ),
        )

    def setting(self, model: nn.Module | None = None) -> TextFormat:
        """How text becomes what the model reads: the same for the whole run."""
        if self._setting is None:
            if model is None:
                model = self.some_model()
            tokenizer = self.some_tokenizer()
            vocabulary = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
            if len(tokenizer) > vocabulary:
                raise ModelError(
                    f"The tokenizer '{tokenizer.name_or_path}' has {len(tokenizer)} tokens and the model embeddings "
                    f"for {vocabulary}: they do not belong together (`model.tokenizer`)."
                )
            data = self.recipe.data
            objective = make_objective(
                self.recipe.objective,
                model,
                tokenizer,
                mask_probability=data.mask_probability,
                isolate=data.isolate_documents,
            )
            longest = objective.longest_input(model)
            if data.block_size is not None and longest is not None and data.block_size > longest:
                raise ModelError(
                    f"`data.block_size` is {data.block_size}, but the model's longest input is {longest}. Set it to "
                    f"{longest} or less."
                )
            size = data.block_size or min(512, longest or 512)
            self._setting = TextFormat(tokenizer, objective, kind_of(model), size)
        return self._setting

    def prepared(self, name: str) -> Prepared:
        """The token blocks of a domain, or of the general text, made once and cached."""
        if name not in self._prepared:
            format_ = self.setting()
            general = [self.recipe.general] if self.recipe.general is not None else []
            corpus = next(domain for domain in (*self.recipe.domains, *general) if domain.name == name)
            with self.processes.main_process_first():
                self.reporter.say(f"Reading {name}")
                self._prepared[name] = prepare(
                    corpus,
                    format_.tokenizer,
                    format_.kind,
                    format_.block_size,
                    seed=self.recipe.run.seed,
                    cache=self.recipe.data.cache,
                )
        return self._prepared[name]

    def steps(self, domain: str) -> int:
        """Optimizer steps of a stage: `train.max_steps`, or as many as `train.num_train_epochs` (3) passes take."""
        source = self.prepared(domain).train
        args = training_arguments(self.recipe.train_of(domain), self.folder.path, 0)
        if args.max_steps > 0:
            return args.max_steps
        if source.size is None:
            raise RecipeError("A streaming corpus has no length: set `train.max_steps`.")
        return max(1, int(args.num_train_epochs * source.size / self.rows_per_step(args)))

    def rows_per_step(self, args: TrainingArguments) -> int:
        """Rows of all processes and micro-batches in one optimizer step."""
        return args.per_device_train_batch_size * args.gradient_accumulation_steps * self.processes.num_processes

    def some_model(self) -> nn.Module:
        """The base model; years later, when it is not to be had any more, the first stage that has its weights."""
        try:
            return load_model(self.recipe.model, self.recipe.run.seed)
        except ModelError:
            if (model := self._first_stage()) is None:
                raise
            return load_model(model)

    def some_tokenizer(self) -> Any:
        """The base model's tokenizer, or the copy in the first stage."""
        try:
            return load_tokenizer(self.recipe.model)
        except ModelError:
            if (model := self._first_stage()) is None:
                raise
            return load_tokenizer(model)

    def _first_stage(self) -> Model | None:
        for index, domain in enumerate(self.recipe.domains, 1):
            place = self.folder.stage(index, domain.name)
            if place.is_dir() and not self.folder.without_weights(index, domain.name):
                return Model(path=str(place), attn_implementation=self.recipe.model.attn_implementation)
        return None

    def model_after(self, index: int) -> nn.Module:
        """The model after a stage in float32; 0 is the base model."""
        if index == 0:
            return load_model(self.recipe.model, self.recipe.run.seed)
        name = self.recipe.domains[index - 1].name
        if self.folder.without_weights(index, name):
            raise ModelError(
                f"The weights of stage {index} ('{name}') of {self.folder.path} were removed: `run.keep_stages` is "
                f"{self.recipe.run.keep_stages}. Set it to `all`, in a new run, to keep them."
            )
        return self.load(self.folder.stage(index, name))

    def carried_to(self, index: int) -> carrying.Carried | None:
        """The optimizer's state that a stage goes on from; None for a fresh one."""
        if self.recipe.optimizer == "reset" or index == 1:
            return None
        return carrying.load(self.folder.stage(index - 1, self.recipe.domains[index - 2].name))

    def checkpoints(self, count: int) -> Checkpoints:
        """The models before a stage, for its methods: only those that are sealed and whole are read."""
        return Checkpoints(count, self._sealed_model_after)

    def _sealed_model_after(self, index: int) -> nn.Module:
        if index > 0:
            self._must_be_learnt(index, self.recipe.domains[index - 1].name)
        return self.model_after(index)

    def load(self, place: Path) -> nn.Module:
        """A model that this run saved, in float32."""
        return load_weights(str(place), self.setting().kind, self.recipe.model.attn_implementation)

    def methods_after(self, index: int) -> list[Method]:
        """The methods with what they remember after a stage."""
        methods = self.recipe.methods()
        if index > 0:
            load_memories(self.folder.stage(index, self.recipe.domains[index - 1].name) / MEMORY, methods)
        return methods

    def notes(self) -> list[str]:
        """What a reader of the results should know."""
        precision = next((name for name in ("bf16", "fp16") if self.recipe.train.get(name)), "float32")
        notes = [f"Weights and optimizer are float32; the computation is {precision}."]
        if self.setting().objective.leaks:
            notes.append(
                "Documents that share a row see each other (as in most published work on encoders); "
                "`data.isolate_documents: true` hides them from each other."
            )
        cut = {name: prepared.truncated for name, prepared in self._prepared.items() if prepared.truncated}
        notes += [f"{count} examples of '{name}' were longer than a row and cut." for name, count in cut.items()]
        return [*notes, *self.recipe.run.notes]

    def scorer(self) -> Scorer:
        """What measures this run."""
        return Scorer(self)


def _shares(source: BlockSource) -> list[dict[str, Any]]:
    if not isinstance(source, Mixture):
        return []
    realised = source.realised
    return [{"source": name, "asked": asked, "realised": realised[name]} for name, asked in source.asked.items()]


def _spec(method: Method | str | dict[str, Any]) -> dict[str, Any] | str:
    if isinstance(method, Method):
        return {"name": method.label, **method.config.model_dump(mode="json", exclude_unset=True)}
    return method
