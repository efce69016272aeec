"""`train.torch_compile`: the same numbers, compiled once for all stages, and what cannot be compiled is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import elsewhere, recipe
from torch import nn

import tiny
from everlearn.errors import EverlearnError, MethodError
from everlearn.learner import ContinualLearner
from everlearn.run.compiled_layers import compiled_layers

pytestmark = pytest.mark.usefixtures("no_report")
GRAPHS: list[int] = []


def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend that runs a graph as it is and counts it."""
    GRAPHS.append(len(inputs))
    return graph.forward


@pytest.fixture
def backend() -> Iterator[str]:
    """The name of a backend that counts."""
    torch._dynamo.reset()
    torch._dynamo.register_backend(counting, name="counting")
    GRAPHS.clear()
    yield "counting"
    torch._dynamo.reset()


def test_the_numbers_are_the_same_and_stages_share_what_is_compiled(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = recipe(tmp_path, "gpt2", dropout=0.1, method=[{"name": "l2_sp"}, {"name": "mofo"}])
    before: list[int] = []
    compile_ = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda *args, **options: (before.append(len(GRAPHS)), compile_(*args, **options))
    )
    finals = []
    for name in ("plain", "compiled"):
        train = {**of.train, **({"torch_compile_backend": backend} if name == "compiled" else {})}
        learner = ContinualLearner(elsewhere(of.changed(train=train), tmp_path / name))
        learner.run()
        finals.append(learner.model_after(2).state_dict())
    for name, value in finals[0].items():
        torch.testing.assert_close(finals[1][name], value, rtol=1e-4, atol=1e-6)
    assert len(before) == 4, "two layers in two stages"
    assert 0 < before[2] == len(GRAPHS), "nothing is compiled in the second stage"


@pytest.mark.parametrize(
    ("method", "train", "says"),
    [
        ("lora", {"torch_compile": True}, r"method 'lora' acts inside the forward pass at each step \(`attach`\)"),
        ("kd", {"torch_compile_mode": "default"}, r"method 'kd' acts inside .* \(`views`\)"),
        ("sequential", {"torch_compile_backend": "inducter"}, r"`train\.torch_compile_backend: inducter`.*cannot be"),
    ],
)
def test_refused(tmp_path: Path, method: str, train: dict[str, Any], says: str) -> None:
    of = recipe(tmp_path, "gpt2", method=[{"name": method}])
    with pytest.raises(EverlearnError, match=says):
        ContinualLearner(of.changed(train={**of.train, **train})).check()


def test_a_hook_inside_a_layer_is_not_passed_over() -> None:
    model = tiny.model("gpt2")
    model.transformer.h[0].attn.register_forward_hook(lambda *_: None)
    with compiled_layers(model, {"torch_compile": True}), pytest.raises(MethodError, match="reads or changes"):
        model(input_ids=torch.tensor([[5, 6]]))
    assert model.transformer.h[0]._compiled_call_impl is None
