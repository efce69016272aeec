"""Replay of chats that an instruct model writes itself, against the same chats written word by word."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch

import stages
import tiny
from everlearn.data import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.data.packing import make_packer
from everlearn.data.tokenize import Encoder
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Stage
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.rehearsal.generated import generated_rows
from everlearn.model.objectives import IGNORE
from everlearn.seeding import seed_for

START, END = 0, 2

CHATS = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def chatting(much: float = 400.0, size: int = 96) -> Stage:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = CHATS
    stage.tokenizer, stage.source = tokenizer, stages.source(count=1)
    stage.source.block_tokens = size
    stage.model.transformer.ln_f.bias.data = much * stage.model.lm_head.weight.data[END]  # it leans to the end
    return stage


def slow_chat(stage: Stage, number: int, size: int) -> tuple[list[int], int] | None:
    """The ids of a chat and where its answer begins, word by word; None for one that is dropped."""

    def read(text: str) -> list[int]:
        return stage.tokenizer(text, add_special_tokens=False)["input_ids"]

    special, before, between = set(stage.tokenizer.all_special_ids), read("<s>user\n"), read("</s>\n<s>assistant\n")
    room = size - len(before) - len(between)
    chances = torch.rand(
        room, generator=torch.Generator().manual_seed(seed_for(stage.seed, "generated", 1, number)), dtype=torch.float64
    ).tolist()
    ids, start = [*before], 0
    for begin, end in ((0, room // 2), (room // 2, room)):
        start = len(ids)
        for chance in chances[begin:end]:
            with torch.no_grad():
                logits = stage.model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().numpy()
            likely = np.exp(logits - logits.max()).cumsum()
            ids.append(int(np.searchsorted(likely, chance * likely[-1], side="right")))
            if ids[-1] == END:
                break
        said = ids[start:-1] if ids[-1] == END else ids[start:]
        if not said or special & set(said) or (begin == 0 and ids[-1] != END):
            return None
        if begin == 0:
            ids = [*ids[:-1], *between]
    return ids, start


def test_chats_are_samples_of_the_model_through_its_template() -> None:
    size, stage = 96, chatting()
    rows, count = generated_rows(stage, wanted=3, sweeps=1, chats=True)
    assert len(rows) == 3
    found = []
    for row in rows:
        assert row["input_ids"].shape == row["labels"].shape == (size,)
        for segment in np.unique(row["segments"]):
            at = row["segments"] == segment
            learnt = row["labels"][at] != IGNORE
            if learnt.any():
                ids = row["input_ids"][at].tolist()
                assert row["labels"][at][learnt].tolist() == ids[int(learnt.argmax()) :]
                found.append((ids, int(learnt.argmax())))
    whole = (chat for number in itertools.count() if (chat := slow_chat(stage, number, size)) is not None)
    assert found == list(itertools.islice(whole, len(found)))
    assert 3 < len(found) <= count
    assert any(ids[-1] == END for ids, _ in found), "an end is learnt"


def test_chats_are_learnt_beside_plain_text() -> None:
    stage = chatting()
    packer = make_packer(Encoder(stage.tokenizer, "decoder"), 96, examples=False)
    stage.source = PackedBlocks.from_blocks(packer.feed([Document(text) for text in tiny.texts(30)]), 1, "d1")
    method = build({"name": "replay_generated_chats", "share": 0.25})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.objective.tokenizer, "chat_template", CHATS)
        (parts, *_) = stages.learn([method], stage)
    assert torch.isfinite(parts["loss"])
    assert any("chats; its training replays" in note for note in stage.notes)


def test_a_model_that_does_not_chat_says_so() -> None:
    with pytest.raises(MethodError, match="no chat before 'd1': none of 32 questions has an end and an answer"):
        generated_rows(chatting(1e5), wanted=1, sweeps=1, chats=True)


def test_chats_need_a_decoder_and_a_template() -> None:
    method = build("replay_generated_chats")
    for architecture, objective, says in (
        ("roberta", "masked", "needs a decoder, which an encoder is not"),
        ("gpt2", "causal", "the tokenizer has no chat template"),
    ):
        with pytest.raises(MethodError, match=says):
            check_methods([method], stages.setting(tiny.model(architecture), [method], objective))
