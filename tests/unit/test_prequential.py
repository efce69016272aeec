"""The training curve as a codelength, against a sum by hand."""

from __future__ import annotations

import json
import math

import pytest

from everlearn.diagnostics.training_codelength import _of_stage
from everlearn.evaluation.results import StageFacts, read


def test_each_line_counts_for_its_steps_and_the_first_pass_alone():
    losses = {4: 3.0, 6: 2.0, 10: 1.0, 20: 0.1}
    found = _of_stage("a", losses, 10, 4.0)
    nats = (4 * 3.0 + 2 * 2.0 + 4 * 1.0) / 10
    assert found.nats == pytest.approx(nats)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / 4)
    assert (found.first, found.last) == pytest.approx((3 / math.log(2) / 4, 1 / math.log(2) / 4))
    assert (found.steps, found.once) == (10, True)


def test_what_is_not_known_is_said():
    found = _of_stage("a", {5: 2.0, 10: 1.0}, None, None)
    assert (found.nats, found.bits_per_byte, found.once) == (1.5, None, False)
    assert not _of_stage("a", {5: 2.0}, 3, None).once, "the only line reaches into the second pass"


def test_stages_of_earlier_versions_do_not_know_their_passes(tmp_path):
    facts = {"domain": "a", "index": 1, "steps": 3, "seconds": 1, "training_seconds": 1, "peak_memory_bytes": 1}
    (tmp_path / "stage.json").write_text(json.dumps({**facts, "tokens": 5}))
    assert read(StageFacts, tmp_path / "stage.json").pass_steps is None
