"""The demo end to end on a model of almost no size: two runs of six domains and the page that compares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlearn.config import recipe as recipes
from everlearn.demo.demo import RECIPE, run_demo
from everlearn.report import compare
from everlearn.run.progress import Reporter
from everlearn.suites.docs import DOMAINS

SMALL = [
    "model={config: {model_type: roberta, vocab_size: 8192, hidden_size: 32, num_hidden_layers: 1, "
    "num_attention_heads: 1, intermediate_size: 64, max_position_embeddings: 130, type_vocab_size: 1, bos_token_id: 0, "
    'pad_token_id: 1, eos_token_id: 2}, tokenizer: "suite:docs/base"}',
    "train.max_steps=3",
    "evaluation.blocks=4",
    *(f"domains.{domain}.max_documents=120" for domain in DOMAINS),
    *(f"end_tasks.{domain}-part.max_train=16" for domain in DOMAINS),
]


def test_the_recipe_is_the_same_for_both_methods_and_names_every_domain() -> None:
    recipe = recipes.load(RECIPE)
    assert [domain.name for domain in recipe.domains] == list(DOMAINS)
    assert [task.domain for task in recipe.end_tasks] == list(DOMAINS)


@pytest.mark.slow
def test_the_demo_compares_two_runs_and_a_second_call_continues(tmp_path: Path) -> None:
    runs, page = run_demo(tmp_path, Reporter(), SMALL)
    text = page.read_text(encoding="utf-8")
    assert "DAS" in text
    assert "Sequential" in text
    assert "<svg" in text
    comparison = compare(runs)
    assert {measure.metric for measure in comparison.headline} >= {"bits_per_byte"}
    for run in runs:
        assert sorted(p.name for p in run.glob("stage-*")) == [
            f"stage-{index:02d}-{name}" for index, name in enumerate(DOMAINS, 1)
        ]
        assert (run / "results.json").is_file()
        assert (run / "README.md").is_file()
    before = {path: path.stat().st_mtime_ns for run in runs for path in run.glob("stage-*/seal.json")}
    assert len(before) == 2 * len(DOMAINS)
    run_demo(tmp_path, Reporter(), SMALL)
    assert before == {path: path.stat().st_mtime_ns for path in before}, "nothing is trained twice"
