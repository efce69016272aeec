"""What a protected training ends with: what was protected and how, where the memory is, what was forgotten."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from protected_run import OPTIONS, SPECS, collator, rows
from test_protect import remembered
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import tiny
from everlearn.errors import EverlearnError
from everlearn.evaluation.held_out_rows import BYTES
from everlearn.model.objectives import make_objective
from everlearn.protecting import protect

GENERAL = tiny.texts(120, seed=9)


def trainer_of(model: nn.Module, folder: Path, **options: Any) -> Any:
    return Trainer(
        model=model,
        args=TrainingArguments(str(folder / "out"), **(OPTIONS | {"learning_rate": 1e-2} | options)),
        train_dataset=rows(),
        data_collator=collator("gpt2"),
        processing_class=tiny.tokenizer(),
    )


def nats_per_label(model: nn.Module, blocks: list[dict[str, Any]]) -> float:
    """The slow way: one row after another."""
    objective = make_objective(None, model, tiny.tokenizer())
    total = items = 0.0
    with torch.no_grad():
        for row in blocks:
            outputs = objective.forward(model.eval(), objective.collate([row], [0]))
            total, items = total + float(outputs.losses.sum()), items + float(outputs.items)
    return total / items


def test_a_trainer_ends_with_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory, model = tmp_path / "memory", tiny.model("gpt2")
    remembered(model, memory)
    before = copy.deepcopy(model)
    trainer = protect(
        trainer_of(model, tmp_path), SPECS, memory=memory, domain="d2", held_out={"general text": GENERAL}
    )
    with pytest.raises(EverlearnError, match="not ended yet"):
        trainer.protection_report()
    trainer.train()
    report = trainer.protection_report()
    assert (report.domain, report.earlier, report.steps) == ("d2", ("d1",), 3)
    assert report.memory == memory / "stage-02-d2"
    assert report.memory_bytes > 1000
    lines = [line for line in trainer.state.log_history if "ewc/penalty" in line]
    for name in ("ewc/penalty", "das/contrast"):
        assert report.penalties[name] == pytest.approx(sum(line[name] for line in lines) / len(lines), rel=1e-5)
    assert 0 < report.masks["das"].held_back < 1
    assert report.masks["das"].parameters <= sum(p.numel() for p in model.parameters())

    (lost,) = report.forgetting
    (text,) = trainer.protected._held_out
    blocks = text.take(range(len(text)))
    labels = text._before.items
    width = float((labels * text._known[BYTES]).sum() / labels.sum()) * math.log(2)
    assert lost.before == pytest.approx(nats_per_label(before, blocks) / width, rel=1e-5)
    assert lost.after == pytest.approx(nats_per_label(model, blocks) / width, rel=1e-5)
    assert lost.forgotten.value == pytest.approx(lost.after - lost.before)
    low, high = lost.forgotten.interval or (0, 0)
    assert low < lost.forgotten.value < high
    assert trainer.state.log_history[-1]["forgotten/general text"] == lost.forgotten.value

    shown = str(report)
    assert shown in capsys.readouterr().out
    for part in ("what it knew of d1", "Penalty ewc/penalty", "Mask of das: held", str(memory), "General text"):
        assert part in shown
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["forgetting"][0]["forgotten"]["low"] == low
    assert plain["memory"] == str(report.memory)


def test_where_nothing_protects_the_report_says_so(tmp_path: Path) -> None:
    trainer = protect(trainer_of(tiny.model("gpt2"), tmp_path), ["ewc"], memory=tmp_path / "memory")
    trainer.train()
    shown = str(trainer.protection_report())
    assert "No penalty and no mask was at work." in shown
    assert "EWC protected nothing in this domain." in shown
    assert "protected from the next domain on" in shown
    assert "pulled back" not in shown, "the penalty is in the loss"
    assert "was not measured: give `protect` a text (`held_out`)" in shown


def test_a_loop_ends_with_the_same_report(tmp_path: Path) -> None:
    (tmp_path / "general.txt").write_text("\n".join(GENERAL))
    model = tiny.model("gpt2")
    remembered(model, tmp_path / "memory")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options: dict[str, Any] = {"data": rows(), "collate": collator("gpt2"), "domain": "d2"}
    with pytest.raises(EverlearnError, match="needs the model's tokenizer"):
        protect(model, optimizer, SPECS, memory=tmp_path / "memory", held_out=GENERAL, **options)
    options |= {"held_out": tmp_path / "general.txt", "tokenizer": tiny.tokenizer()}
    with protect(model, optimizer, SPECS, memory=tmp_path / "memory", **options) as protected:
        for batch in DataLoader(protected.data, 4, collate_fn=options["collate"]):
            protected.loss(dict(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = protected.report
    assert report.steps == 3
    assert {"ewc/penalty", "das/contrast"} <= report.penalties.keys()
    assert report.forgetting[0].rows > 5
    assert report.forgetting[0].forgotten.interval is not None


@pytest.mark.parametrize(
    ("architecture", "text", "says"),
    [("gpt2", ["too short"], "fewer than a row"), ("t5", GENERAL, "an encoder-decoder does not learn")],
)
def test_text_that_cannot_be_scored_is_refused_at_once(tmp_path: Path, architecture: str, text: Any, says: str) -> None:
    trainer = trainer_of(tiny.model(architecture), tmp_path)
    with pytest.raises(EverlearnError, match=says):
        protect(trainer, ["ewc"], memory=tmp_path / "memory", held_out=text)
