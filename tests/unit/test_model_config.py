"""`model.config` beside `model.path`: fields of a checkpoint's configuration that a recipe changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from everlearn.config import recipe as recipes
from everlearn.errors import EverlearnError, ModelError, RecipeError
from everlearn.model.loading import load_model

BASE = "suite:docs/base"


def recipe(**model: object) -> recipes.Recipe:
    return recipes.parse({"model": model, "domains": [{"name": "one", "path": "one.txt"}]})


def rates(model: nn.Module) -> set[float]:
    return {module.p for module in model.modules() if isinstance(module, nn.Dropout)}


def test_a_field_is_changed_the_weights_stay_and_a_saved_model_keeps_it(tmp_path: Path) -> None:
    own, changed = (
        load_model(recipe(path=BASE).model),
        load_model(recipe(path=BASE, config={"hidden_dropout_prob": 0.0}).model),
    )
    assert 0.1 in rates(own)
    assert rates(changed) == {0.0}
    for name, value in own.state_dict().items():
        assert torch.equal(value, changed.state_dict()[name]), name
        assert changed.state_dict()[name].dtype == torch.float32
    changed.save_pretrained(tmp_path)
    assert rates(load_model(recipe(path=str(tmp_path), tokenizer=BASE).model)) == {0.0}


def test_an_unknown_field_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        ModelError, match=r"no 'hidden_droput_prob' \(`model.config`\). Did you mean 'hidden_dropout_prob'"
    ):
        load_model(recipe(path=BASE, config={"hidden_droput_prob": 0.0}).model)


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(EverlearnError):
        load_model(recipe(path=BASE, config={"hidden_dropout_prob": "none"}).model)
    with pytest.raises(EverlearnError):
        load_model(recipe(path=BASE, config={"hidden_size": 128}).model)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"tokenizer": BASE}, "`path` (a pre-trained model) or"),
        ({"path": BASE, "config": {"model_type": "roberta"}}, "random weights"),
        ({"config": {"hidden_size": 8}, "tokenizer": BASE}, "needs `model_type`"),
        ({"config": {"model_type": "roberta"}}, "needs `tokenizer`"),
    ],
)
def test_what_a_model_is_made_of_is_checked(model: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        recipe(**model)
