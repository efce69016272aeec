"""What the tests of hard attention share: binary gates, readings, and a stream's models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification

import stages
from everlearn.methods.base import Method, Reading


def settle(method: Any) -> None:
    """Move every remembered embedding to ±6: at smax the gates are then 0 and 1 exactly."""
    for values in method._embeddings.values():
        values.copy_(torch.where(values > 0, 6.0, -6.0))


def reading(at: Any, domain: str | None) -> Reading:
    """A test after the stage `at`, of a text of `domain`."""
    return Reading(domain, (*at.earlier, at.domain), at.objective, lambda: at.model, lambda blocks: at.batches(blocks))


@torch.no_grad()
def hidden(method: Method, at: Any, domain: str | None) -> Tensor:
    """What the stage's model makes of a fixed text of `domain`, as the method tests it, [B, S, H]."""
    model = method.test_model(copy.deepcopy(at.model).eval(), reading(at, domain))
    return at.objective.hidden(model, {"input_ids": torch.arange(5, 53).view(2, 24)})


def classifier(model: Any) -> nn.Module:
    """A classifier with the weights of a language model, as an end task has it."""
    config = AutoConfig.for_model(**(model.config.to_dict() | {"num_labels": 3}))
    made = AutoModelForSequenceClassification.from_config(config)
    made.load_state_dict(model.state_dict(), strict=False)
    return made.eval()


def learnt(method: Method, model: nn.Module, domains: int, **options: Any) -> list[Any]:
    """Learn a stream with a plain loop; each stage is returned with a model of its own."""
    done = []
    for index in range(1, domains + 1):
        at = stages.stage(copy.deepcopy(model), index)
        stages.learn([method], at, **({"weight_decay": 0.1} | options))
        settle(method)
        done.append(at)
        model = at.model
    return done
