"""The loop over domains. Read this file first.

A run is a sequence of files: scores of the base model, then for each domain a stage folder and the scores after it.
Each is written atomically and depends only on the files before it, the recipe and the seed. So `run`, `resume` and
`learn` are the same loop, which computes what is missing, in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from everlearn import files, report, wording
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.errors import RunError, did_you_mean
from everlearn.evaluation.results import Results
from everlearn.methods.base import Method
from everlearn.methods.sequential import PLAIN
from everlearn.model.loading import class_with_vision, has_own_code, own_module
from everlearn.report.run_results import RunResults
from everlearn.run import exported_run, inputs
from everlearn.run.checks import checks, listed
from everlearn.run.collect_results import Outcome
from everlearn.run.folder import RunFolder
from everlearn.run.interruption import Interruption
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Reporter
from everlearn.run.remaining_work import look_ahead
from everlearn.run.scoring import Scorer
from everlearn.run.stage_training import StageTraining
from everlearn.run.weight_movement import measure_movement


class ContinualLearner(OpenRun):
    """Train a language model on one domain after another, and measure what it learns and forgets.

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
        recipe: the whole configuration as one object; alternatively, pass its groups by name.
        model: hub id, folder, or a model in memory, which is then saved in the run folder.
        tokenizer: hub id, folder or a tokenizer; the model's own by default.
        domains: the domains in training order: `Domain` objects or mappings of their keys; or a mapping from names to
            paths, texts, datasets or keys. Texts in memory (`{"name": …, "data": texts}`) are a list of texts or a
            split of a dataset.
        methods: one method, or several that are combined: objects, names or mappings.
        general: general text on which drift is measured: a path, texts or keys.
        end_tasks: the tasks on which checkpoints are evaluated: objects or mappings.
        train: ``TrainingArguments`` by their own names.
        folder: the run folder; its name is also the default name of the run.
        reporter: receives progress messages; none are sent by default.
        **groups: other groups of the recipe, as mappings: ``data``, ``evaluation``, ``run``, ``objective``.

    Raises:
        RecipeError: a key or value is wrong.
    """

    def __init__(
        self,
        recipe: Recipe | None = None,
        *,
        model: str | Path | Mapping[str, Any] | PreTrainedModel | None = None,
        tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
        domains: inputs.Domains = (),
        methods: inputs.MethodLike | Sequence[inputs.MethodLike] = PLAIN,
        general: inputs.General | None = None,
        end_tasks: Sequence[inputs.Task] = (),
        train: Mapping[str, Any] | None = None,
        folder: Path | str | None = None,
        reporter: Reporter | None = None,
        **groups: Any,
    ) -> None:
        if recipe is None:
            raw: dict[str, Any] = {"train": {} if train is None else train, **groups}
            if folder is not None:
                own = raw.get("run", {})
                named = {"name": Path(folder).name, "folder": str(folder)}
                raw["run"] = {**named, **own} if isinstance(own, Mapping) else own
            recipe = inputs.recipe(raw, model, tokenizer, domains, methods, general, end_tasks)
        super().__init__(recipe, reporter)
        self.interruption = Interruption()

    @classmethod
    def open(cls, folder: Path | str, reporter: Reporter | None = None) -> ContinualLearner:
        """Open an existing run folder."""
        learner = cls(RunFolder(folder).recipe(), reporter=reporter)
        learner.folder = RunFolder(folder)
        return learner

    @classmethod
    def from_export(cls, source: Path | str, folder: Path | str, reporter: Reporter | None = None) -> ContinualLearner:
        """Create a run that continues from an exported model and its memory; call :meth:`learn` with the next domain.

        Args:
            source: folder or hub id of an export made with `everlearn export --with-memory`.
            folder: the folder of the new run.
            reporter: receives progress messages; none are sent by default.

        Raises:
            RunError: the export has no memory, is damaged or cannot be reached, or the folder is taken.
        """
        return cls.open(exported_run.unpack(exported_run.find(str(source)), Path(folder)).path, reporter)

    # -- the three ways to continue, and the loop that they share ---------------------------------------------

    def run(self) -> RunResults:
        """Start a new run and complete it."""
        self.check()
        self.processes.wait_for_everyone()  # all processes must have checked that the folder is free
        if self.processes.is_main_process:
            self.folder.create(self.recipe)
        self.processes.wait_for_everyone()
        return self.resume()

    def resume(self) -> RunResults:
        """Complete the run: train every missing stage and compute every missing score, in order.

        Raises:
            RunError: the folder holds a run of another recipe, or another process works on it.
        """
        if self.folder.recipe().model_dump() != self.recipe.model_dump():
            raise RunError(f"{self.folder.path} holds a run of another recipe. Set another `run.name` or `run.folder`.")
        with self.folder.lock(self.processes.is_main_process), self.interruption.of(self.folder.path):
            if self.processes.is_main_process:
                self.folder.clean_up()
                self.folder.complete()
            self.processes.wait_for_everyone()
            inputs.check_kept(self.recipe, self.folder)
            if self._is_finished():
                add = wording.command("learn", self.folder.path, "--domain", "NAME=PATH")
                self.reporter.say(f"{self.folder.path} is finished. To add a domain: `{add}`.")
                return RunResults.load(self.folder.path)
            if self.processes.is_main_process:
                self.folder.keep_data_findings(self.data_notes(), self.leaked)
            for note in self.notes():
                self.reporter.say(note)
            look_ahead(self)
            scorer = self.scorer()
            scorer.prepare()
            scorer.score(0)
            for index, domain in enumerate(self.recipe.domains, 1):
                while not self.folder.finished(index, domain.name):
                    self.train_stage(index, domain, self.methods_after(index - 1))
                scorer.score(index)
                if self.processes.is_main_process:
                    measure_movement(self, index)
                self._thin(index)
                if not self.goes_on(index):
                    break
            if self.recipe.evaluation.alone:
                self.train_alone(scorer)
            return self._finish()

    def goes_on(self, index: int) -> bool:
        """Return whether to continue after domain `index`: always in a run; a search may stop a trial."""
        return True

    def measured(self) -> Results:
        """Return the measurements so far."""
        return Outcome(self.recipe, self.folder).results(self.setting().objective.name, self.notes(), self.settled())

    def _is_finished(self) -> bool:
        """Return whether the run is complete; every stage is checked for missing or damaged files."""
        stages = [self.folder.finished(index, domain.name) for index, domain in enumerate(self.recipe.domains, 1)]
        return all(stages) and Outcome(self.recipe, self.folder).is_current()

    def _thin(self, index: int) -> None:
        """Remove the weights of earlier stages that `run.keep_stages` does not keep, once stage `index` is scored."""
        keep = self.recipe.run.keep_stages
        if keep != "all" and self.processes.is_main_process:
            for old in range(1, index + 1 - (1 if keep == "last" else keep)):
                self.folder.thin(old, self.recipe.domains[old - 1].name)
        self.processes.wait_for_everyone()

    def _finish(self) -> RunResults:
        """Write ``results.json``, the model card and the report."""
        results = self.measured()
        if self.processes.is_main_process:
            results.save(self.folder.results_file)
            recipe = files.read_text(self.folder.recipe_file)
            saved = self.folder.stage(len(self.recipe.domains), self.recipe.domains[-1].name)
            card = report.model_card(
                results,
                recipe,
                folder=self.folder.path,
                architecture=class_with_vision(self.recipe.model, saved),
                own_module=own_module(self.recipe.model, saved),
                own_code=has_own_code(saved),
            )
            files.write_text(self.folder.card_file, card)
            report.write_report([self.folder.path], self.folder.report_file)
            Outcome(self.recipe, self.folder).set_mark()
        self.processes.wait_for_everyone()
        return RunResults.of(results, self.folder.path)

    def learn(self, domain: inputs.DomainLike, end_tasks: Iterable[inputs.Task] = ()) -> RunResults:
        """Learn one more domain from the saved model and memory, at any later time. No earlier training data is read.

        Args:
            domain: a `Domain`, or a mapping of its keys; its `train` options override those of the run. With
                `continues` it is an earlier domain that is learnt again.
            end_tasks: additional tasks on which checkpoints are evaluated from now on.

        Raises:
            RunError: the earlier domains of the run are not all learnt yet, or one of them has this name.
            RecipeError: a key or value of the domain is wrong.
        """
        new = inputs.domain(domain, self.recipe.data.cache)
        for index, known in enumerate(self.recipe.domains, 1):
            self.must_be_learnt(index, known.name)
            again = f", or learn more of it: `{wording.command('learn', self.folder.path, '--more', known.name)}`"
            _refuse_taken(new, known.name, f"{self.folder.path} has learnt a domain", again)
        raw, tasks = self.recipe.model_dump(mode="json"), inputs.tasks(end_tasks)
        for task, existing in itertools.product(tasks, self.recipe.tasks):
            _refuse_taken(task, existing.name, f"{self.folder.path} has an end task")
        before = self.recipe, dict(self._prepared), list(self.warnings)
        self.recipe = self.recipe.changed(domains=[*raw["domains"], new], end_tasks=[*raw["end_tasks"], *tasks])
        self._setting = None
        try:
            self.check(only=new["name"])
        except BaseException:
            # Nothing has started yet: restore the state, so that the next call can correct the mistake.
            self.recipe, self._prepared, self.warnings = before
            self._setting = None
            raise
        with self.folder.lock(self.processes.is_main_process):  # another process may be training by this recipe
            if self.processes.is_main_process:
                recipes.save(self.recipe, self.folder.recipe_file)
        self.processes.wait_for_everyone()
        return self.resume()

    def tested(self, domain: str | None = None, after: str | None = None) -> nn.Module:
        """Return the model as it was evaluated after a domain.

        Everything that a method adds at test time (adapters, gates, prompts) is attached; the stage folder alone leaves
        it out. For methods that add nothing this is the model of the stage. Classifiers that are fine-tuned on end
        tasks start from the same model. No text is read. Call it in one process only.

        ```python
        model = ContinualLearner.open("runs/first").tested("papers")
        ```

        Args:
            domain: the domain whose texts the model will read; None for general text. A domain that is not learnt yet
                is read like general text.
            after: the last domain that the model has learnt; by default the last one of the stream.

        Returns:
            A new model on the device of the run, in evaluation mode.

        Raises:
            RunError: there is no such domain, it is not learnt yet, or its model was removed.
        """
        names = [known.name for known in self.recipe.domains]
        for name in (domain, after):
            if name is not None and name not in names:
                raise RunError(f"The run has no domain '{name}'.{did_you_mean(name, names)}")
        row = len(names) if after is None else names.index(after) + 1
        self.must_be_learnt(row, names[row - 1])
        return self.scorer().tested(row, domain).eval()

    # -- one stage --------------------------------------------------------------------------------------------

    def train_stage(self, index: int, domain: Domain, methods: list[Method]) -> None:
        """Train on one domain, starting from the previous model, and seal the stage folder.

        A domain that has forgotten too much (`stop`) is not sealed: it is trained again, from its best step.
        """
        training = StageTraining(self, index, domain, methods, self.interruption)
        training.begin()
        if training.train():
            training.end()
            training.save()

    def train_alone(self, scorer: Scorer) -> None:
        """Train one model for each domain alone, from the base model and without a method."""
        for domain in self.recipe.domains:
            if not domain.held_out:
                continue
            recipe = self.recipe.changed(
                domains=[domain.model_dump(mode="json")],
                method=[PLAIN],
                optimizer="reset",
                end_tasks=[],
                evaluation=self.recipe.evaluation.model_dump(mode="json") | {"every": None, "tasks_every": None},
                stop=None,
            )
            alone = ContinualLearner(recipe, reporter=self.reporter)
            alone.folder = self.folder.alone(domain.name)
            alone.interruption, alone.forecast = self.interruption, self.forecast
            if not alone.folder.finished(1, domain.name):
                if self.processes.is_main_process:
                    alone.folder.path.mkdir(parents=True, exist_ok=True)
                self.reporter.say(f"{domain.name} alone, from the base model")
                alone.train_stage(1, domain, recipe.methods())
            scorer.score_alone(domain.name, alone.folder.stage(1, domain.name))

    def check(self, only: str | None = None) -> None:
        """Validate the run without training and raise the first error (:mod:`run.checks`).

        Args:
            only: a domain that is added after the others; the data of the others need not exist any more.
        """
        with self.reporter.activity("Checking recipe, model and data", len(listed(self, only))) as done:
            for number, outcome in enumerate(checks(self, only), 1):
                if outcome.error is not None:
                    raise outcome.error
                done(number)

    def scorer(self) -> Scorer:
        """Return a new scorer of this run."""
        return Scorer(self)


def _refuse_taken(new: Mapping[str, Any], known: str, what: str, instead: str = "") -> None:
    """Raise RunError if a name is taken, ignoring case: names become file names, and some file systems ignore case."""
    if str(new.get("name")).lower() == known.lower():
        raise RunError(f"{what} '{known}' already. Use another name{instead}.")
