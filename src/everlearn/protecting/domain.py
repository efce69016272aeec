"""The lifecycle of one domain in an external training: check, begin, end, save the memory."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from everlearn import files, wording
from everlearn.errors import MethodError, RunError
from everlearn.methods.base import Method, Setting, Stage, build
from everlearn.methods.engine.protection import Protection, check_methods, overrides
from everlearn.methods.stage import Checkpoints
from everlearn.model.objectives import make_objective
from everlearn.model.sharding import Blueprint
from everlearn.model.training_mode import as_its_class_computes
from everlearn.model.vocabulary import new_token_ids
from everlearn.model.vocabulary_head import output_head
from everlearn.protecting.external_data import AnsweredPrompts, Collator, Examples, as_block, padded
from everlearn.protecting.external_objectives import external_objective
from everlearn.protecting.external_text import ExternalObjective, as_text
from everlearn.protecting.held_out import OneText, ScoredText, general_text
from everlearn.protecting.memory import MemoryFolder
from everlearn.protecting.report import MaskAtWork, ProtectionReport, other_means
from everlearn.run.stage_files import load_memories, save_memories
from everlearn.seeding import seeded

STATE, WRITTEN = "everlearn.json", "written-rows.safetensors"
NEEDS_A_RUN = {
    "attach": "changes the model itself while a domain is learnt (adapters, gates, prompts, growth), which is not "
    "everlearn's here",
    "prepare_model": "wraps the model, which is not everlearn's here",
    "starting_weights": "takes weights from earlier models, which only a run folder keeps",
    "trained_labels": "learns something else in place of a batch's own loss, which is the trainer's here",
}
"""Hooks that do not work in an external training, and why."""


class ProtectedDomain:
    """The common part of a protected trainer and a protected loop.

    Args:
        model: the unwrapped model, before the domain.
        methods: names, mappings with options, or method objects.
        memory: the memory folder.
        dataset: the examples of the domain.
        collator: makes a batch of examples.
        tokenizer: the tokenizer, if there is one.
        domain: name of the domain; numbered by default.
        batch_size: batch size of measurements.
        rows_per_step: rows of an optimizer step, over all processes and micro-batches.
        steps: number of optimizer steps, if known.
        seed: seed of measurements and of replay.
        held_out: text that is scored before and after.
        general: text that methods measure general knowledge on.
        flattening: advice for users whose collator puts several examples into one row.
        bf16: whether text is scored in bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        methods: Sequence[str | Mapping[str, Any] | Method],
        memory: str | Path,
        *,
        dataset: Any,
        collator: Collator,
        tokenizer: Any,
        domain: str | None,
        batch_size: int,
        rows_per_step: int,
        steps: int,
        seed: int,
        held_out: Sequence[ScoredText] = (),
        general: OneText | None = None,
        flattening: str = "Use a collator that makes a row of each example",
        bf16: bool = False,
    ) -> None:
        built = [build(method) for method in methods]
        self.folder = MemoryFolder(Path(memory))
        index = len(self.folder.domains) + 1
        name = domain if domain is not None else f"domain-{index}"
        if name in self.folder.domains:
            raise MethodError(
                f"Domain '{name}' is learnt already ({memory} knows {', '.join(self.folder.domains)}). To learn more "
                f"of it, give it another name, such as `domain='{name}-2'`."
            )
        if not name or "/" in name:
            raise MethodError(f"`domain` is '{name}', which is not a valid name of a folder. Give another one.")
        self.examples = Examples(dataset, seed, name)
        self.written = self._written(collator, seed, name)
        text = general_text(general, model, tokenizer, seed)
        objective = external_objective(
            model,
            tokenizer,
            self.examples.taken_by(collator) if self.written is None else padded,
            None if text is None else make_objective(None, model, tokenizer),
        )
        stage = Stage(
            index=index,
            domain=name,
            earlier=tuple(self.folder.domains),
            model=model,
            tokenizer=tokenizer,
            objective=objective,
            source=self.examples if self.written is None else self.written,
            general=text,
            batch_size=batch_size,
            seed=seed,
            steps=steps,
            rows_per_step=rows_per_step,
            checkpoints=Checkpoints(index, self._earlier),
        )
        _refuse(built, self.examples, objective, model, self.written is not None)
        setting = Setting(
            model=model,
            objective=objective,
            methods=tuple(built),
            has_peft=any(isinstance(module, BaseTunerLayer) for module in model.modules()),
            has_general=text is not None,
            block_size=0,
        )
        check_methods(built, setting)
        _warn_of_frozen_rows(model)
        self.folder.load(built)
        self.protection = Protection(built, stage)
        self.objective, self.begun = objective, False
        self._held_out, self._bf16, self._flattening = held_out, bf16, flattening
        self._start: dict[str, Tensor] = {}
        self._passes, self._added = 0, dict[str, Tensor]()
        self._masks: dict[str, MaskAtWork] = {}
        self._mixed = False
        self._report: ProtectionReport | None = None

    @property
    def stage(self) -> Stage:
        """The stage that the methods see."""
        return self.protection.stage

    def begin(self) -> Any:
        """Measure, and return the dataset to train on: the original, or a list with other examples mixed in.

        The list is one pass over the dataset and the other examples.
        """
        self.begun = True
        self.folder.check_unchanged()
        self._check_batches()
        for text in self._held_out:
            text.measure(self.stage.model, self.stage.batch_size, self._bf16)
            text.base = self.folder.base_scores.get(text.name)
        if any(overrides(method, "final_weights") for method in self.protection.methods):
            self._start = {name: p.detach().to("cpu", copy=True) for name, p in self.stage.model.named_parameters()}
        before = self.stage.source
        with as_its_class_computes(self.stage.model):
            source = self.protection.begin()
        self._mixed = source is not before
        if not self._mixed:
            return self.examples.dataset
        rows = list(islice(source, source.size))
        for row in rows:
            if self.written is not None or set(row) != set(as_block(self.examples.first)):
                raise MethodError(
                    f"'{source.name}' has rows that are not like the examples of this trainer ({', '.join(row)}), so "
                    "they cannot be mixed in. Add such examples to the dataset before training, and remove the method "
                    "that mixes them in."
                )
        return [self.examples.as_example(row) for row in rows]

    def beside(
        self, model: nn.Module, batch: dict[str, Tensor], compute: Callable[[], Any]
    ) -> tuple[Any, dict[str, Tensor]]:
        """Run the training loss on a batch and return it with the losses of the methods (:meth:`Protection.beside`)."""
        result, extra = self.protection.beside(model, batch, compute)
        self._passes += 1
        for name, value in extra.items():
            self._added[name] = value.detach() + self._added.get(name, 0)
        return result, extra

    @property
    def report(self) -> ProtectionReport:
        """The report of the training.

        Raises:
            RunError: the training has not ended.
        """
        if self._report is None:
            raise RunError("The protected training has not ended yet, so there is no report of it.")
        return self._report

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a batch of the external trainer in the format of the objective."""
        if self.written is not None and any(method.needs.importance_pass for method in self.protection.methods):
            self.written.add(as_text(inputs))
        return self.objective.read(inputs)

    def goes_on_from(self, before: ProtectedDomain) -> None:
        """Take over the counts that the report needs from an interrupted training that this one continues."""
        self._passes, self._added, self._masks = before._passes, before._added, before._masks_at_work()

    def _masks_at_work(self) -> dict[str, MaskAtWork]:
        now = {
            name: MaskAtWork(count, 1 - mean, str(applies_to))
            for name, (applies_to, count, mean) in self.protection.masked().items()
        }
        return self._masks | now

    def finish(self, writes: bool, events: Sequence[str] = (), blueprint: Blueprint | None = None) -> None:
        """Measure what was learnt and forgotten, write the memory (on one process), and create the report.

        Args:
            writes: whether this process writes the memory.
            events: what happened during the training, one sentence each.
            blueprint: the structure of the model before FSDP2 divided it; None if it is complete.
        """
        self._masks, stage = self._masks_at_work(), self.stage
        with as_its_class_computes(stage.model):
            self.protection.end(blueprint)
        forgetting = [text.forgetting(stage.model, stage.batch_size, self._bf16) for text in self._held_out]
        if stage.index == 1:
            self.folder.base_scores = {text.name: text.before for text in self._held_out}
        self.folder.save(self.protection.methods, stage.domain, writes)
        place = self.folder.newest if writes else None
        self._report = ProtectionReport(
            domain=stage.domain,
            earlier=tuple(stage.earlier),
            methods=tuple(getattr(method, "title", method.name) for method in self.protection.methods),
            steps=stage.step,
            penalties={name: float(value) / self._passes for name, value in self._added.items()},
            masks=self._masks,
            other_means=other_means(self.protection.methods, self._mixed),
            memory=place,
            memory_bytes=0 if place is None else sum(file.stat().st_size for file in place.iterdir()),
            forgetting=tuple(forgetting),
            events=tuple(events),
        )

    def abandon(self) -> None:
        """Remove all hooks from the model after a failed training."""
        self.protection.release()

    def _written(self, collator: Collator, seed: int, name: str) -> AnsweredPrompts | None:
        """Return a source for rows that the trainer generates, if its collator does not return a batch (GRPO)."""
        with seeded(seed, "look", name):
            collated = self.examples.taken_by(collator)([as_block(self.examples.first)])
        return None if isinstance(collated, Mapping) else AnsweredPrompts(name)

    def _earlier(self, number: int) -> nn.Module:
        """Return a copy of the model that the domain started from.

        Raises:
            MethodError: another one is requested; only run folders store those.
        """
        stage = self.stage
        if number != stage.index - 1 or (stage.step and not self._start):
            raise MethodError(
                "Of the earlier models, this training has the one that it starts from; the others are kept in a run "
                "folder (`everlearn run`)."
            )
        with as_its_class_computes(stage.model):
            model = copy.deepcopy(stage.model).float().cpu()
        with torch.no_grad():
            for name, weight in self._start.items():
                model.get_parameter(name).copy_(weight)
        return model

    def _check_batches(self) -> None:
        """Collate two examples now, so that a measurement after the training cannot fail on their format."""
        if self.written is not None:
            return
        methods = self.protection.methods
        with seeded(self.stage.seed, "check", self.stage.domain):
            blocks = list(islice(self.examples.fresh(self.stage.seed), min(2, self.examples.size)))
            if any(method.needs.importance_pass for method in methods):
                batch = self.objective.collate(blocks, range(len(blocks)))
                device = next(self.stage.model.parameters()).device
                self.objective.check_measurable({name: value.to(device) for name, value in batch.items()})
            for method in methods:
                if overrides(method, "views") and self.objective.flattens(blocks):
                    raise MethodError(
                        f"Method '{method.label}' takes each row of a batch for an example, and here a batch has one "
                        f"row with all examples. {self._flattening}."
                    )

    def save_state(self, folder: Path, writes: bool = True) -> None:
        """Save the state of the methods beside a checkpoint in the middle of the domain (on one process)."""
        save_memories(folder, self.protection.methods, writes)
        if not writes:
            return
        if self.written is not None and self.written.size:
            self.written.save(folder / WRITTEN)
        facts = {"domain": self.stage.domain, "step": self.stage.step, "rows": self.protection.rows}
        files.write_json(folder / STATE, facts)

    def load_state(self, folder: Path) -> None:
        """Restore the state of the methods; call it before :meth:`begin`.

        Raises:
            RunError: there is no state, or it belongs to another domain.
        """
        if not (folder / STATE).is_file():
            raise RunError(f"{folder} has no {STATE}: the checkpoint was not written by a protected training.")
        facts = files.read_json(folder / STATE)
        if facts["domain"] != self.stage.domain:
            raise RunError(
                f"{folder} is a checkpoint of domain '{facts['domain']}', and this is '{self.stage.domain}': either "
                "its domain was finished, or `memory` is another folder."
            )
        load_memories(folder, self.protection.methods)
        if self.written is not None and (folder / WRITTEN).is_file():
            self.written.load(folder / WRITTEN)
        self.stage.step, self.protection.rows = int(facts["step"]), int(facts["rows"])


def _refuse(
    methods: Sequence[Method], examples: Examples, objective: ExternalObjective, model: nn.Module, written: bool
) -> None:
    """Raise ``MethodError`` for methods that cannot work in an external training."""
    for method in methods:
        for hook, why in NEEDS_A_RUN.items():
            if overrides(method, hook) and not method.adopts(model):
                may_adopt = type(method).adopts is not Method.adopts
                own = "Give it a model with LoRA adapters (`peft.get_peft_model`), or use" if may_adopt else "Use"
                raise MethodError(f"Method '{method.label}' {why}. {own} it with `everlearn run`.")
        if method.needs.predictions and output_head(model) is None:
            raise MethodError(
                f"Method '{method.label}' reads what a model predicts of text, and '{type(model).__name__}' predicts "
                "none: it has no vocabulary head. Use a penalty on the weights, such as 'mas'."
            )
        if method.needs.losses and not objective.has_losses:
            raise MethodError(
                f"Method '{method.label}' measures on the loss of single examples, and the loss of an embedding model "
                "compares the examples of a batch. Use 'mas', which measures on the embeddings, or a penalty that "
                "measures nothing ('l2_sp', 'si')."
            )
        if not method.needs.old_data:
            continue
        if overrides(method, "views"):
            raise MethodError(
                f"Method '{method.label}' runs kept rows beside each batch, so that all must be equally wide, which a "
                "collator that is not everlearn's does not promise. Use 'replay', or `everlearn run`."
            )
        if written:
            raise MethodError(
                f"Method '{method.label}' keeps examples of earlier domains, and the examples of this trainer are "
                "prompts in words, to which the model writes the answers. To train on earlier prompts again, add them "
                "to its dataset (`datasets.concatenate_datasets`), and leave the method out."
            )
        if not examples.keepable:
            raise MethodError(
                f"Method '{method.label}' keeps examples, but those of this dataset are not lists of token ids under "
                "names alone. Tokenise the dataset before training, and drop its other columns. If the trainer adds "
                "some that it needs (`precompute_ref_log_probs=True`), leave that option out."
            )


def _warn_of_frozen_rows(model: nn.Module) -> None:
    """Warn if the model was given tokens whose embeddings this training does not change."""
    core: Any = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    new = [] if core is None else new_token_ids(core)
    if new and not any(parameter.requires_grad for parameter in core.get_input_embeddings().parameters()):
        warnings.warn(
            f"The model was extended by {wording.count(len(new), 'token')}, whose embeddings this training leaves as "
            "they are. Let the adapter train them (PEFT's `trainable_token_indices=model.config.new_token_ids`), or "
            "train all weights in the first domain.",
            stacklevel=2,
        )


def scaled_sum(extra: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return the sum of the methods' losses, 0 if there are none."""
    return torch.stack([value.to(like.dtype) for value in extra.values()]).sum() if extra else like.new_zeros(())
