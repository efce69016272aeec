"""Chats: read in every common form, learnt where the assistant speaks; and whether a model still chats."""

from __future__ import annotations

import copy
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import trl

import tiny
from everlearn.commands.data_probe import probe
from everlearn.config.recipe import Evaluation, parse
from everlearn.data.chats import ChatFormat
from everlearn.data.columns import choose_columns
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.documents import read_documents
from everlearn.data.messages import Message, messages_in
from everlearn.data.packing import IGNORED, ChatPacker
from everlearn.data.prepare import prepare
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, EverlearnError, ModelError
from everlearn.evaluation import METRICS
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint, Predictor
from everlearn.tasks.chat import PROMPTS, Chat, ChatTask, _text, template_of

PLAIN = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<s>assistant: "
    "{% generation %}{{ message['content'] }}</s>{% endgeneration %}"
    "{% else %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
FORGETS = (
    "{% for message in messages %}{% if loop.last or message['role'] == 'user' %}"
    "{{ message['content'] }}|{% endif %}{% endfor %}"
)
REFUSES = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('the user begins') }}{% endif %}" + PLAIN
CHAT = (
    Message("system", "random words"),
    Message("user", "the mean of a sample"),
    Message("assistant", "solve the equation"),
    Message("user", "and the variance"),
    Message("assistant", "test the vector"),
)


def tokenizer(template: str | None = PLAIN) -> Any:
    """The tests' tokenizer with a chat template."""
    made = copy.deepcopy(tiny.tokenizer())
    made.chat_template = template
    return made


def as_dicts(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    """The messages as the field writes them."""
    return [message.as_dict() for message in messages]


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["prefixes", "marked by the template"])
def test_what_the_assistant_says_is_learnt_with_its_end(template: str) -> None:
    made = tokenizer(template)
    ids, learnt = ChatFormat(made).encode(CHAT)
    assert ids == made(made.apply_chat_template(as_dicts(CHAT), tokenize=False), add_special_tokens=False)["input_ids"]
    runs, last = [], False
    for number, own in zip(ids, learnt, strict=True):
        if own and not last:
            runs.append([])
        if own:
            runs[-1].append(number)
        last = own
    # A token that begins with the blank before the answer belongs to it.
    assert [made.decode(run).lstrip() for run in runs] == ["solve the equation</s>", "test the vector</s>"]


def test_a_first_turn_of_the_assistant_is_not_learnt() -> None:
    ids, learnt = ChatFormat(tokenizer()).encode((Message("assistant", "test"), *CHAT[1:3]))
    assert learnt[0] is False
    assert sum(learnt) < len(ids) / 2


def test_a_greeting_that_is_not_learnt_costs_no_bytes() -> None:
    made = tokenizer()
    counts = []
    for messages in (CHAT[1:3], (Message("assistant", "hello " * 30), *CHAT[1:3])):
        packer = ChatPacker(Encoder(made, "decoder"), 512)
        packer.feed([Document("", "", messages)])
        counts.append((packer.count.text_bytes, packer.count.text_tokens))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["prefixes", "marked by the template"])
@pytest.mark.parametrize("weights", [(0, 1), (1, 0), (0, None), (None, False)])
def test_a_turn_with_a_weight_of_0_is_read_and_not_learnt(template: str, weights: tuple[Any, Any]) -> None:
    said = [as_dicts(CHAT[1:])[n] | {"weight": weights[n // 2] if n % 2 else None} for n in range(4)]
    messages = messages_in(said, "messages", "row 1")
    made = tokenizer(template)
    chats = ChatFormat(made)
    ids, learnt = chats.encode(messages)
    assert ids == chats.encode(CHAT[1:])[0], "the template does not see the weight"
    wanted = CHAT[4 if weights[1] in (1, None) else 2].content
    assert made.decode([n for n, own in zip(ids, learnt, strict=True) if own]).strip() == f"{wanted}</s>"
    assert chats.learnt(messages) == [wanted]


@pytest.mark.parametrize("key", ["loss", "train", "training"])
def test_other_tools_say_with_false_that_a_turn_is_not_learnt(key: str) -> None:
    said = [each | {key: each["role"] != "assistant" or n == 3} for n, each in enumerate(as_dicts(CHAT[1:]))]
    messages = messages_in(said, "messages", "row 1")
    assert ChatFormat(tokenizer()).learnt(messages) == [CHAT[4].content]
    assert all(key not in each.as_dict() for each in messages), "the template does not see it"


def test_a_weight_between_is_refused() -> None:
    said = [{"role": "assistant", "content": "a", "weight": 0.5}]
    with pytest.raises(DataError, match="the `weight` of message 1 is neither 0 nor 1"):
        messages_in(said, "messages", "row 1")


def test_a_template_that_writes_the_date_gives_the_same_rows_on_every_day() -> None:
    dated = ChatFormat(tokenizer("{{ strftime_now('%d %b %Y') }}" + PLAIN))
    assert dated.text(CHAT).startswith("26 July 2024<s>system")


def test_special_tokens_are_those_of_the_template() -> None:
    made = tokenizer()
    ids, _ = ChatFormat(made).encode(CHAT[1:3])
    assert ids.count(made.convert_tokens_to_ids("</s>")) == 2


@pytest.mark.parametrize(
    ("template", "error", "says"),
    [
        (None, ModelError, "no chat template"),
        (FORGETS, DataError, "writes earlier turns differently"),
        (REFUSES, DataError, "refuses a chat of the roles system, user, assistant, user, assistant: the user begins"),
    ],
)
def test_templates_that_cannot_do_it_are_refused(template: str | None, error: type[EverlearnError], says: str) -> None:
    with pytest.raises(error, match=says):
        ChatFormat(tokenizer(template)).encode(CHAT)


PUBLISHED = Path(trl.__file__).parent / "chat_templates"
"""Chat templates of models, as TRL has them."""
SPECIAL = re.compile(r"<\|[^|<>]+\|>|<｜[^｜]+｜>|</?s>|<end_of_(?:utterance|turn)>|<start_of_turn>")
TURNS = (
    Message("user", "the mean"),
    Message("assistant", "first answer"),
    Message("user", "and the variance"),
    Message("assistant", "second answer"),
)
LEARNT = {
    "deepseek_r1_distill": "first answer<｜end▁of▁sentence｜>second answer<｜end▁of▁sentence｜>",
    "deepseekv3": "first answer<｜end▁of▁sentence｜>second answer<｜end▁of▁sentence｜>",
    "gemma3": "first answer<end_of_turn>\nsecond answer<end_of_turn>\n",
    "glm4moe": "\n<think></think>\nfirst answer<|user|>\n<think></think>\nsecond answer<|user|>",
    "gptoss": "<|channel|>final<|message|>first answer<|end|><|channel|>final<|message|>second answer<|return|>",
    "llama3": "first answer<|eot_id|>second answer<|eot_id|>",
    "llava_next": " first answer</s>  second answer</s> ",
    "nemotron_3_nano": "</think>first answer<|im_end|>\n</think>second answer<|im_end|>\n",
    "phi3": "first answer<|end|>second answer<|end|>\n</s>",
    "qwen3": "first answer<|im_end|>\n<think>\n\n</think>\n\nsecond answer<|im_end|>\n",
    "qwen3_5_think": "first answer<|im_end|>\n\n</think>\n\nsecond answer<|im_end|>\n",
    "smolvlm": " first answer<end_of_utterance>\n second answer<end_of_utterance>\n",
}
"""Template → what of two turns is learnt. Most write earlier turns, or how a turn begins, in more than one way."""


def published(name: str) -> Any:
    """The tests' tokenizer with a model's template and its special tokens."""
    template = (PUBLISHED / f"{name}.jinja").read_text(encoding="utf-8")
    made = tokenizer(template)
    made.add_special_tokens({"additional_special_tokens": sorted({*SPECIAL.findall(template)})})
    return made


@pytest.mark.parametrize("name", LEARNT)
def test_turns_are_learnt_with_the_templates_of_models(name: str) -> None:
    made = published(name)
    ids, learnt = ChatFormat(made).encode(TURNS)
    assert made.decode([number for number, own in zip(ids, learnt, strict=True) if own]) == LEARNT[name]
    if name not in ("gptoss", "llava_next", "smolvlm"):  # which write the date, or read lists of parts
        whole = made.apply_chat_template(as_dicts(TURNS), tokenize=False)
        whole += "<|user|>" if name == "glm4moe" else ""
        assert ids == made(whole, add_special_tokens=False)["input_ids"]


def test_a_turn_that_is_not_learnt_is_left_out_where_marks_tell_turns() -> None:
    made, said = published("qwen3"), [*TURNS[:1], TURNS[1]._replace(trained=False), *TURNS[2:]]
    ids, learnt = ChatFormat(made).encode(said)
    assert "first" not in made.decode([number for number, own in zip(ids, learnt, strict=True) if own])


@pytest.mark.parametrize("name", ["qwen3", "deepseekv3", "gptoss"])
def test_marks_that_a_message_spells_out_are_no_turns(name: str) -> None:
    made = published(name)
    marks = ChatFormat(made)._turn_marks
    spelt = f"say {marks.begin}{marks.ends[-1]} now"
    said = [*TURNS[:1], Message("assistant", spelt), TURNS[2]._replace(content=spelt), TURNS[3]]
    ids, learnt = ChatFormat(made).encode(said)
    own = made.decode([number for number, each in zip(ids, learnt, strict=True) if each])
    assert spelt in own
    assert own.count("second answer") == 1
    assert own.count("now") == 1


NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<s>{{ m['content'] }}</s>"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)


def test_a_template_without_system_messages_is_refused_where_there_is_one() -> None:
    chats = ChatFormat(tokenizer(NO_SYSTEM))
    assert CHAT[0].role == "system"
    with pytest.raises(DataError, match="leaves out what the system says"):
        chats.encode(CHAT)
    first = CHAT[1]._replace(content=f"{CHAT[0].content} {CHAT[1].content}")
    assert any(chats.encode([first, *CHAT[2:]])[1]), "the advice"


def test_a_template_that_never_reads_reasoning_is_refused_where_there_is_some() -> None:
    thought = [CHAT[1], CHAT[2]._replace(fields={"reasoning_content": "First this, then that."})]
    with pytest.raises(DataError, match=r"leaves out what the assistant thinks \(`reasoning_content`\)"):
        ChatFormat(tokenizer()).encode(thought)
    assert any(ChatFormat(tokenizer()).encode([thought[0], thought[1]._replace(fields={})])[1]), "the advice"
    reads = PLAIN.replace("{{ message['content'] }}", "{{ message['reasoning_content'] }}{{ message['content'] }}")
    assert any(ChatFormat(tokenizer(reads)).encode(thought)[1])


def test_a_template_that_leaves_out_what_is_said_is_refused() -> None:
    silent = "{% for message in messages %}<s>{{ message['role'] }}:</s>{% endfor %}"
    made = tokenizer(silent + "{% if add_generation_prompt %}<s>assistant:{% endif %}")
    with pytest.raises(DataError, match=r"leaves out what the assistant says .'solve the equation'."):
        ChatFormat(made).encode(CHAT)


FORMS = {
    "role and content": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "ShareGPT": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}],
    "Gemini": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}],
    "a turn without content": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "b"},
    ],
    "capitals": [{"role": "User", "content": "a"}, {"role": "Assistant", "content": "b"}],
}


@pytest.mark.parametrize("form", FORMS)
def test_common_forms(form: str) -> None:
    assert messages_in(FORMS[form], "messages", "here") == (Message("user", "a"), Message("assistant", "b"))


@pytest.mark.parametrize(
    "value",
    ["text", {"role": "user"}, ["text", 1], [{"role": "user"}], [{"role": 1, "content": "a"}],
     [{"role": "user", "content": [{"type": "image_url", "url": "x"}]}], [{"from": "human", "content": "a"}],
     [{"role": "assistant", "content": None, "tool_calls": [{"arguments": {}}]}],
     [{"role": "model", "parts": [{"thought": True, "text": "a"}, {"text": "b"}]}]],
)  # fmt: skip
def test_other_values_are_refused_with_the_place(value: Any) -> None:
    with pytest.raises(DataError, match=r"line 7: column 'messages' \(`messages_column`\)"):
        messages_in(value, "messages", "line 7")


def rows(count: int) -> list[dict[str, Any]]:
    """Chats of one to three questions."""
    words = tiny.texts(6 * count, seed=5, words=6)
    return [
        {
            "messages": [
                {"role": role, "content": words[6 * number + 2 * turn + part]}
                for turn in range(1 + number % 3)
                for part, role in enumerate(("user", "assistant"))
            ]
        }
        for number in range(count)
    ]


def written(folder: Path, count: int = 60, ending: str = "jsonl") -> Path:
    """A corpus of chats."""
    path = folder / f"chats.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows(count)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(count)), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_file_of_chats_gives_documents(tmp_path: Path, ending: str) -> None:
    corpus = Corpus(path=str(written(tmp_path, ending=ending)), messages_column="messages")
    documents = [document for document, _ in read_documents(corpus)]
    assert len(documents) == 60
    said = rows(60)[2]["messages"]
    assert as_dicts(documents[2].messages) == said
    assert documents[2].target == "\n".join(each["content"] for each in said if each["role"] == "assistant")


def test_a_chat_in_which_the_assistant_says_nothing_is_no_document(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    asked = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    path.write_text(asked + "\n" + json.dumps(rows(1)[0]) + '\n{"messages": null}\n', encoding="utf-8")
    assert len(list(read_documents(Corpus(path=str(path), messages_column="messages")))) == 1


def test_blocks_hold_whole_chats_and_learn_what_the_assistant_says(tmp_path: Path) -> None:
    made = tokenizer()
    packer = ChatPacker(Encoder(made, "decoder"), 64)
    documents = [d for d, _ in read_documents(Corpus(path=str(written(tmp_path)), messages_column="messages"))]
    blocks = [*packer.feed(documents), *packer.finish()]
    found = []
    for block in blocks:
        for segment in np.unique(block["segments"]):
            own = block["segments"] == segment
            ids, labels = block["input_ids"][own], block["labels"][own]
            if (labels != IGNORED).any():
                assert (labels[labels != IGNORED] == ids[labels != IGNORED]).all()
                found.append((ids.tolist(), (labels != IGNORED).tolist()))
    expected = [ChatFormat(made).encode(document.messages) for document in documents]
    kept = [(ids[:64], learnt[:64]) for ids, learnt in expected if any(learnt[:64])]
    assert found == kept
    assert packer.count.truncated == sum(len(ids) > 64 for ids, _ in expected)
    assert packer.count.documents == 60
    # Labels are the tokens of the text and one end for each chat: that is what a byte costs.
    assert packer.count.text_tokens + 60 == sum(sum(learnt) for _, learnt in expected)
    said = [m.content for document in documents for m in document.messages if m.role == "assistant"]
    assert packer.count.text_bytes == sum(len(content.encode()) for content in said)


def test_another_template_makes_other_rows(tmp_path: Path) -> None:
    corpus = Domain(name="chats", path=str(written(tmp_path)), messages_column="messages", validation=0.2)
    prints = {
        prepare(corpus, tokenizer(template), "decoder", 64, seed=0, cache=tmp_path / "cache").fingerprint
        for template in (PLAIN, MARKED)
    }
    assert len(prints) == 2


def test_encoders_do_not_learn_chats(tmp_path: Path) -> None:
    corpus = Domain(name="chats", path=str(written(tmp_path)), messages_column="messages")
    with pytest.raises(DataError, match="'chats' has `messages_column: messages`, which only a decoder learns"):
        prepare(corpus, tokenizer(), "encoder", 64, seed=0, cache=tmp_path / "cache")


def test_two_forms_of_answers_are_refused() -> None:
    with pytest.raises(EverlearnError, match="two forms of answers"):
        parse(
            {"model": "m", "domains": [{"name": "a", "path": "a.jsonl", "target_column": "b", "messages_column": "c"}]}
        )


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"tools": [{"name": "f"}], "messages": FORMS["capitals"]}, {"row_format": "messages"}),
        ({"other": FORMS["capitals"], "conversations": FORMS["ShareGPT"]}, {"row_format": "sharegpt"}),
        ({"talk": FORMS["capitals"]}, {"messages_column": "talk"}),
    ],
)
def test_the_column_of_chats(row: dict[str, Any], keys: dict[str, str]) -> None:
    assert choose_columns([row], "rows", None).keys == keys


def test_other_lists_are_no_chats() -> None:
    with pytest.raises(DataError, match="has no column of text"):
        choose_columns([{"entities": [{"start": 1, "end": 2}]}], "rows", None)


def test_sources_of_both_forms_make_one_domain() -> None:
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl", "target_column": "answer"}]
    domain = Domain(name="a", sources=sources, messages_column="messages")
    assert [source.messages_column for source in domain.sources] == ["messages", None]
    assert domain.answers


def test_plain_text_stands_beside_answers(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("\n".join(tiny.texts(60, seed=2)), encoding="utf-8")
    sources = [{"path": str(written(tmp_path))}, {"path": str(path), "messages_column": None, "text_column": "text"}]
    domain = Domain(name="a", sources=sources, messages_column="messages", validation=0.3)
    assert [part.beside_answers for part in domain.parts] == [False, True]
    prepared = prepare(domain, tokenizer(), "decoder", 32, seed=0, cache=tmp_path)
    alone = prepare(domain.parts[1].model_copy(), tokenizer(), "decoder", 32, seed=0, cache=tmp_path)
    assert prepared.validation is not None
    assert set(prepared.validation.arrays) == {"input_ids", "segments", "labels"}
    learnt = [
        row["labels"][row["labels"] != IGNORED] for row in prepared.validation.take(range(len(prepared.validation)))
    ]
    read = sum(len(tokenizer().decode(row, skip_special_tokens=True).encode()) for row in learnt)
    assert prepared.bytes_per_token == pytest.approx(read / sum(map(len, learnt)), rel=0.05)
    plain = next(alone.train)
    assert plain["labels"].tolist() == plain["input_ids"].tolist()
    with pytest.raises(DataError, match="needs a `target_column`: an encoder-decoder"):
        prepare(domain.parts[1], tokenizer(), "encoder-decoder", 32, seed=0, cache=tmp_path)


def test_an_encoder_learns_plain_text_beside_answers(tmp_path: Path) -> None:
    plain, asked = tmp_path / "plain.txt", tmp_path / "asked.jsonl"
    plain.write_text("\n".join(tiny.texts(60, seed=2)), encoding="utf-8")
    asked.write_text(
        "".join(json.dumps({"text": text + " ", "answer": text[:12]}) + "\n" for text in tiny.texts(60, seed=4)),
        encoding="utf-8",
    )
    sources = [{"path": str(plain)}, {"path": str(asked), "target_column": "answer", "weight": 1.5}]
    domain = Domain(name="a", sources=sources, validation=0.3)
    words = tiny.tokenizer()
    prepared = prepare(domain, words, "encoder", 32, seed=0, cache=tmp_path, predicted=0.15)
    model = tiny.model("roberta").eval()
    objective = make_objective("masked", model, words, examples=True)
    blocks = list(islice(prepared.train, 8))
    kinds = [bool((block["labels"] == IGNORED).any()) for block in blocks]
    assert {True, False} == set(kinds)
    batch = objective.collate(blocks, list(range(8)))
    nats, predicted = 0.0, 0
    for row, (block, answers) in enumerate(zip(blocks, kinds, strict=True)):
        ids = batch["input_ids"][row]
        labels = torch.from_numpy(block["labels"].astype(np.int64))
        segments = block["segments"]
        if answers:  # each token of an answer is a mask
            places = torch.nonzero(labels != IGNORED)[:, 0]
            assert (ids[places] == words.mask_token_id).all()
        else:  # 15 % of a row of plain text
            places = batch["positions"][row][batch["labels"][row] != IGNORED]
            assert len(places) == round(0.15 * 32)
            assert (ids == labels)[~torch.isin(torch.arange(32), places)].all()
        for place in places.tolist():  # a document alone, at positions of its own
            own = np.flatnonzero(segments == segments[place])
            with torch.no_grad():
                alone = model(input_ids=ids[own][None]).logits[0, place - own[0]].double()
            nats -= float(torch.log_softmax(alone, -1)[labels[place]])
            predicted += 1
    found = objective.forward(model, batch)
    assert int(found.items) == predicted
    assert float(found.losses.detach().double().sum()) == pytest.approx(nats, rel=1e-5)
    # A byte costs what the predicted tokens cost: a part of plain text, all of an answer.
    held = prepared.validation
    assert held is not None
    rows = held.take(range(len(held)))
    answer = sum(int((row["labels"] != IGNORED).sum()) for row in rows if (row["labels"] == IGNORED).any())
    text = sum(round(0.15 * 32) for row in rows if (row["labels"] != IGNORED).all())
    widths = [prepare(part, words, "encoder", 32, seed=0, cache=tmp_path).bytes_per_token for part in domain.parts]
    assert prepared.bytes_per_token == pytest.approx((text * widths[0] + answer * widths[1]) / (text + answer))


@pytest.mark.parametrize("key", [{"keep_last": 3}, {"text_column": "body"}])
def test_keys_without_effect_are_refused(key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no effect beside `messages_column`"):
        Corpus(path="a.jsonl", messages_column="messages", **key)


def test_init_finds_chats(tmp_path: Path) -> None:
    found = probe(str(written(tmp_path)), "--domain")
    assert found.columns.keys == {"row_format": "messages"}
    assert found.columns.answers


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)


def chat_tokenizer(template: str | None) -> Any:
    made = copy.deepcopy(tiny.tokenizer())
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    made.model_max_length = 128
    return made


def how(model: Any, words: Any) -> Conditions:
    return Conditions("base", words, make_objective("causal", model, words), batch_size=3)


class Scripted(Predictor):
    """Writes what it is told, up to the end that is asked for."""

    def __init__(self, model: Any, words: Any, answers: list[str]) -> None:
        self.model, self.words, self.answers = model, words, iter(answers)

    def generate(self, inputs: Any, *, max_new_tokens: int, stop: Any) -> list[list[int]]:
        found = []
        for _ in inputs["input_ids"]:
            ids = self.words(next(self.answers), add_special_tokens=False)["input_ids"]
            end = next((place for place, number in enumerate(ids) if number in stop), len(ids))
            found.append(ids[:end][:max_new_tokens])
        return found


def test_the_end_of_a_turn_is_read_from_the_template() -> None:
    words = chat_tokenizer(CHATML)
    template = template_of(words)
    assert words.convert_ids_to_tokens(template.end) == "<|im_end|>"
    assert {"<|im_start|>", "</s>", "<mask>"} <= set(template.marks)
    assert "<|im_end|>" not in template.marks
    assert not any(mark.isalnum() for mark in template.marks)
    words = chat_tokenizer(BRACKETS)
    template = template_of(words)
    assert template.end == words.eos_token_id
    assert {"[INST]", "[/INST]"} <= set(template.marks)


@pytest.mark.parametrize(
    ("name", "end"), [("glm4moe", "<|user|>"), ("smolvlm", "<end_of_utterance>"), ("gptoss", "<|return|>")]
)
def test_the_end_of_a_turn_is_read_from_the_templates_of_models(name: str, end: str) -> None:
    words = published(name)
    assert words.convert_ids_to_tokens(template_of(words).end) == end


def test_prompts_reach_a_template_that_reads_lists_of_parts() -> None:
    words = published("smolvlm")
    assert "What is it?" in _text(words, [{"role": "user", "content": "What is it?"}], True)


def test_what_has_no_template_or_no_end_is_refused() -> None:
    with pytest.raises(ModelError, match="has none"):
        Chat(ChatTask()).check_tokenizer(tiny.tokenizer())
    with pytest.raises(ModelError, match="does not end a turn with a special token"):
        template_of(chat_tokenizer("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"))
    with pytest.raises(ModelError, match="cannot be used"):
        template_of(chat_tokenizer("{{ nothing.at.all }}"))
    with pytest.raises(ModelError, match="a masked model only fills gaps"):
        Chat(ChatTask()).check_model("encoder")


def test_an_answer_counts_that_ends_its_turn_and_leaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\nfour\n", encoding="utf-8")
    words, model = chat_tokenizer(CHATML), tiny.model("llama", vocab_size=400)
    task = Chat(ChatTask(prompts=str(path), max_new_tokens=8))
    answers = [
        "it<|im_end|>",
        "the model learns a domain and keeps what it knew before while tensors flow",  # ends never
        "it</s><|im_end|>",  # another token ends it
        "it<|im_start|>user\nit and it and it and it",
    ]
    cell = task.measure(Scripted(model, words, answers), how(model, words))
    by_text = dict(zip(cell.texts, zip(cell["ends_turn"], cell["clean"], cell["chats"], strict=True), strict=True))
    assert by_text["it"] == (1, 1, 1)
    assert by_text["it</s>"] == (1, 0, 0)
    assert sorted(by_text.values()) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1)]
    assert METRICS["chats"].score(cell) == 0.25
    assert [metric.name for metric in metrics_of([cell])] == ["chats", "ends_turn", "clean"]


def test_a_model_is_asked_in_the_template() -> None:
    """One that always says the same token ends every turn, or none."""
    words, model = chat_tokenizer(CHATML), tiny.model("llama", vocab_size=400)
    task = Chat(ChatTask(max_new_tokens=4))
    end = template_of(words).end
    for token, share in ((end, 1.0), (words.convert_tokens_to_ids("a"), 0.0)):
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.model.norm.weight.zero_()  # hidden states are 0, so the head's bias decides
        model.lm_head = torch.nn.Linear(32, 400)
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.lm_head.bias.zero_()[token] = 1
        cell = task.measure(Checkpoint(model, how(model, words).objective), how(model, words))
        assert len(cell) == len(PROMPTS)
        assert METRICS["chats"].score(cell) == share


def test_a_recipe_says_true_or_more() -> None:
    assert [task.name for task in Evaluation(chat=True).always()] == ["chat"]
    assert Evaluation(chat=False).always() == ()
    assert Evaluation(chat={"max_new_tokens": 9}).chat.max_new_tokens == 9
    with pytest.raises(DataError, match="there is no such file"):
        Chat(ChatTask(prompts="nowhere.txt")).check()
