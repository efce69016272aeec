"""Train one domain: the methods begin, the trainer trains, the methods end, and the stage folder is saved."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.config.arguments import training_arguments
from everlearn.data.corpus import Domain
from everlearn.data.loader import BlockLoader
from everlearn.data.mixing import shares
from everlearn.evaluation import make_task
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import Protection
from everlearn.model.number_format import recast
from everlearn.model.sharding import Blueprint
from everlearn.model.vocabulary_head import unwrap, without_mixed_precision
from everlearn.run import optimizer_state
from everlearn.run.checkpoint import notes_in, step_of
from everlearn.run.compiled_layers import compiled_layers
from everlearn.run.forecast import AROUND, PASSES
from everlearn.run.forgetting_guard import ForgettingGuard
from everlearn.run.interruption import Interruption
from everlearn.run.measurement_plan import sets_inside, tasks_inside
from everlearn.run.mid_stage_scores import StageCurves
from everlearn.run.open_run import OpenRun
from everlearn.run.peak_memory import peak_memory, reset_peak_memory
from everlearn.run.progress import Advance
from everlearn.run.remaining_work import StageLog, declared_passes, look_ahead
from everlearn.run.scoring import Scorer
from everlearn.run.stage_files import MEMORY, load_memories, save_memories, save_model
from everlearn.run.trainer import StageTrainer
from everlearn.seeding import seed_for, set_all


class StageTraining:
    """Train one domain. Call :meth:`begin`, :meth:`train`, :meth:`end` and :meth:`save`, once each and in this order.

    Args:
        run: the run.
        index: number of the domain in the stream, from 1.
        domain: the domain.
        methods: the methods, with their memory of the domains before.
        interruption: says when the user stops the run.
    """

    def __init__(
        self, run: OpenRun, index: int, domain: Domain, methods: list[Method], interruption: Interruption
    ) -> None:
        self.run, self.index, self.domain, self.methods = run, index, domain, methods
        self.interruption, self.writes = interruption, run.processes.is_main_process
        self.time = _StageTime(run, index)
        reset_peak_memory()
        self.stage = run.stage(index, domain, methods)
        self.guard = (
            None if run.recipe.stop is None else ForgettingGuard.of_run(run.recipe, run.folder, index, self.writes)
        )
        self.protection = Protection(methods, self.stage)
        self.carried: optimizer_state.Carried | None = None
        self._shown_notes: list[str] = []

    def begin(self) -> None:
        """Load the latest checkpoint, if there is one, and let the methods begin the domain."""
        run, stage = self.run, self.stage
        self.checkpoint = run.folder.checkpoint(self.index, self.domain.name, run.reporter.say)
        self.steps = stage.steps
        if self.guard is not None:
            self.checkpoint = self.guard.begins(self.checkpoint)
            self.steps = stage.steps if self.guard.end is None else self.guard.end
        if self.writes and self.steps == stage.steps:
            run.folder.forget_log_after(self.index, step_of(self.checkpoint) if self.checkpoint is not None else 0)
        if self.checkpoint is not None:
            load_memories(self.checkpoint / MEMORY, self.methods)
            stage.notes = notes_in(self.checkpoint)
            stage.step = step_of(self.checkpoint)
        self._shown_notes = list(stage.notes)
        if self.writes:
            stage.log = lambda line: run.folder.log(self._log_prefix | line)
        self.source = self.protection.begin()
        stage.notes = list(dict.fromkeys(stage.notes))  # a method may repeat a note that it made before the checkpoint
        self._report_notes()

    def train(self) -> bool:
        """Train to the last step; return False if `stop` takes steps back, and the domain must be trained again."""
        run, stage = self.run, self.stage
        options = run.recipe.train_of(self.domain.name)
        # TensorBoard's callback reads its folder only from here; the checkpoints are removed when the stage ends.
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(run.folder.path / "tensorboard" / self.domain.name)
        with run.reporter.activity(
            f"Learning {self.domain.name} ({self.index}/{len(run.recipe.domains)})", stage.steps
        ) as done:
            self.trainer = trainer = self._trainer(options, done)
            self.blueprint = Blueprint(stage.model) if trainer.is_fsdp_enabled else None
            set_all(stage.seed, self.index, "train", run.processes.process_index)
            with compiled_layers(stage.model, options), self.time.of_training(trainer):
                trainer.fit(self.checkpoint)
        self.interruption.stop_here()
        if self.guard is not None and self.guard.taken_back:
            run.processes.wait_for_everyone()  # all must have read the decision before one continues
            look_ahead(run)
            return False
        trainer.check_finite()
        trainer.check_weights()
        return True

    def end(self) -> None:
        """Take the trained model out of its distributed wrappers, and let the methods end the domain."""
        stage = self.stage
        if self.run.recipe.optimizer == "carry":
            self.carried = self.trainer.optimizer_state()
        self.trainer.free_optimizer()
        stage.model = without_mixed_precision(unwrap(stage.model))
        self.protection.end(self.blueprint)
        self._report_notes()

    def save(self) -> None:
        """Write the stage folder: the model, the methods' memory, and the facts of the training."""
        run, stage, name = self.run, self.stage, self.domain.name
        facts = self._facts()
        self.time.update_forecast(resumed=self.checkpoint is not None)
        if not self.writes:
            save_memories(Path(), self.methods, writes=False)
        else:
            model = stage.model
            for method in reversed(self.methods):
                model = method.export(model)
            adapter = run.adapter_of(model, self.methods)
            with (
                run.reporter.activity(f"Saving {name}", 1) as done,
                files.new_folder(run.folder.stage(self.index, name)) as folder,
            ):
                save_memories(folder / MEMORY, self.methods)  # first, as the other processes wait for it
                save_model(model, stage.tokenizer, folder, adapter, run.recipe.model)
                if run.recipe.run.stage_dtype != "float32":
                    recast(folder, run.recipe.run.stage_dtype)
                if self.carried is not None:
                    optimizer_state.save(folder, self.carried)
                files.write_json(folder / "stage.json", facts)
                done(1)
            shutil.rmtree(self._checkpoints, ignore_errors=True)
            run.folder.seal_log()
        run.processes.wait_for_everyone()
        if self.guard is not None:
            look_ahead(run)

    @property
    def _checkpoints(self) -> Path:
        return self.run.folder.training(self.index, self.domain.name)

    @property
    def _log_prefix(self) -> dict[str, Any]:
        """Return the keys that begin each line of the log."""
        return {"stage": self.index, "domain": self.domain.name}

    def _report_notes(self) -> None:
        """Report the notes that were not reported yet."""
        for note in self.stage.notes:
            if note not in self._shown_notes:
                self.run.reporter.say(note)
                self._shown_notes.append(note)

    def _trainer(self, options: dict[str, Any], done: Advance) -> StageTrainer:
        run, stage = self.run, self.stage
        args = training_arguments(options, self._checkpoints, seed_for(stage.seed, self.index) % 2**31, self.steps)
        loader = BlockLoader(
            self.source,
            stage.objective,
            args.per_device_train_batch_size,
            self.steps * args.gradient_accumulation_steps,
            run.processes.process_index,
            run.processes.num_processes,
        )
        guarding = [] if self.guard is None else [self.guard.callback()]
        trainer = StageTrainer(
            protection=self.protection,
            loader=loader,
            args=args,
            progress=done,
            log=StageLog(run, stage, stage.step),
            callbacks=[*self._curves(loader), *guarding, self.interruption.callback()],
            carried=run.carried_to(self.index),
            guard=self.guard,
        )
        if self.guard is not None:
            self.guard.spent = lambda: (trainer.tokens, trainer.seconds)
        return trainer

    def _curves(self, loader: BlockLoader) -> list[StageCurves]:
        """Return the callbacks that evaluate during the stage (`evaluation.every`, `tasks_every`, `stop`)."""
        run, stage, recipe = self.run, self.stage, self.run.recipe
        every = recipe.scored_every, recipe.evaluation.tasks_every
        if every == (None, None):
            return []
        scorer = Scorer(run)
        # One process collected them before training; all must evaluate them, as sharded weights need every process.
        sets = [] if every[0] is None else [scorer.held_out(name) for name in sets_inside(recipe, self.index)]
        tasks = [make_task(config) for config in tasks_inside(recipe)]
        write = (lambda scores: run.folder.log(self._log_prefix | scores)) if self.writes else None
        how = scorer.conditions(self.index)
        return [
            StageCurves(
                every, sets, tasks, how, lambda: unwrap(stage.model), lambda: loader.tokens, write, run, self.guard
            )
        ]

    def _facts(self) -> dict[str, Any]:
        """Return the content of ``stage.json``."""
        run, stage, trainer = self.run, self.stage, self.trainer
        facts = {
            "domain": self.domain.name,
            "index": self.index,
            "steps": self.steps,
            "seconds": round(self.time.seconds + trainer.seconds_before, 3),
            "training_seconds": round(self.time.trained + trainer.seconds_before, 3),
            "peak_memory_bytes": peak_memory(),
            "tokens": trainer.tokens,
            "final_loss": trainer.last_loss,
            "mixture": shares(self.source),
            "fingerprint": stage.source.fingerprint,
            "held_out_end": run.prepared(self.domain.name).held_out_end,
            "pass_steps": None if stage.source.size is None else max(1, stage.source.size // stage.rows_per_step),
            "notes": stage.notes,
        }
        return facts if self.guard is None else self.guard.facts(facts, stage.steps)


class _StageTime:
    """Measure where the time of a stage goes, for its facts and for the forecast of the run.

    Args:
        run: the run, whose forecast gets the passes that the methods declare for this stage.
        index: number of the domain.
    """

    def __init__(self, run: OpenRun, index: int) -> None:
        self._run, self._started, self._before = run, time.monotonic(), run.forecast.measured
        self._inside = self.trained = 0.0
        run.passes_left = declared_passes(run, index)
        self._later = run.forecast.ahead[PASSES] - run.passes_left

    @property
    def seconds(self) -> float:
        """Return the seconds of this session since the stage began."""
        return time.monotonic() - self._started

    @contextlib.contextmanager
    def of_training(self, trainer: StageTrainer) -> Iterator[None]:
        """Measure the training steps, with what is measured between them."""
        before = self._run.forecast.measured
        yield
        self._inside = self._run.forecast.measured - before
        self.trained = trainer.seconds - trainer.seconds_before

    def update_forecast(self, *, resumed: bool) -> None:
        """Tell the forecast what the stage took besides its training and the methods' passes."""
        forecast = self._run.forecast
        passes = forecast.measured - self._before - self._inside
        forecast.settle(PASSES, self._later, counts=not resumed)
        self._run.took(AROUND, 1, max(0.0, self.seconds - self.trained - passes))
