"""A run that learns chats and plain text, one after the other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SAVING, Killer, assert_same, elsewhere, kill_and_resume, recipe
from transformers import AutoModelForCausalLM

import tiny
from everlearn.config.recipe import Recipe
from everlearn.data.packing import IGNORED
from everlearn.learner import ContinualLearner

pytestmark = pytest.mark.usefixtures("no_report")
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def made(folder: Path, **keys: Any) -> Recipe:
    """Chats, then text."""
    built = recipe(folder, "gpt2", dropout=0.0, train=SAVING, evaluation={"samples": 1})
    tokenizer = tiny.tokenizer()
    before, tokenizer.chat_template = tokenizer.chat_template, TEMPLATE
    tokenizer.save_pretrained(Path(built.model.path or ""))
    tokenizer.chat_template = before
    words = iter(tiny.texts(400, seed=5, words=6))
    path = folder / "chats.jsonl"
    chats = [
        [{"role": role, "content": next(words)} for _ in range(1 + number % 3) for role in ("user", "assistant")]
        for number in range(60)
    ]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), encoding="utf-8")
    first = {"name": "chats", "path": str(path), "messages_column": "messages", "validation": 0.2, **keys}
    return built.changed(domains=[first, built.domains[0].model_dump(mode="json")])


def chatting(of: Recipe) -> Recipe:
    """A recipe whose model ends its messages now and then, in rows that have room for a chat."""
    model: Any = AutoModelForCausalLM.from_pretrained(of.model.path)
    model.transformer.ln_f.bias.data = 400 * model.lm_head.weight.data[tiny.tokenizer().eos_token_id]
    model.save_pretrained(of.model.path)
    return of.changed(data=of.data.model_dump(mode="json") | {"block_size": 96})


@pytest.mark.parametrize("streaming", [False, True])
def test_one_domain_has_chats_and_plain_text(tmp_path: Path, streaming: bool) -> None:
    built = made(tmp_path)
    chats, text = (domain.model_dump(mode="json") for domain in built.domains)
    shares = {"chats": 3, "text": 1}
    forms = ({"path": chats["path"], "messages_column": "messages"}, {"path": text["path"]})
    sources = [{**form, "weight": shares[name]} for name, form in zip(shares, forms, strict=True)]
    both = {"name": "both", "sources": sources, "validation": 0.2, "streaming": streaming}
    learner = ContinualLearner(built.changed(domains=[both]))
    results = learner.run()
    mixture = json.loads((learner.folder.stage(1, "both") / "stage.json").read_text())["mixture"]
    assert [part["asked"] for part in mixture] == [0.75, 0.25]
    rows = sum(part["tokens"] for part in mixture) // learner.setting().block_size
    for part in mixture:
        assert abs(part["realised"] - part["asked"]) * rows <= 1
    task = learner.scorer().held_out("both")
    blocks, tokenizer = task.held_out.blocks, learner.setting().tokenizer
    model = learner.model_after(1).double().eval()
    widths = task.held_out.rows["bytes_per_token"]
    nats = size = 0.0
    texts = []
    for block, width in zip(blocks.take(range(len(blocks))), widths, strict=True):
        for segment in np.unique(block["segments"]):
            at = block["segments"] == segment
            ids, own = (torch.from_numpy(block[key][at].astype(np.int64))[None] for key in ("input_ids", "labels"))
            if count := int((own[:, 1:] != IGNORED).sum()):
                nats += float(model(input_ids=ids, labels=own).loss.detach()) * count
                size += count * width
                texts.append(tokenizer.decode(own[own != IGNORED]))
    score = results.matrices["bits_per_byte"].estimates()["both", "both"].value
    assert score == pytest.approx(nats / math.log(2) / size, rel=1e-4)
    lines = Path(chats["path"]).read_text().splitlines()
    turns = [message["content"] for line in lines for message in json.loads(line)["messages"]]
    assert any(turn in text for text in texts for turn in turns[1::2]), "the assistant's turns are learnt"
    assert not any(turn in text for text in texts for turn in turns[::2]), "the user's are not"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_learns_chats_and_plain_text(tmp_path: Path, streaming: bool) -> None:
    results = ContinualLearner(made(tmp_path, streaming=streaming)).run()
    scores = results.matrices["bits_per_byte"].estimates()
    assert scores["chats", "chats"].value < scores["base", "chats"].value


@pytest.mark.parametrize("form", ["chats", "rows"])
def test_chats_in_memory_are_those_of_a_file(tmp_path: Path, form: str) -> None:
    built = made(tmp_path)
    keys = {"name": "chats", "messages_column": "messages", "validation": 0.2}
    rows = [json.loads(line) for line in Path(built.domains[0].path).read_text().splitlines()]
    given = {"chats": [row["messages"] for row in rows], "rows": rows}[form]
    groups = built.model_dump(mode="json", exclude={"domains", "model", "run", "method", "general", "end_tasks"})
    learners = [
        ContinualLearner(model=built.model.path, domains=[{**keys, **text}], folder=tmp_path / name, **groups)
        for name, text in (("memory", {"data": given}), ("file", {"path": built.domains[0].path}))
    ]
    assert len({learner.prepared("chats").fingerprint for learner in learners}) == 1


@pytest.mark.parametrize(
    "method",
    ["sequential", {"name": "sdft", "max_new_tokens": 6, "rate": 0.2}, {"name": "replay_generated_chats"}],
    ids=str,
)
def test_a_killed_run_ends_in_the_same_weights(
    method: str | dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = made(tmp_path, streaming=True, shuffle_buffer=3).changed(method=[method])
    if method == {"name": "replay_generated_chats"}:
        broken = chatting(broken)
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, ["step 1.3", "checkpoint 1.4", "end"])
    assert_same(broken.folder(), whole.folder())


@pytest.mark.parametrize(("method", "last"), [("forever", "first"), ("derpp", "first"), ("derpp", "chats")])
def test_a_memory_holds_chats_beside_plain_text(tmp_path: Path, method: str, last: str) -> None:
    built = made(tmp_path)
    domains = sorted(
        (domain.model_dump(mode="json") for domain in built.domains), key=lambda each: each["name"] == last
    )
    again = {**domains[0], "name": "again"}
    train = {**built.train, "max_steps": 2}
    results = ContinualLearner(built.changed(domains=[*domains, again], method=[{"name": method}], train=train)).run()
    assert all(math.isfinite(each.value) for each in results.matrices["bits_per_byte"].estimates().values())
