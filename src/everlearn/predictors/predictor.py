"""Define what a task evaluates: a checkpoint, an ensemble, a model chosen for each text, or a checkpoint with an
adapter.

A task uses a predictor only through this interface. A method can replace the predictor of an evaluation
(:meth:`everlearn.methods.base.Method.test_predictor`). A new predictor overrides :meth:`Predictor.label_losses`, and
those of the other methods that it supports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import ModelError
from everlearn.model.modes import evaluating
from everlearn.model.objectives import Objective
from everlearn.model.sharding import resharded
from everlearn.predictors.decoding import Continuation, Ending, continuation, decode

Batch = Mapping[str, Tensor]
Prepare = Callable[[nn.Module], nn.Module]
"""Given a classifier before it is fine-tuned, returns the one to train: adapters, gates and prompts are put back."""
Tune = Callable[[nn.Module, Prepare | None], nn.Module]
"""Fine-tunes a copy of a checkpoint; returns the classifier, in evaluation mode."""


class Predictor:
    """Base class of everything that tasks evaluate. Evaluation never trains it."""

    def label_losses(self, batch: Batch) -> Tensor:
        """Nats of each label, [B, K]; 0 where there is no label (:data:`everlearn.model.objectives.IGNORE`).

        An ensemble mixes probabilities: ``-logsumexp(-losses of its members) + log(members)``.
        """
        raise self._cannot("gives no losses of labels")

    def row_losses(self, batch: Batch) -> Tensor:
        """Mean nats per label of each row, [B]."""
        losses = self.label_losses(batch)
        return losses.sum(1) / (batch["labels"] != -100).sum(1).clamp(min=1)

    def certainty(self, batch: Batch) -> Tensor:
        """Where each label is predicted, its nats, those of the likeliest token, and the entropy of the distribution,
        [3, B, K] float64; 0 where there is no label."""
        raise self._cannot("does not say how certain it is")

    def likely(self, batch: Batch) -> Tensor:
        """Return log-probabilities of the whole vocabulary for each label, [B, K, V] float64; for few labels only."""
        raise self._cannot("does not fill blanks")

    def fine_tuned(self, tune: Tune) -> Predictor:
        """Return a predictor with :meth:`class_probabilities`: every model inside it is fine-tuned by `tune`."""
        raise self._cannot("cannot be fine-tuned (`end_tasks` of kind classification)")

    def class_probabilities(self, inputs: Batch) -> Tensor:
        """Probabilities of the classes, [B, classes], of a predictor that was :meth:`fine_tuned`."""
        raise self._cannot("was not fine-tuned to classify")

    def generate(self, inputs: Batch, *, max_new_tokens: int, stop: Sequence[int]) -> list[list[int]]:
        """Return greedy continuations of the rows, without the prompt and truncated at the first id in `stop`.

        Args:
            inputs: ``input_ids`` [B, S] padded on the left (on the right for an encoder-decoder), ``attention_mask``.
            max_new_tokens: maximum number of tokens for each row.
            stop: ids that end an answer.
        """
        return self.write(inputs, Ending(max_new_tokens, stop))

    def write(self, inputs: Batch, ending: Ending) -> list[list[int]]:
        """Continuations of the rows, without the prompt; `inputs` as in :meth:`generate`."""
        return decode(self.continuation(inputs), ending)

    def continuation(self, inputs: Batch) -> Continuation:
        """Yield log-probabilities of the next token, step by step, for :meth:`generate`; the inputs are the same."""
        raise self._cannot("does not generate")

    def _cannot(self, what: str) -> ModelError:
        return ModelError(f"{type(self).__name__} {what}. Leave the task out, or test another method.")


@dataclass(frozen=True)
class Checkpoint(Predictor):
    """One model, as it reads a text.

    Attributes:
        model: with its language-model head and whatever a method put in; or a classifier, when :meth:`fine_tuned`.
        objective: scores its losses; None where it only classifies.
        plain: the checkpoint without additions, from which a classifier is built. Default: `model` itself.
        prepare: puts a method's additions into a classifier; None where there are none.
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
        # In float64, so that no two logits become one probability.
        return torch.softmax(self.model(**inputs).logits.float(), -1, dtype=torch.float64)

    def _objective(self) -> Objective:
        if self.objective is None:
            raise self._cannot("has no objective")
        return self.objective


@contextlib.contextmanager
def at_rest(models: Iterable[nn.Module], device: torch.device | str, bf16: bool) -> Iterator[None]:
    """Inside, every model is in evaluation mode and nothing is kept for a backward pass."""
    with contextlib.ExitStack() as stack:
        for model in models:
            stack.callback(resharded, model)  # in the middle of a training under FSDP2 no backward pass does it
            stack.enter_context(evaluating(model))
        # Not inference_mode: what a model caches inside it (rotary tables) could never be trained with again.
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16))
        yield


def models_of(predictor: Predictor) -> list[nn.Module]:
    """Return the models inside a predictor, to set their mode or device."""
    found: list[nn.Module] = []
    for value in vars(predictor).values():
        parts: Any = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if isinstance(part, nn.Module):
                found.append(part)
            elif isinstance(part, Predictor):
                found += models_of(part)
    return list(dict.fromkeys(found))
