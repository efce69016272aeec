"""What is quoted of other libraries' errors, and an architecture that is not there."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from everlearn.errors import MOST_LISTED, ModelError, first_line
from everlearn.model.loading import load_config
from everlearn.model.source import Model


def test_one_line_is_quoted_without_long_lists() -> None:
    assert first_line(ValueError("  No. It has a, b, c.\nMore.")) == "No. It has a, b, c."
    assert first_line(ValueError()) == "ValueError"
    names = [f"n{number}" for number in range(400)]
    assert (
        first_line(ValueError(f"No 'x' here. Take one of {', '.join(names)}. Try again.")) == "No 'x' here. Try again."
    )
    cut = first_line(ValueError(f"Take one of {', '.join(names)}"))
    assert cut == f"Take one of {', '.join(names[:MOST_LISTED])}, …"


def test_what_transformers_says_of_an_unknown_model_is_short() -> None:
    with pytest.raises(ValueError, match="gpt2") as found:
        AutoConfig.for_model("brt")
    assert len(first_line(found.value)) < 100 < len(str(found.value))
    with pytest.raises(ValueError, match="Model type should be one of") as found:
        AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("gpt2"))
    assert len(first_line(found.value)) < 200


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "robertta"}, "`model.config.model_type` is 'robertta', .*no architecture.* 'roberta'\\?$"),
        ({"model_type": "zzzzq"}, "`model.config.model_type` is 'zzzzq', .* of that name\\.$"),
        ({"model_type": "bert", "hidden_size": "x"}, "`model.config` is no configuration of a 'bert': .*hidden_size"),
    ],
)
def test_random_weights_of_what_is_not_there(config: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_config(Model(config=config, tokenizer="x"))
