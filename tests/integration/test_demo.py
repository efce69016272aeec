"""The demo end to end on a model of almost no size: three runs of four domains and the page that compares them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from everlearn.commands.recommendation import METHOD
from everlearn.config import recipe as recipes
from everlearn.errors import RunError
from everlearn.model.loading import load_model
from everlearn.report import compare
from everlearn.run.progress import Reporter
from everlearn_bench.demo.demo import METHODS, RECIPE, run_demo
from everlearn_bench.suites.docs import DOMAINS


@functools.cache
def learnt() -> list[str]:
    """Return the names of the demo's domains; loading its recipe builds their texts."""
    return [domain.name for domain in recipes.load(RECIPE).domains]


def small() -> list[str]:
    """Return what makes the demo small."""
    return [*SMALL, *(f"domains.{domain}.max_documents=120" for domain in learnt())]


SMALL = [
    "model={config: {model_type: roberta, vocab_size: 8192, hidden_size: 32, num_hidden_layers: 1, "
    "num_attention_heads: 1, intermediate_size: 64, max_position_embeddings: 130, type_vocab_size: 1, bos_token_id: 0, "
    'pad_token_id: 1, eos_token_id: 2}, tokenizer: "suite:docs/base"}',
    "train.max_steps=3",
    "evaluation.blocks=4",
    "general.max_documents=120",
]


def test_the_recipe_trains_the_base_as_it_was_pre_trained_and_tests_on_text_that_is_held_out() -> None:
    recipe = recipes.load(RECIPE)
    assert sorted(learnt()) == learnt()
    assert set(learnt()) <= set(DOMAINS)
    assert recipe.general is not None
    for corpus in (*recipe.domains, recipe.general):
        assert corpus.path.endswith("train.jsonl")
        assert str(corpus.validation).endswith("apart.jsonl")
    assert load_model(recipe.model).config.hidden_dropout_prob == 0.0


@pytest.mark.slow
def test_the_demo_compares_its_runs_and_a_second_call_continues(tmp_path: Path) -> None:
    runs, page = run_demo(tmp_path, Reporter(), small())
    assert list(METHODS.values())[-1] == list(METHOD), "what `everlearn init` writes"
    text = page.read_text(encoding="utf-8")
    for name in ("Sequential", "EWC", "MAS", "<svg"):
        assert name in text
    comparison = compare(runs)
    assert {measure.metric for measure in comparison.headline} >= {"bits_per_byte"}
    for run in runs:
        assert sorted(p.name for p in run.glob("stage-*")) == [
            f"stage-{index:02d}-{name}" for index, name in enumerate(learnt(), 1)
        ]
        assert (run / "results.json").is_file()
        assert (run / "README.md").is_file()
    before = {path: path.stat().st_mtime_ns for run in runs for path in run.glob("stage-*/seal.json")}
    assert len(before) == len(METHODS) * len(learnt())
    run_demo(tmp_path, Reporter(), small())
    assert before == {path: path.stat().st_mtime_ns for path in before}, "nothing is trained twice"
    with pytest.raises(RunError, match="holds a demo with other settings"):
        run_demo(tmp_path, Reporter(), [text.replace("max_steps=3", "max_steps=4") for text in small()])
