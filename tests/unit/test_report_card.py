import re
from pathlib import Path

import pytest
import report_fixture
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.comparison.formatting import again
from everlearn.comparison.runs import clean
from everlearn.errors import RunError
from everlearn.evaluation.results import Results
from everlearn.methods import build, names
from everlearn.report import model_card

RECIPE = "model: roberta-base\n"


def front(card):
    return yaml.safe_load(card.split("---\n")[1])


@pytest.fixture
def results():
    return report_fixture.results("das", "DAS", 0.06, learning=0.52)


def test_the_front_matter(results):
    found = front(model_card(results | {"model": "FacebookAI/roberta-base"}, RECIPE))
    assert found["library_name"] == "transformers"
    assert found["base_model"] == "FacebookAI/roberta-base"
    assert found["pipeline_tag"] == "fill-mask"
    assert found["tags"] == ["everlearn", "continual-learning", "continual-pretraining", "das"]


@pytest.mark.parametrize("model", ["/somewhere/model", "../model", "a/b/c", "", "C:\\model"])
def test_a_local_base_is_not_named_to_the_hub(results, model):
    assert "base_model" not in front(model_card(results | {"model": model}))


def test_the_body(results):
    card = model_card(results, RECIPE)
    assert "sympy → networkx" in card
    assert "<https://arxiv.org/abs/2302.03241>" in card
    assert "AutoModelForMaskedLM.from_pretrained(folder)" in card
    assert "folder = 'stage-06-torch'" in card
    assert "everlearn run runs/das/recipe.yaml run.name=das-again run.folder=runs/das-again" in card
    assert f"```yaml\n{RECIPE.strip()}\n```" in card
    assert "| DAS | +0.488 [+0.480, +0.497] | +0.546 [+0.538, +0.555] |" in card
    assert "attention leaks" in card


def test_a_model_that_transformers_does_not_know_is_loaded_with_its_module(results):
    """What the code block says is run elsewhere, where nothing was imported yet."""
    card = model_card(results | {"objective": "causal"}, RECIPE, own_module="pytest.model")
    assert "```python\nimport pytest.model  #" in card
    assert "loads this way, with pytest installed, which brings the architecture" in card
    assert "without everlearn" not in card
    plain = model_card(results, RECIPE, own_module=None)
    assert "loads this way, without everlearn installed" in plain
    assert "from here on" not in plain


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("das", False),
        ("sequential", False),
        ("inc_lora", False),
        ("hat_all", False),
        ("hat", True),
        ("demix", True),
        ("ncl_adapter", True),
        ("dap_prompt", True),
        ("elle", True),
        ({"name": "elle", "prompts": False}, False),
        ("somebodys_own", False),
    ],
)
def test_it_says_when_the_folder_is_not_what_was_measured(results, method, told):
    name = method if isinstance(method, str) else method["name"]
    options = {} if isinstance(method, str) else {key: value for key, value in method.items() if key != "name"}
    used = {"name": name, "title": name, "paper": "", "options": options}
    if name in names():  # as a run's results say it; those of an older version, or of another program, say nothing
        used["as_saved"] = build({"name": name, **options}).tested_as_saved
    card = model_card(results | {"methods": [used]})
    assert ("not the model of the scores above" in card) == told
    assert ("ContinualLearner.open('runs/das').tested('torch')" in card) == told


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        (None, "runs/das"),
        (Path("runs/das"), "runs/das"),
        (Path("studies/one/first"), "studies/one/first"),
        (Path("/somewhere/first"), "runs/first"),
        (Path("../first"), "runs/first"),
        (Path("my runs/first"), "my runs/first"),
    ],
)
def test_the_run_folder_is_named_without_a_path_of_this_machine(results, folder, shown):
    method = {"name": "hat", "title": "HAT", "paper": "", "options": {}, "as_saved": False}
    card = model_card(results | {"methods": [method]}, folder=folder)
    assert f"ContinualLearner.open({shown!r})" in card
    assert again(shown) in card
    assert "somewhere" not in card


def test_objects_and_mappings_give_the_same_card(results):
    assert model_card(Results.model_validate(results)) == model_card(Results.model_validate(results).model_dump())


def test_a_recipe_cannot_leave_its_fence(results):
    card = model_card(results, "a: |\n  ```\n  # not a heading\n")
    assert "````yaml\na: |\n  ```\n" in card
    assert card.count("````") == 2


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=12), st.text(max_size=12))
def test_wild_names_stay_in_their_place(domain, run):
    found = report_fixture.results("das", run, 0.1, domains=[domain, "b" if domain != "b" else "c"])
    card = model_card(found | {"run": run, "notes": [domain]}, run)
    assert front(card)["library_name"] == "transformers"
    body = card.split("---\n", 2)[2]
    code = next(block for block in re.findall(r"```python\n(.*?)```", body, re.DOTALL))
    compile(code, "card", "exec")
    assert clean(domain).encode("utf-8") is not None


def test_what_is_no_result_is_an_error():
    with pytest.raises(RunError, match="matrices"):
        model_card({"run": "x"})
