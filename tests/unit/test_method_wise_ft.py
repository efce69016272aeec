"""WiSE-FT after every domain against the paper's equation, in float64."""

from __future__ import annotations

import pytest
import torch

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.stage import Checkpoints


def stream(options: dict[str, object], domains: int = 3) -> tuple[list[dict], list[dict]]:
    """Weights after each domain, 0 the base model, and what each domain's training ended in."""
    model, ended = tiny.model(), []
    models = [tiny.model()]
    weights = [stages.weights(model)]
    for index in range(1, domains + 1):
        stage = stages.stage(model, index, steps=2)
        stage.checkpoints = Checkpoints(index, lambda number: models[number])
        last: dict[str, torch.Tensor] = {}

        method = build({"name": "wise_ft", **options})
        final = method.final_weights

        def watched(at, final=final, last=last):
            last.update(stages.weights(at.model))
            return final(at)

        method.final_weights = watched  # type: ignore[method-assign]
        stages.learn([method], stage)
        ended.append(last)
        weights.append(stages.weights(model))
        copy = tiny.model()
        copy.load_state_dict(model.state_dict())
        models.append(copy)
    return weights, ended


@pytest.mark.parametrize("anchor", ["before", "base"])
def test_a_domain_ends_on_the_line(anchor: str) -> None:
    weights, ended = stream({"alpha": 0.3, "anchor": anchor})
    for index, trained in enumerate(ended, 1):
        old = weights[0 if anchor == "base" else index - 1]
        for name, value in weights[index].items():
            wanted = 0.7 * old[name].double() + 0.3 * trained[name].double()
            torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-7)
    moved = [not torch.equal(after, weights[0][name]) for name, after in weights[1].items()]
    assert all(moved)


def test_the_running_average_is_the_mean_of_what_the_stages_ended_in() -> None:
    weights, ended = stream({"alpha": "1/n"})
    for index in (1, 2, 3):
        for name, value in weights[index].items():
            wanted = sum(trained[name].double() for trained in ended[:index]) / index
            torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-7)
    assert build("model_average").config.alpha == "1/n"
    assert build("model_average").title == "Running average"


def test_beside_what_begins_a_domain_with_another_model_it_is_refused() -> None:
    model = tiny.model()

    def check(alpha: float, anchor: str, other: dict[str, object]) -> None:
        methods = [build({"name": "wise_ft", "alpha": alpha, "anchor": anchor}), build(other)]
        check_methods(methods, stages.setting(model, methods))

    for other in ({"name": "selective_init"}, {"name": "ensemble", "combine": "mean"}):
        with pytest.raises(MethodError, match=f"'wise_ft' ends between.*'{other['name']}'.*Set `anchor: base`"):
            check(0.5, "before", other)
        check(0.5, "base", other)
        check(1, "before", other)
    check(0.5, "before", {"name": "selective_init", "samples": 0})
    check(0.5, "before", {"name": "ensemble", "combine": "mean", "start": "previous"})


def test_what_it_needs() -> None:
    assert not build("wise_ft").needs.base_model
    assert build({"name": "wise_ft", "anchor": "base"}).needs.base_model
    for alpha in (1.5, "1/m"):
        with pytest.raises(MethodError, match=r"'wise_ft', option 'alpha'"):
            build({"name": "wise_ft", "alpha": alpha})
