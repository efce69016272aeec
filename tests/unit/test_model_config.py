"""`model.config` beside `model.path`: fields of a checkpoint's configuration that a recipe changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import tiny
from everlearn.commands.inspect_model import inspect
from everlearn.commands.model_probe import ModelProbe
from everlearn.config import recipe as recipes
from everlearn.errors import EverlearnError, ModelError, RecipeError
from everlearn.model.loading import load_model
from everlearn.model.source import Model

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


def saved(folder: Path, token: int | None = None, **changes: object) -> str:
    """Save a tiny model, with other values in its configuration and another id of a seldom token."""
    tiny.model("roberta").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    for name, change in (("config.json", changes), ("tokenizer.json", {})):
        content = json.loads((folder / name).read_text()) | change
        if token is not None and "model" in content:
            content["model"]["vocab"]["\u0141"] = token
        (folder / name).write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "has num_attention_heads: 0; it must be 1 or more."),
        ({"hidden_size": -32}, "has hidden_size: -32; it must be 1 or more."),
        ({"num_attention_heads": 5}, "No model can be built from the configuration of '{}': The hidden size"),
    ],
)
def test_a_configuration_of_no_model_is_a_sentence(tmp_path: Path, changes: dict[str, int], words: str) -> None:
    path = saved(tmp_path, **changes)
    for look in (inspect, ModelProbe):
        with pytest.raises(ModelError, match=re.escape(words.format(path))):
            look(path)
    config = {"model_type": "roberta", "hidden_size": 32, "num_attention_heads": 4, **changes}
    with pytest.raises(ModelError, match=r"`model\.config`"):
        load_model(Model(config=config, tokenizer=BASE))


def test_a_token_without_an_embedding_is_refused_however_few_tokens_there_are(tmp_path: Path) -> None:
    path = saved(tmp_path, token=2**31)
    with pytest.raises(ModelError, match=r"token ids up to 2,147,483,648, but the model has 384 embeddings"):
        ModelProbe(path)
