"""Probe a model for `everlearn init`: its kind, size, maximum row length, and a batch that fits the memory.

Its configuration and its tokenizer are read; its weights are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from everlearn.commands.memory_estimate import ROOM, MemoryEstimate, Setup, memory_free
from everlearn.commands.recommendation import size_text
from everlearn.config.addresses import located
from everlearn.errors import RecipeError
from everlearn.methods import build
from everlearn.methods.engine.protection import costs_of
from everlearn.model.anatomy import Kind
from everlearn.model.loading import check_is_no_run, check_vocabulary, empty_model, load_config, load_tokenizer
from everlearn.model.objectives import make_objective
from everlearn.model.options import Model
from everlearn.model.structure import kind_of_config
from everlearn.run.disk import Sizes
from everlearn.wording import size


@dataclass(frozen=True)
class Fit:
    """The batch that fits.

    Attributes:
        rows: rows in a batch of the device; 1 if nothing fits.
        needs: estimated peak memory in bytes.
        free: free memory in bytes; None if unknown.
        device: the device of the memory.
        half: whether it computes in bfloat16.
    """

    rows: int
    needs: int
    free: int | None
    device: str
    half: bool

    @property
    def fits(self) -> bool:
        """Return whether the estimate has room in the memory."""
        return self.free is None or self.needs <= ROOM * self.free

    def words(self) -> str:
        """Return the required memory, for a comment."""
        has = "" if self.free is None else f", of {size(self.free)} free on {self.device}"
        return f"about {size(self.needs)} of memory{has}"

    def sentence(self) -> str:
        """Return advice for a model that does not fit."""
        return (
            f"Training all weights with this method needs about {size(self.needs)} with one row at a time, and "
            f"{self.device} has {size(self.free or 0)} free. Use a larger machine, a smaller model, or a method that "
            "trains adapters (`everlearn methods`)."
        )


class ModelProbe:
    """Facts about a model, without its weights.

    Args:
        path: a folder, a ``suite:`` address, or the id of a model on the hub.

    Attributes:
        kind: encoder, decoder or encoder-decoder.
        model_type: name of the architecture in transformers.
        parameters: number of parameters.
        saved_as: the number format of the checkpoint.
        objective: the training objective of this kind of model.
        longest: the longest input in tokens; None if there is no limit.

    Raises:
        RecipeError: it is a run, which has a model for each stage.
        ModelError: it is neither in a folder nor at hand from the hub, or its architecture is not known.
    """

    def __init__(self, path: str) -> None:
        check_is_no_run(path, "`--model`")
        source = Model(path=located(path, "--model"))
        config = load_config(source)
        self.kind: Kind = kind_of_config(config)
        self.tokenizer = load_tokenizer(source)
        self.model = empty_model(config)
        check_vocabulary(self.tokenizer, self.model)
        objective = make_objective(None, self.model, self.tokenizer)
        self.model_type = str(config.model_type)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.saved_as = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
        self.objective = objective.name
        self._loss = objective
        self.longest = objective.longest_input(self.model)

    def tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of some texts."""
        return sum(len(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"])

    def words(self) -> str:
        """Return the kind and size of the model, for a comment."""
        return f"{self.model_type}, {size_text(self.parameters)} parameters, saved as {self.saved_as}"

    def task(self, task: str | None) -> str | None:
        """Return the task that it learns, if only one is possible.

        Raises:
            RecipeError: the model cannot learn the requested task.
        """
        if self.kind != "encoder-decoder":
            return task
        if task == "pretrain":
            raise RecipeError(
                "`--task` is 'pretrain', but an encoder-decoder model learns prompts and their answers: use 'sft'."
            )
        return "sft"

    def fit(self, methods: Sequence[Mapping[str, Any]], domains: int, most_rows: int, block_size: int) -> Fit:
        """Halve the rows of a batch, starting at `most_rows`, until training fits this machine's memory."""
        built = [build(dict(spec)) for spec in methods]
        costs = {method.label: cost for method, cost in zip(built, costs_of(built, self.model), strict=True)}
        sizes = Sizes.of(self.model, built, domains)
        free, device = memory_free()
        half = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        estimate = MemoryEstimate(self.model, sizes, costs, self._loss, block_size)
        most = Fit(most_rows, estimate.held(Setup(most_rows, half)).peak, free, device, half)
        if most.fits or most_rows == 1:
            return most
        least = Fit(1, estimate.held(Setup(1, half)).peak, free, device, half)
        rows = most_rows // 2
        while rows > 1:  # what a row adds is the same for all, so that nothing in between has to be traced
            needs = least.needs + (most.needs - least.needs) * (rows - 1) // (most_rows - 1)
            fit = Fit(rows, needs, free, device, half)
            if fit.fits:
                return fit
            rows //= 2
        return least
