"""A whole run's shares: asked and realised within 0.1 % in log, results and page, though it was killed half-way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import Killer, corpus, kill_and_resume, recipe

from everlearn.evaluation import Results
from everlearn.run.folder import RunFolder

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, float]]]] = {
    "streamed, from both": (
        {"name": "replay", "share": 0.1, "source": "both", "capacity": 30},
        {"each": {"streaming": True, "shuffle_buffer": 4}, "general": True},
        {
            "first": {"first": 0.9, "general": 0.1},
            "second": {"second": 0.9, "earlier domains": 0.05, "general": 0.05},
        },
    ),
    "packed, generated": (
        {"name": "replay_generated", "share": 0.03, "capacity": 12},
        {},
        {"first": {"first": 0.97, "generated": 0.03}, "second": {"second": 0.97, "generated": 0.03}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_realised_is_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    method, groups, asked = CASES[case]
    train = {"max_steps": 8, "per_device_train_batch_size": 64, "save_steps": 3}
    data = {"block_size": 16, "cache": str(tmp_path / "cache")}
    of = recipe(tmp_path, "gpt2", method, train=train, data=data, **groups)
    place = kill_and_resume(Killer(monkeypatch), of, ["step 1.5", "step 2.4"])
    results = Results.load(place / "results.json")
    found = {
        domain: {share.source: share for share in results.mixture if share.domain == domain}
        for domain in ("first", "second")
    }
    tokens = 8 * 2 * 64 * 16
    for domain, shares in asked.items():
        assert found[domain].keys() == shares.keys()
        for name, wanted in shares.items():
            share = found[domain][name]
            assert share.asked == pytest.approx(wanted)
            assert share.realised == pytest.approx(wanted, abs=1e-3)
        assert sum(share.tokens for share in found[domain].values()) == tokens
    last = [line for line in RunFolder(place).metrics() if "shares" in line][-1]
    assert last["shares"] == {name: round(share.realised, 6) for name, share in found["second"].items()}
    page = (place / "report.html").read_text(encoding="utf-8")
    assert "what each stage was made of" in page
    if method["name"] == "replay_generated":
        assert any("before 'second' the model wrote 12 rows" in note for note in results.notes)


def test_tokens_of_a_sample_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shares are of the rows, and those of an earlier domain may be longer: tokens do not follow from them."""
    of = recipe(
        tmp_path,
        "t5",
        {"name": "replay", "sample": 0.5, "capacity": 64},
        train={"max_steps": 4, "per_device_train_batch_size": 4, "save_steps": 3},
        data={"block_size": 64, "cache": str(tmp_path / "cache")},
    )
    long = corpus(tmp_path / "data", "first", answers=True)
    short = [json.loads(line) for line in long.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({"text": row["text"][:20] + " ", "answer": row["answer"][:9]}) for row in reversed(short)]
    (tmp_path / "data" / "second.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    place = kill_and_resume(Killer(monkeypatch), of, ["step 2.3"])
    results = Results.load(place / "results.json")
    found = {share.source: share for share in results.mixture if share.domain == "second"}
    tokens = results.cost.stages[1].tokens
    assert sum(share.tokens for share in found.values()) == tokens
    rows = 4 * 2 * 4
    for share in found.values():
        assert share.realised * rows == pytest.approx(round(share.realised * rows)), "of the rows"
    assert found["earlier domains"].tokens > 1.2 * found["earlier domains"].realised * tokens
