from __future__ import annotations

from cli_project import Project
from everlearn.evaluation.results import Results


def test_a_domain_of_two_sources_is_learnt_resumed_and_accounted_for(everlearn: Project) -> None:
    everlearn.recipe["domains"] = [
        {"name": "a", "sources": [{"path": "a.jsonl", "weight": 3}, {"path": "b.jsonl"}], "validation": 0.2}
    ]
    everlearn.recipe["general"] = {"path": "b.jsonl", "validation": 0.2}
    outcome = everlearn("run", "recipe.yaml")
    assert outcome.code == 0, outcome
    results = Results.load(everlearn.run_folder)
    shares = {share.source: (share.asked, share.realised) for share in results.mixture}
    assert shares == {"a": (0.75, 0.75), "b": (0.25, 0.25)}  # 4 steps of 4 rows
    note = "'a' and 'general' read the same file"
    assert any(note in sentence for sentence in results.notes)
    assert note in outcome.err
    assert note in (everlearn.run_folder / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert everlearn.call("resume", str(everlearn.run_folder)).code == 0
