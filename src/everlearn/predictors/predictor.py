"""The interface of a predictor, which tasks evaluate, and the predictor that is one checkpoint.

A method can replace the predictor of an evaluation (:meth:`everlearn.methods.base.Method.test_predictor`). A new
predictor overrides :meth:`Predictor.label_losses`, and those of the other methods that it supports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import ModelError
from everlearn.model.objectives import IGNORE, Objective
from everlearn.model.sharding import resharded
from everlearn.model.training_mode import evaluating
from everlearn.predictors.decoding import Continuation, Ending, continuation, decode

Batch = Mapping[str, Tensor]
Prepare = Callable[[nn.Module], nn.Module]
"""Attaches the adapters, gates and prompts of methods to a classifier before it is fine-tuned."""
Tune = Callable[[nn.Module, Prepare | None], nn.Module]
"""Fine-tunes a copy of a checkpoint, and returns the classifier in evaluation mode."""


class Predictor:
    """Base class of everything that tasks evaluate. Evaluation never trains it."""

    def label_losses(self, batch: Batch) -> Tensor:
        """Return the nats of each label, [B, K]; 0 for `IGNORE`.

        An ensemble mixes probabilities: ``-logsumexp(-losses of its members) + log(members)``.
        """
        raise self._cannot("gives no losses of labels")

    def row_losses(self, batch: Batch) -> Tensor:
        """Return the mean nats per label of each row, [B]."""
        losses = self.label_losses(batch)
        return losses.sum(1) / (batch["labels"] != IGNORE).sum(1).clamp(min=1)

    def certainty(self, batch: Batch) -> Tensor:
        """Return for each label its nats, those of the most likely token, and the entropy, [3, B, K] float64.

        They are 0 for `IGNORE`.
        """
        raise self._cannot("does not say how certain it is")

    def likely(self, batch: Batch) -> Tensor:
        """Return log-probabilities of the whole vocabulary for each label, [B, K, V] float64; for few labels only."""
        raise self._cannot("does not fill blanks")

    def fine_tuned(self, tune: Tune) -> Predictor:
        """Return a predictor with :meth:`class_probabilities`: every model inside it is fine-tuned by `tune`."""
        raise self._cannot("cannot be fine-tuned (`end_tasks` of kind classification)")

    def class_probabilities(self, inputs: Batch) -> Tensor:
        """Return the probabilities of the classes, [B, classes], of a predictor that was :meth:`fine_tuned`."""
        raise self._cannot("was not fine-tuned to classify")

    def values(self, inputs: Batch) -> Tensor:
        """Return the values, [B, 1] float64, of a predictor that was :meth:`fine_tuned` to a regression."""
        raise self._cannot("predicts no values (`end_tasks` of kind glue, `task: sts-b`)")

    def generate(self, inputs: Batch, *, max_new_tokens: int, stop: Sequence[int]) -> list[list[int]]:
        """Return greedy continuations of the rows, without the prompt and truncated at the first id in `stop`.

        Args:
            inputs: ``input_ids`` [B, S] padded on the left (on the right for an encoder-decoder), ``attention_mask``.
            max_new_tokens: maximum number of tokens for each row.
            stop: ids that end an answer.
        """
        return self.write(inputs, Ending(max_new_tokens, stop))

    def write(self, inputs: Batch, ending: Ending) -> list[list[int]]:
        """Return continuations of the rows, without the prompt; `inputs` as in :meth:`generate`."""
        return decode(self.continuation(inputs), ending)

    def continuation(self, inputs: Batch) -> Continuation:
        """Yield log-probabilities of the next token, step by step, for :meth:`generate`; the inputs are the same."""
        raise self._cannot("does not generate")

    def _cannot(self, what: str) -> ModelError:
        return ModelError(f"{type(self).__name__} {what}. Leave the task out, or test another method.")


@dataclass(frozen=True)
class Checkpoint(Predictor):
    """One model.

    Attributes:
        model: with its language-model head and the modules of methods; or a classifier, when :meth:`fine_tuned`.
        objective: computes its losses; None if it only classifies.
        plain: the checkpoint without modules of methods, from which a classifier is built; `model` by default.
        prepare: attaches the modules of methods to a classifier; None if there are none.
    """

    model: nn.Module
    objective: Objective | None = None
    plain: nn.Module | None = None
    prepare: Prepare | None = None

    def label_losses(self, batch: Batch) -> Tensor:
        return self._objective().forward(self.model, batch).losses

    def row_losses(self, batch: Batch) -> Tensor:
        return self._objective().per_sample_loss(self.model, batch)

    def certainty(self, batch: Batch) -> Tensor:
        return self._objective().certainty(self.model, batch)

    def likely(self, batch: Batch) -> Tensor:
        return self._objective().log_probabilities(self.model, batch)

    def continuation(self, inputs: Batch) -> Continuation:
        return continuation(self.model, inputs)

    def fine_tuned(self, tune: Tune) -> Predictor:
        return replace(self, model=tune(self.model if self.plain is None else self.plain, self.prepare))

    def class_probabilities(self, inputs: Batch) -> Tensor:
        # In float64, so that different logits do not become equal by rounding.
        return torch.softmax(self.model(**inputs).logits.float(), -1, dtype=torch.float64)

    def values(self, inputs: Batch) -> Tensor:
        logits: Tensor = self.model(**inputs).logits
        return logits.double()

    def _objective(self) -> Objective:
        if self.objective is None:
            raise self._cannot("has no objective")
        return self.objective


@contextlib.contextmanager
def at_rest(models: Iterable[nn.Module], device: torch.device | str, bf16: bool) -> Iterator[None]:
    """Set models to evaluation mode and disable gradients inside the block."""
    with contextlib.ExitStack() as stack:
        for model in models:
            stack.callback(resharded, model)  # under FSDP2 only a backward pass would do this
            stack.enter_context(evaluating(model))
        # Not inference_mode: tensors that a model caches inside it (rotary tables) could not be used in training.
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16))
        yield


def models_of(predictor: Predictor) -> list[nn.Module]:
    """Return the models inside a predictor, to set their mode or device."""
    models: list[nn.Module] = []
    for value in vars(predictor).values():
        parts: Any = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if isinstance(part, nn.Module):
                models.append(part)
            elif isinstance(part, Predictor):
                models += models_of(part)
    return list(dict.fromkeys(models))
