"""A protected Trainer ends when held-out text is forgotten beyond a bound (`stop`)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_protect_report import trainer_of
from torch import nn
from transformers import TrainerCallback

import tiny
from everlearn import protect
from everlearn.errors import EverlearnError
from everlearn.protecting.held_out import held_out_texts

RARE = ["§ ± µ ¶ ÷ × ø ß þ ð " * 6] * 40
"""Text of which the training has no token, so that it gets worse."""


class Weights(TrainerCallback):
    """Keeps the weights after each step."""

    def __init__(self) -> None:
        self.after: dict[int, dict[str, torch.Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.after[state.global_step] = {n: p.detach().clone() for n, p in kwargs["model"].named_parameters()}


def trained(folder: Path, model: nn.Module, **options: Any) -> tuple[Any, Weights]:
    """A protected training of six steps."""
    trainer, weights = trainer_of(model, folder, max_steps=6, learning_rate=3e-2), Weights()
    trainer.add_callback(weights)  # before the one that takes steps back
    protect(trainer, ["ewc"], memory=folder / "memory", held_out={"rare": RARE}, **options)
    trainer.train()
    return trainer, weights


def worse_at(base: nn.Module, weights: Weights) -> dict[int, float]:
    """Step → bits per byte that the text got worse."""
    (text,) = held_out_texts({"rare": RARE}, base, tiny.tokenizer())
    text.measure(base, 4, False)
    model, found = copy.deepcopy(base), {}
    for step, state in weights.after.items():
        model.load_state_dict(state, strict=False)
        found[step] = text.forgetting(model, 4, False).forgotten.value or 0.0
    return found


def test_it_ends_with_the_weights_of_the_last_measurement_within_the_bound(tmp_path: Path) -> None:
    base = tiny.model("gpt2", dropout=0.0)
    _, free = trained(tmp_path / "free", copy.deepcopy(base))
    worse = worse_at(base, free)
    bound = (worse[3] + worse[4]) / 2
    assert worse[3] < bound < worse[4]

    model = copy.deepcopy(base)
    trainer, _ = trained(tmp_path / "stopped", model, stop={"rare": bound}, stop_every=1)
    assert trainer.state.global_step == 4
    assert all(torch.equal(p, free.after[3][name]) for name, p in model.named_parameters())
    report = trainer.protection_report()
    assert report.forgetting[0].forgotten.value == pytest.approx(worse[3], abs=1e-5)
    assert "Stopped at step 4: rare was forgotten" in str(report)
    assert f"`stop` allows {bound:g}. The weights are those of step 3." in str(report)
    assert (tmp_path / "stopped" / "memory" / "stage-01-domain-1").is_dir()


def test_passed_at_the_first_measurement_the_weights_are_those_before(tmp_path: Path) -> None:
    base = tiny.model("gpt2", dropout=0.0)
    _, free = trained(tmp_path / "free", copy.deepcopy(base))
    model, worse = copy.deepcopy(base), worse_at(base, free)
    trainer, _ = trained(tmp_path / "stopped", model, stop=worse[4] - 0.01, stop_every=4)
    assert trainer.state.global_step == 4
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), base.parameters(), strict=True))
    assert "The weights are those before the training." in str(trainer.protection_report())


def test_within_the_bound_nothing_changes(tmp_path: Path) -> None:
    base = tiny.model("gpt2", dropout=0.0)
    _, free = trained(tmp_path / "free", copy.deepcopy(base))
    model = copy.deepcopy(base)
    trainer, _ = trained(tmp_path / "bounded", model, stop=1e6, stop_every=2)
    assert all(torch.equal(p, free.after[6][name]) for name, p in model.named_parameters())
    assert trainer.protection_report().stopped is None


def test_a_checkpoint_cannot_be_gone_on_from(tmp_path: Path) -> None:
    trainer = trainer_of(tiny.model("gpt2"), tmp_path, max_steps=6)
    protect(trainer, ["ewc"], memory=tmp_path / "memory", held_out={"rare": RARE}, stop=0.1)
    with pytest.raises(EverlearnError, match="within the bounds of `stop`"):
        trainer.train(resume_from_checkpoint="anywhere")


def test_a_loop_decides_itself(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    with pytest.raises(EverlearnError, match="`stop` works with a Trainer only"):
        protect(model, torch.optim.SGD(model.parameters(), 0.1), ["ewc"], memory=tmp_path, data=[], stop=0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stop": 0.1}, "give `held_out`"),
        ({"stop": {"rar": 0.1}, "held_out": {"rare": RARE}}, "did you mean"),
        ({"stop": {"rare": -1}, "held_out": {"rare": RARE}}, "0 or more"),
        ({"stop": float("nan"), "held_out": {"rare": RARE}}, "0 or more"),
        ({"stop_every": 5}, "no effect without `stop`"),
        ({"stop": 0.1, "stop_every": 0, "held_out": {"rare": RARE}}, "`stop_every`"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(EverlearnError, match=f"(?i){says}"):
        protect(trainer_of(tiny.model("gpt2"), tmp_path), ["ewc"], memory=tmp_path / "memory", **options)
