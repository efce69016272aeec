"""Stages, streams of them and a plain training loop: what a method needs around it in a test."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import tiny
from everlearn.data import Block, PackedBlocks
from everlearn.data.loader import BlockLoader
from everlearn.methods.base import Method, Setting, Stage
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.stage import Checkpoints
from everlearn.model.objectives import make_objective
from everlearn.seeding import seeded, set_all

S = 24
ARCHITECTURE = {"masked": "roberta", "causal": "gpt2", "text-to-text": "t5"}


def blocks(count: int, seed: int = 0, objective: str = "masked", kind: str = "decoder") -> list[Block]:
    """Random rows of two documents each; for text-to-text with answers, apart for an encoder-decoder.

    There prompts differ in length but are padded to one width, so that cutting a batch differently changes nothing.
    """
    generator = np.random.default_rng(seed)
    rows: list[Block] = []
    for _ in range(count):
        ids = generator.integers(5, tiny.VOCABULARY, S, dtype=np.int32)
        segments = (np.arange(S) >= generator.integers(6, S - 6)).astype(np.int32)
        if objective != "text-to-text":
            rows.append({"input_ids": ids, "segments": segments})
        elif kind == "encoder-decoder":
            answer = generator.integers(5, tiny.VOCABULARY, generator.integers(2, 6), dtype=np.int32)
            rows.append(
                {"input_ids": ids[: generator.integers(S - 7, S + 1)], "labels": np.append(answer, np.int32(2))}
            )
        else:
            labels = np.where(np.arange(S) % (S // 2) >= S // 2 - 4, ids, -100).astype(np.int32)
            rows.append({"input_ids": ids, "segments": segments, "labels": labels})
    return rows


def source(name: str = "first", count: int = 12, seed: int = 0, **kinds: str) -> PackedBlocks:
    """A domain of random blocks."""
    return PackedBlocks.from_blocks(blocks(count, seed, **kinds), seed, name)


def stage(
    model: nn.Module,
    index: int = 1,
    objective: str = "masked",
    *,
    count: int = 12,
    batch_size: int = 4,
    steps: int = 4,
    general: bool = False,
    seed: int = 0,
) -> Stage:
    """Stage number `index` of a stream whose domains are called d1, d2 …"""
    made = make_objective(objective, model, tiny.tokenizer())
    kinds = {"objective": objective, "kind": "encoder-decoder" if model.config.is_encoder_decoder else "decoder"}
    return Stage(
        index=index,
        domain=f"d{index}",
        earlier=tuple(f"d{i}" for i in range(1, index)),
        model=model,
        tokenizer=tiny.tokenizer(),
        objective=made,
        source=source(f"d{index}", count, index, **kinds),
        general=source("general", count, 99, **kinds) if general else None,
        batch_size=batch_size,
        seed=seed,
        steps=steps,
        checkpoints=checkpoints(model, index),
    )


def checkpoints(model: PreTrainedModel, index: int) -> Checkpoints:
    """Earlier models: the last one is a copy of `model` as it is now, those before it are fresh ones."""
    last = copy.deepcopy(model)

    def load(number: int) -> PreTrainedModel:
        if number == index - 1:
            return copy.deepcopy(last).cpu().float()
        with seeded("fresh"):
            return type(model)(copy.deepcopy(model.config)).float()

    return Checkpoints(index, load)


def setting(model: nn.Module, methods: Sequence[Method], objective: str = "masked", general: bool = False) -> Setting:
    """What methods are checked against."""
    made = make_objective(objective, model, tiny.tokenizer())
    return Setting(model, made, tuple(methods), any(method.adds_peft for method in methods), general, S)


def hook(method: Method, name: str, at: Stage, *args: Any) -> Any:
    """Run a hook as the learner does: under a seed of its own, leaving the generators as they were."""
    with seeded(at.seed, "hook", method.name, name, at.index):
        return getattr(method, name)(*args, at)


def begin(methods: Sequence[Method], at: Stage) -> Any:
    """The hooks before training; returns the source to train on."""
    return Protection(methods, at).begin()


def end(methods: Sequence[Method], at: Stage) -> None:
    """The hooks after training."""
    Protection(methods, at).end()


def learn(
    methods: Sequence[Method],
    at: Stage,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    each: Callable[[Protection, dict[str, Tensor]], None] | None = None,
    **options: Any,
) -> list[dict[str, Tensor]]:
    """A whole stage in a plain PyTorch loop; returns the parts of the loss of every step."""
    check_methods(methods, setting(at.model, methods, at.objective.name, at.general is not None))
    protection = Protection(methods, at)
    data = protection.begin()
    trained = [parameter for parameter in at.model.parameters() if parameter.requires_grad]
    steps = protection.optimizer(optimizer(trained, **({"lr": 1e-2} | options)))
    set_all(at.seed, "train", at.index)
    at.model.train()
    parts = []
    for batch in BlockLoader(data, at.objective, at.batch_size, at.steps):
        loss, named = protection.loss(at.model, tiny.beside(at.model, batch))
        loss.backward()
        protection.after_backward()
        if each is not None:
            each(protection, batch)
        with protection.update():
            steps.step()
        steps.zero_grad()
        parts.append(named)
    at.model.eval()
    protection.end()
    return parts


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter, on the CPU."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, bit for bit, wherever they are."""
    return torch.equal(one.cpu(), other.cpu())
