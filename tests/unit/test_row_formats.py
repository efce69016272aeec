"""Rows of the common kinds, read by one key of the recipe."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather
from trl import apply_chat_template

import tiny
from cli_project import Project
from everlearn.commands.data_probe import probe
from everlearn.config.recipe import parse
from everlearn.data.chats import ChatFormat
from everlearn.data.columns import choose_columns, text_corpus
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.documents import Skipped, corpus_fingerprint, read_documents
from everlearn.data.messages import Message, messages_in
from everlearn.data.notes import notes_of, unread_files
from everlearn.data.packing import IGNORED, AnswerPacker, ChatPacker, PairPacker, packer_of
from everlearn.data.prepare import prepare
from everlearn.data.row_formats import ROW_FORMATS
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, EverlearnError
from everlearn.grid.arrangements import pooled
from everlearn.run import inputs

TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<s>assistant: "
    "{% generation %}{{ message['content'] }}</s>{% endgeneration %}"
    "{% else %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
BELOW = "Below is an instruction that describes a task"
WRITE = "Write a response that appropriately completes the request."
FURTHER = ", paired with an input that provides further context"
ASKED = [{"role": "user", "content": "Add 1 and 2."}]
CHAT = [*ASKED, {"role": "assistant", "content": "3"}]
SHAREGPT = [{"from": "human", "value": "Add 1 and 2."}, {"from": "gpt", "value": "3"}]
GEMINI = [{"role": "user", "parts": [{"text": "Add 1 and 2."}]}, {"role": "model", "parts": [{"text": "3"}]}]
PAIR = {"prompt": "Add 1 and 2.", "chosen": "3", "rejected": "4"}
LISTS = {"prompt": ASKED, "chosen": CHAT[1:], "rejected": CHAT[1:]}
ROWS: dict[str, tuple[dict[str, Any], str | None]] = {
    "alpaca": (
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        f"{BELOW}{FURTHER}. {WRITE}\n\n### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:|3",
    ),
    "dolly": (
        {"instruction": "Add.", "context": "1 and 2", "response": "3", "category": "sums"},
        f"{BELOW}. {WRITE}\n\n### Instruction:\nAdd.\n\nInput:\n1 and 2\n\n### Response:\n|3",
    ),
    "messages": ({"messages": CHAT}, None),
    "sharegpt": ({"conversations": SHAREGPT, "id": "1"}, None),
    "gemini": ({"contents": GEMINI}, None),
    "preference": (PAIR, None),
    "prompt-completion": ({"prompt": "Add 1 and 2. ", "completion": "3"}, "Add 1 and 2. |3"),
    "prompt-response": ({"prompt": "Add 1 and 2. ", "response": "3"}, "Add 1 and 2. |3"),
    "prompt-answer": ({"prompt": "Add 1 and 2. ", "answer": "3"}, "Add 1 and 2. |3"),
    "question-answer": ({"question": "What is 1 and 2?", "answer": "3"}, "Question: What is 1 and 2?\nAnswer:| 3"),
    "question-response": ({"question": "What is it?", "response": "3"}, "Question: What is it?\nAnswer:| 3"),
    "query-answer": ({"query": "What is 1 and 2?", "answer": "3"}, "Question: What is 1 and 2?\nAnswer:| 3"),
    "question-answers": (
        {"question": "What is it?", "context": "1 and 2.", "answers": {"text": ["3", "three"], "answer_start": [0, 0]}},
        "1 and 2.\nQuestion: What is it?\nAnswer:| 3",
    ),
    "query-answers": ({"query": "What is it?", "answers": ["3", "three"]}, "Question: What is it?\nAnswer:| 3"),
    "query-response": ({"query": "What is 1 and 2?", "response": "3"}, "Question: What is 1 and 2?\nAnswer:| 3"),
}
"""Name → a row, and what is written without a chat template: the prompt, a bar, the answer."""


def tokenizer(template: str | None = TEMPLATE) -> Any:
    made = copy.deepcopy(tiny.tokenizer())
    made.chat_template = template
    return made


def written(folder: Path, rows: list[dict[str, Any]], ending: str = "jsonl") -> str:
    path = folder / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "csv":
        pa.csv.write_csv(pa.Table.from_pylist(rows), path)
    elif ending == "feather":
        feather.write_feather(pa.Table.from_pylist(rows), str(path))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def documents(path: str, form: str) -> list[Document]:
    return [document for document, _ in read_documents(Corpus(path=path, row_format=form))]


def test_every_format_is_tried_here_and_in_the_table_of_the_docs() -> None:
    assert set(ROWS) == set(ROW_FORMATS)
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    table = page.split("| `row_format` |")[1].split("\n\n")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    assert {name for first, _ in cells for name in first.replace("`", "").strip().split(", ")} == set(ROW_FORMATS)
    for first, columns in cells:
        form = ROW_FORMATS[first.split("`")[1]]
        named = {column.strip(" []") for column in columns.split(",")}
        assert columns.strip().startswith("as named") or named >= {
            *form.columns,
            *filter(None, (form.prompt, form.context)),
        }


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "feather"])
@pytest.mark.parametrize("form", ROWS)
def test_rows_are_recognised_and_read(tmp_path: Path, form: str, ending: str) -> None:
    row, plain = ROWS[form]
    path = written(tmp_path, [row] * 3, ending)
    found = probe(path, "--domain")
    assert found.columns.keys == {"row_format": form}
    assert not found.glued
    document = documents(path, form)[2]
    assert document.target == (plain or "|3").split("|")[1]
    assert document.messages[-1] == Message("assistant", "3")
    assert [message.role for message in document.messages] == ["user", "assistant"]
    assert plain is None or f"{document.text}|{document.target}" == plain


@pytest.mark.parametrize("form", ROWS)
def test_the_message_about_a_missing_column_names_the_key(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, [ROWS[form][0]])
    with pytest.raises(DataError, match="has no column 'text'") as raised:
        next(read_documents(Corpus(path=path)))
    key, value = str(raised.value).split("`")[1].split(": ")
    assert (key, value) == ("row_format", form)
    assert len(documents(path, value)) == 1


@pytest.mark.parametrize(("form", "column"), [("alpaca", "input"), ("dolly", "context")])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_without_a_context_the_block_is_left_out(tmp_path: Path, form: str, column: str, ending: str) -> None:
    row = ROWS[form][0]
    end = "" if form == "alpaca" else "\n"
    for empty in ("", None, "  ", ...):
        changed = {key: value for key, value in row.items() if key != column}
        path = written(tmp_path, [changed if empty is ... else changed | {column: empty}], ending)
        (document,) = documents(path, form)
        assert document.text == f"{BELOW}. {WRITE}\n\n### Instruction:\nAdd.\n\n### Response:{end}"
        assert document.messages[0] == Message("user", "Add.")


def test_with_a_context_the_user_says_both(tmp_path: Path) -> None:
    (document,) = documents(written(tmp_path, [ROWS["alpaca"][0]]), "alpaca")
    assert document.messages[0] == Message("user", "Add.\n1 and 2")


@pytest.mark.parametrize("row", [PAIR, LISTS, PAIR | {"chosen": CHAT}, {"chosen": CHAT, "rejected": CHAT}])
def test_of_preferences_the_chosen_answer_is_learnt(tmp_path: Path, row: dict[str, Any]) -> None:
    path = written(tmp_path, [row])
    assert choose_columns([row], path, None).keys == {"row_format": "preference"}
    (document,) = documents(path, "preference")
    assert [message.as_dict() for message in document.messages] == CHAT


def test_a_chosen_text_that_answers_nothing_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [{"chosen": "Human: one? Assistant: two.", "rejected": "no"}])
    with pytest.raises(DataError, match="line 1: 'chosen' has no message of a user, and there is no 'prompt'"):
        documents(path, "preference")


@pytest.mark.parametrize("column", ["system", "system_prompt"])
def test_each_row_may_have_a_system_message_of_its_own(tmp_path: Path, column: str) -> None:
    rows = [{"question": "What is it?", "response": "3", column: text} for text in ("Be brief.", "Be kind.", "")]
    found = documents(written(tmp_path, rows, "parquet"), "question-response")
    assert [document.messages[0] for document in found] == [
        Message("system", "Be brief."),
        Message("system", "Be kind."),
        Message("user", "What is it?"),
    ]
    assert [document.text.split("Question")[0] for document in found] == ["Be brief.\n\n", "Be kind.\n\n", ""]


def test_a_system_message_may_be_a_message(tmp_path: Path) -> None:
    row = {"contents": GEMINI, "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]}}
    (document,) = documents(written(tmp_path, [row]), "gemini")
    assert [message.as_dict() for message in document.messages] == [{"role": "system", "content": "Be brief."}, *CHAT]


def test_single_messages_of_trees_are_not_learnt_as_texts_without_being_asked_for() -> None:
    rows = [{"text": "Hello?", "role": "prompter", "parent_id": None, "message_id": "1"}]
    with pytest.raises(DataError, match=r"single messages of conversation trees.*`--task pretrain`"):
        choose_columns(rows, "oasst.jsonl", None)
    with pytest.raises(
        DataError, match=r"as plain text, give `--text-column 'text'`\.$"
    ):  # of `extend`, without `--task`
        choose_columns(rows, "oasst.jsonl", None, nested="give `--text-column '{}'`")
    assert choose_columns(rows, "oasst.jsonl", "pretrain").text_column == "text"


TREE = {"message_tree_id": "1", "prompt": {"text": "Hello?", "role": "prompter", "replies": [{"text": "Hello!"}]}}


@pytest.mark.parametrize("task", [None, "sft", "pretrain"])
def test_whole_trees_are_refused_whatever_is_asked(task: str | None) -> None:
    """As plain text, the ids of the trees would be learnt."""
    with pytest.raises(DataError, match=r"conversation trees .in the column 'prompt'.*into a column 'messages'\.$"):
        choose_columns([TREE], "oasst.jsonl", task)


@pytest.mark.parametrize(
    "row",
    [
        {"text": "A message.", "stats": {"likes": 3, "replies": 2}},
        {"text": "A message.", "comments": {"replies": [], "count": 0}},
        {"prompt": "A title", "text": "A story.", "responses": 3},
        {"prompt": "A title", "text": None, "story": "A long story.", "responses": 3},
    ],
)
@pytest.mark.parametrize("task", [None, "pretrain"])
def test_counts_of_replies_are_neither_trees_nor_answers(row: dict[str, Any], task: str | None) -> None:
    chosen = choose_columns([row], "posts.jsonl", task)
    assert (chosen.text_column, chosen.answers) == ("story" if "story" in row else "text", False)


@pytest.mark.parametrize(
    ("row", "keys", "held"),
    [
        ({"text": "Hello?", "role": "prompter", "parent_id": None}, {}, "single messages of conversation trees"),
        (TREE, {"text_column": "{prompt.text}"}, "conversation trees (in the column 'prompt')"),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_trees_that_a_recipe_learns_as_text_are_noted(
    tmp_path: Path, row: dict[str, Any], keys: dict[str, str], held: str, ending: str
) -> None:
    path = written(tmp_path, [row, row], ending)
    (note,) = unread_files([Domain(name="d", path=path, **keys)])
    assert note.startswith(f"'d' holds {held}")
    assert note.endswith(
        "each text is learnt by itself, as plain text. To learn chats, write each path from a root to a "
        "leaf as a list of messages into a column 'messages' (`row_format: messages`)."
    )
    assert not unread_files([Domain(name="d", path=written(tmp_path, [{"text": "a", "role": "b"}], ending))])


def test_several_system_prompts_in_one_file_of_chats(tmp_path: Path) -> None:
    """Each chat is written with its own; one that has none gets none."""
    own = {"role": "system", "content": "Be terse."}
    rows = [
        {"messages": [own, *CHAT]},
        {"messages": CHAT, "system": "Be kind."},
        {"messages": [own, *CHAT], "system": "Not this one."},
        {"messages": CHAT},
    ]
    made = tokenizer()
    encoder = Encoder(made, "decoder")
    packer = ChatPacker(encoder, 256)
    blocks = [*packer.feed(documents(written(tmp_path, rows), "messages")), *packer.finish()]
    texts = []
    for block in blocks:
        for segment in range(int(block["segments"].max()) + 1):
            ids = block["input_ids"][(block["segments"] == segment)]
            labels = block["labels"][(block["segments"] == segment)]
            if (labels != IGNORED).any():
                assert made.decode(labels[labels != IGNORED]).strip() == "3</s>"
                texts.append(made.decode(ids))
    wanted = ["Be terse.", "Be kind.", "Be terse.", None]
    assert len(texts) == len(wanted)
    for text, system in zip(texts, wanted, strict=True):
        chat = [*([{"role": "system", "content": system}] if system else []), *CHAT]
        assert text == made.decode(
            made(made.apply_chat_template(chat, tokenize=False), add_special_tokens=False).input_ids
        )


@pytest.mark.parametrize(
    ("kind", "template", "packer"),
    [
        ("decoder", TEMPLATE, ChatPacker),
        ("decoder", None, AnswerPacker),
        ("encoder", TEMPLATE, AnswerPacker),
        ("encoder-decoder", TEMPLATE, PairPacker),
    ],
)
def test_the_chat_template_writes_the_rows_where_a_decoder_has_one(
    tmp_path: Path, kind: Any, template: str | None, packer: type
) -> None:
    corpus = Corpus(path=written(tmp_path, [ROWS["alpaca"][0]]), row_format="alpaca")
    encoder = Encoder(tokenizer(template), kind)
    made = packer_of(corpus, encoder, 256)
    assert type(made) is packer
    (document, _) = next(read_documents(corpus))
    (block,) = [*made.feed([document]), *made.finish()]
    labels = block["labels"][block["labels"] != IGNORED]
    learnt = encoder.tokenizer.decode(labels, skip_special_tokens=True).strip()
    assert learnt == "3"
    text = encoder.tokenizer.decode(block["input_ids"])
    assert (BELOW in text) is (packer is not ChatPacker)


def test_loss_on_the_answers_only_in_a_prepared_corpus(tmp_path: Path) -> None:
    words = tiny.texts(120, seed=3, words=5)
    rows = [{"instruction": a, "input": "", "output": b} for a, b in zip(words[:60], words[60:], strict=True)]
    domain = Domain(name="d", path=written(tmp_path, rows), row_format="alpaca", validation=0.2)
    prints = set()
    for template in (TEMPLATE, None):
        made = tokenizer(template)
        prepared = prepare(domain, made, "decoder", 256, seed=0, cache=tmp_path / "cache")
        assert prepared.documents is not None
        learnt = []
        for block in prepared.train.take(range(prepared.train.size or 0)):  # type: ignore[attr-defined]
            learnt += made.decode(block["labels"][block["labels"] != IGNORED]).replace("</s>", "|").split("|")
        answers = sorted(text.strip() for text in learnt if text.strip())
        assert len(answers) == prepared.documents
        assert set(answers) <= set(words[60:])
        prints.add(prepared.fingerprint)
    assert len(prints) == 2


@pytest.mark.parametrize("form", ["messages", "preference"])
def test_chats_need_a_decoder(tmp_path: Path, form: str) -> None:
    corpus = Corpus(path=written(tmp_path, [ROWS[form][0]]), row_format=form)
    with pytest.raises(DataError, match=f"has `row_format: {form}`, which only a decoder learns"):
        packer_of(corpus, Encoder(tokenizer(), "encoder"), 64)


@pytest.mark.parametrize(
    "keys", [{"text_column": "a"}, {"target_column": "a"}, {"messages_column": "a"}, {"fill_in_middle": 0.5}]
)
def test_keys_without_effect_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no effect beside|is for plain text"):
        Corpus(path="a.jsonl", row_format="alpaca", **keys)


def test_a_prompt_that_a_chat_template_writes_keeps_no_end(tmp_path: Path) -> None:
    corpus = Corpus(path=written(tmp_path, [ROWS["alpaca"][0]]), row_format="alpaca", keep_last=8)
    assert isinstance(packer_of(corpus, Encoder(tokenizer(None), "decoder"), 64), AnswerPacker)
    with pytest.raises(DataError, match="`keep_last` has no effect on rows that a chat template writes"):
        packer_of(corpus, Encoder(tokenizer(), "decoder"), 64)


def test_a_source_may_be_of_another_kind() -> None:
    sources = [
        {"path": "a.jsonl"},
        {"path": "b.jsonl", "messages_column": "talk"},
        {"path": "c.jsonl", "row_format": None},
    ]
    domain = Domain(name="d", row_format="alpaca", sources=sources)
    assert [source.row_format for source in domain.sources] == ["alpaca", None, None]
    assert [part.beside_answers for part in domain.parts] == [False, False, True]


def test_rows_in_memory_keep_what_is_optional(tmp_path: Path) -> None:
    row = ROWS["alpaca"][0] | {"id": 7}
    path = inputs.keep([row, {"instruction": "Add.", "output": "3"}], "d", {"row_format": "alpaca"}, str(tmp_path))
    first, second = documents(str(path), "alpaca")
    assert f"{first.text}|{first.target}" == ROWS["alpaca"][1]
    assert second.messages[0] == Message("user", "Add.")
    path = inputs.keep([CHAT], "d", {"row_format": "messages"}, str(tmp_path))
    assert documents(str(path), "messages")[0].target == "3"
    with pytest.raises(EverlearnError, match="has no column 'output'"):
        inputs.keep([{"instruction": "Add."}], "d", {"row_format": "alpaca"}, str(tmp_path))


def test_another_format_is_another_corpus(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": "a", "answer": "b", "question": "a"}])
    prints = {corpus_fingerprint(Corpus(path=path, row_format=form)) for form in ("prompt-answer", "question-answer")}
    assert len(prints) == 2


def test_init_writes_the_key_and_what_preferences_are(everlearn: Project) -> None:
    rows = [PAIR | {"prompt": f"{text}?", "rejected": text} for text in tiny.texts(60)]
    path = Path(written(everlearn.folder, rows))
    outcome = everlearn("init", "-", "--domain", f"pairs={path.name}")
    assert yaml.safe_load(outcome.out)["domains"][0]["row_format"] == "preference"
    assert "the chosen answers are learnt" in outcome.err
    assert "not read is" not in outcome.err


def test_rows_of_a_kind_go_before_a_column_of_text() -> None:
    """The file of Alpaca on the hub has the joined text as well."""
    rows = [ROWS["alpaca"][0] | {"text": "Below is an instruction. Add. 3"}]
    assert choose_columns(rows, "rows", None).keys == {"row_format": "alpaca"}
    assert choose_columns(rows, "rows", "pretrain").keys == {}


def test_init_says_that_the_column_of_text_is_not_read(everlearn: Project) -> None:
    rows = [{"instruction": f"{text}?", "output": text, "text": f"{text}? {text}"} for text in tiny.texts(60)]
    path = Path(written(everlearn.folder, rows))
    outcome = everlearn("init", "-", "--domain", f"a={path.name}")
    assert yaml.safe_load(outcome.out)["domains"][0]["row_format"] == "alpaca"
    assert "not read is 'text'" in outcome.err
    assert "`--task pretrain` reads text instead" in " ".join(outcome.err.split())
    advised = everlearn("init", "-", "--domain", f"a={path.name}", "--task", "pretrain")
    assert yaml.safe_load(advised.out)["domains"][0] == {"name": "a", "path": path.name}


def test_where_plain_text_is_needed_its_column_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, [ROWS["alpaca"][0] | {"text": "joined"}])
    assert text_corpus(path, "--text").text_column == "text"


ANSWERED = [{"role": "assistant", "content": "3"}]
TALKED = [{"role": "user", "content": "Add 0 and 2."}, {"role": "assistant", "content": "2"}, *ASKED]
"""A prompt in which the assistant speaks."""


@pytest.mark.parametrize("template", [TEMPLATE, MARKED], ids=["prefixes", "marked by the template"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("prompt-completion", {"prompt": TALKED, "completion": ANSWERED}),
        ("prompt-completion", {"prompt": TALKED, "completion": "3"}),
        ("prompt-completion", {"prompt": TALKED, "completion": [*TALKED, *ANSWERED]}),
        ("prompt-response", {"prompt": TALKED, "response": ANSWERED}),
        ("preference", {"prompt": TALKED, "chosen": ANSWERED, "rejected": ANSWERED}),
        ("preference", {"prompt": TALKED, "chosen": [*TALKED, *ANSWERED], "rejected": ANSWERED}),
    ],
)
def test_of_lists_of_messages_the_turns_of_the_completion_are_learnt(
    tmp_path: Path, form: str, row: dict[str, Any], ending: str, template: str
) -> None:
    path = written(tmp_path, [row], ending)
    assert probe(path, "--domain", tokenizer=tokenizer(template)).columns.keys == {"row_format": form}
    (document,) = documents(path, form)
    assert (document.target, document.only_chat) == ("3", True)
    assert [message.as_dict() for message in document.messages] == [*TALKED, *ANSWERED]
    made = tokenizer(template)
    packer = packer_of(Corpus(path=path, row_format=form), Encoder(made, "decoder"), 256)
    (block,) = [*packer.feed([document]), *packer.finish()]
    assert made.decode(block["labels"][block["labels"] != IGNORED]).strip() == "3</s>"
    assert packer.count.text_bytes == 1


def test_a_completion_may_have_turns_of_a_user(tmp_path: Path) -> None:
    row = {"prompt": ASKED, "completion": [*ANSWERED, {"role": "user", "content": "And 4?"}, *ANSWERED]}
    (document,) = documents(written(tmp_path, [row]), "prompt-completion")
    assert [message.learnt for message in document.messages] == [False, True, False, True]
    assert document.messages[0].content == "Add 1 and 2."


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.integers(0, 3), further=st.integers(0, 2), system=st.booleans(), seed=st.integers(0, 99))
def test_rows_and_labels_are_those_of_trl(tmp_path: Path, turns: int, further: int, system: bool, seed: int) -> None:
    """The prompt and the completion as TRL writes them, with labels on the assistant's turns of the completion."""
    said = iter(tiny.texts(2 * (turns + further) + 2, seed=seed, words=9))

    def exchanges(count: int) -> list[dict[str, str]]:
        return [{"role": role, "content": next(said)} for _ in range(count) for role in ("user", "assistant")]

    prompt = [*([{"role": "system", "content": "Be brief."}] * system), *exchanges(turns)]
    prompt.append({"role": "user", "content": next(said)})
    completion = [{"role": "assistant", "content": next(said)}, *exchanges(further)]
    made = tokenizer()
    reference = apply_chat_template({"prompt": prompt, "completion": completion}, made)
    (document,) = documents(written(tmp_path, [{"prompt": prompt, "completion": completion}]), "prompt-completion")
    ids, learnt = ChatFormat(made).encode(document.messages)
    whole = reference["prompt"] + reference["completion"]
    assert ids == made(whole, add_special_tokens=False)["input_ids"]
    places = made(whole, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert not any(own for own, (_, end) in zip(learnt, places, strict=True) if end <= len(reference["prompt"]))
    answers = [turn["content"] for turn in completion if turn["role"] == "assistant"]
    runs = made.decode([id_ for id_, own in zip(ids, learnt, strict=True) if own]).replace("</s>", "|").split("|")
    assert [run.strip() for run in runs] == [*answers, ""]


@pytest.mark.parametrize(
    ("kind", "template"), [("encoder", TEMPLATE), ("decoder", None), ("encoder-decoder", TEMPLATE)]
)
def test_lists_of_messages_need_a_chat_template(tmp_path: Path, kind: Any, template: str | None) -> None:
    corpus = Corpus(path=written(tmp_path, [{"prompt": ASKED, "completion": ANSWERED}]), row_format="prompt-completion")
    (document, _) = next(read_documents(corpus))
    with pytest.raises(DataError, match=r"begins with 'Add 1 and 2\.' is a list of messages, which only a decoder"):
        packer_of(corpus, Encoder(tokenizer(template), kind), 64).feed([document])
    learner = "An encoder-decoder model" if kind == "encoder-decoder" else None
    with pytest.raises(EverlearnError, match=r"no chat template|which a decoder learns|learns only prompts"):
        probe(corpus.path, "--domain a", None, learner, tokenizer(template), kind)
    texts = Corpus(path=written(tmp_path, [{"prompt": "Add. ", "completion": "3"}]), row_format="prompt-completion")
    (document, _) = next(read_documents(texts))
    packer = packer_of(texts, Encoder(tokenizer(template), kind), 64)
    assert [*packer.feed([document]), *packer.finish()], "the advice"


def test_lists_under_the_name_of_a_column_are_answered_with_the_key(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": ASKED, "completion": ANSWERED}])
    with pytest.raises(
        DataError, match="Lists of messages are chats: name their column in `messages_column`, or `row_"
    ):
        next(read_documents(Corpus(path=path, text_column="prompt", target_column="completion")))


def test_tools_of_a_completion_are_read(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    row = {"prompt": ASKED, "completion": ANSWERED, "tools": [tool]}
    (document,) = documents(written(tmp_path, [row]), "prompt-completion")
    assert document.tools == (tool,)


def unpaired(count: int = 60) -> list[dict[str, Any]]:
    """Rows of KTO: of three answers one is not desired, and one is not marked."""
    labels = (True, False, None)
    return [
        {"prompt": f"{text}? ", "completion": f"{number} {text}", "label": labels[number % 3]}
        for number, text in enumerate(tiny.texts(count))
    ]


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_undesired_answers_are_left_out_and_counted(tmp_path: Path, ending: str, lists: bool) -> None:
    rows = unpaired()
    path = written(tmp_path, rows, ending)
    if lists:
        both = (
            {"prompt": ASKED},
            *({"completion": [{"role": "assistant", "content": row["completion"]}]} for row in rows),
        )
        path = written(tmp_path, [row | both[0] | each for row, each in zip(rows, both[1:], strict=True)], "jsonl")
    skipped = Skipped()
    corpus = Corpus(path=path, row_format="prompt-completion")
    answers = [document.target for document, _ in read_documents(corpus, skipped=skipped)]
    assert answers == [row["completion"] for row in rows if row["label"] is not False]
    assert (skipped.undesired, skipped.rows) == (20, 0)


@pytest.mark.parametrize("streaming", [False, True])
def test_undesired_answers_are_held_out_neither_and_noted(tmp_path: Path, streaming: bool) -> None:
    path = written(tmp_path, unpaired())
    kind: dict[str, Any] = {"path": path, "row_format": "prompt-completion", "streaming": streaming}
    (tmp_path / "plain").mkdir()
    plain = {"path": written(tmp_path / "plain", [{"text": text} for text in tiny.texts(60)])}
    for domain in (Domain(name="d", validation=0.2, **kind), Domain(name="d", validation=0.2, sources=[kind, plain])):
        prepared = prepare(domain, tokenizer(), "decoder", 256, seed=0, cache=tmp_path / "cache")
        assert prepared.undesired == 20
        assert prepared.validation is not None
        texts = " ".join(map(str, (tokenizer().decode(block["input_ids"]) for block in prepared.validation.take([0]))))
        assert not any(f"assistant: {row['completion']}" in texts for row in unpaired() if row["label"] is False)
        (note,) = notes_of([domain], {"d": prepared}, 256)
        assert note.startswith("'d': 20 rows are left out, because 'label' is false there")
        assert "`KTOTrainer`" in note


@pytest.mark.parametrize("marks", [(True, False), (1, 0), (1.0, 0.0), ("true", " False"), ("1", "0")])
@pytest.mark.parametrize("form", [name for name, form in ROW_FORMATS.items() if not form.chat])
def test_undesired_answers_are_known_by_every_usual_mark(tmp_path: Path, form: str, marks: tuple[Any, Any]) -> None:
    row = ROWS[form][0]
    path = written(tmp_path, [row | {"label": mark} for mark in (*marks, None)])
    skipped = Skipped()
    assert len(list(read_documents(Corpus(path=path, row_format=form), skipped=skipped))) == 2
    assert skipped.undesired == 1
    assert probe(path, "--domain").undesired == 1


@pytest.mark.parametrize("mark", [2, -1, "bad", [True]])
def test_a_mark_that_is_neither_true_nor_false_is_refused(tmp_path: Path, mark: Any) -> None:
    path = written(tmp_path, [*unpaired(2), unpaired(1)[0] | {"label": mark}])
    for read in (lambda: documents(path, "prompt-completion"), lambda: probe(path, "--domain")):
        with pytest.raises(DataError, match=r"rows\.jsonl, line 3: 'label' is .* `text_column` and `target_column`"):
            read()
    assert len(list(read_documents(Corpus(path=path, text_column="prompt", target_column="completion")))) == 3


@pytest.mark.parametrize("unanswered", [[], {"text": []}, None, {"text": None}])
def test_of_several_answers_the_first_is_learnt(tmp_path: Path, unanswered: Any) -> None:
    row = {"question": "What?", "answers": [{"text": "3"}, {"text": "4"}]}
    path = written(tmp_path, [row, row | {"answers": unanswered}])
    skipped = Skipped()
    corpus = Corpus(path=path, row_format="question-answers")
    assert [each.target for each, _ in read_documents(corpus, skipped=skipped)] == [" 3"]
    assert skipped.rows == 1


SQUAD = {"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q?", "answers": [{"text": "a"}]}]}]}]}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "program"), [(SQUAD, ".data[].paragraphs[]"), ({"n": 1, "my rows": [{}]}, '."my rows"[]')]
)
def test_rows_inside_of_an_object_are_refused_with_the_way_out(
    tmp_path: Path, value: dict[str, Any], program: str, indent: int | None
) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"version": "v2.0", **value}, indent=indent), encoding="utf-8")
    for read in (lambda: probe(str(path), "--domain"), lambda: list(read_documents(Corpus(path=str(path))))):
        with pytest.raises(DataError) as raised:
            read()
        command = str(raised.value).split("`jq -c '")[1].split("'")[0]
        assert command.startswith(program)
        if value is SQUAD and shutil.which("jq"):
            made = subprocess.run(["jq", "-c", command, path], capture_output=True, text=True, check=True).stdout
            assert json.loads(made) == {"context": "c", "question": "q?", "answers": ["a"]}
            assert "`row_format: question-answers`" in str(raised.value)


@pytest.mark.parametrize("indent", [None, 1])
def test_columns_as_pandas_writes_them_are_refused_with_the_way_out(tmp_path: Path, indent: int | None) -> None:
    path, made = tmp_path / "frame.json", tmp_path / "rows.jsonl"
    frame = pandas.DataFrame({"text": tiny.texts(12), "stars": [*range(12)]})
    frame.to_json(path, indent=indent)
    with pytest.raises(DataError, match="those of a pandas data frame") as raised:
        probe(str(path), "--domain")
    command = str(raised.value).split("`")[1].replace("'rows.jsonl'", repr(str(made)))
    eval(command, {"pandas": pandas})
    assert [each.text for each, _ in read_documents(Corpus(path=str(made)))] == tiny.texts(12), "the advice"


def test_preferences_with_prompts_under_another_name_say_which_to_rename(tmp_path: Path) -> None:
    rows = [{"system": "Be.", "question": "Why?", "chosen": text, "rejected": "no"} for text in tiny.texts(12)]
    with pytest.raises(DataError, match=r"prompts are in the column 'question'\. Rename it to 'prompt'"):
        probe(written(tmp_path, rows), "--domain")
    path = written(tmp_path, [{"prompt": row["question"], **row} for row in rows])
    found = [each.messages for each, _ in read_documents(Corpus(path=path, row_format="preference"))]
    assert [each.role for each in found[0]] == ["system", "user", "assistant"], "the advice"


def test_answers_of_which_none_is_desired_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [row | {"label": False} for row in unpaired(3)])
    with pytest.raises(DataError, match="no document with text in it: 'label' is false in 3 rows"):
        documents(path, "prompt-completion")


def test_all_answers_are_learnt_where_a_recipe_names_the_columns(tmp_path: Path) -> None:
    corpus = Corpus(path=written(tmp_path, unpaired()), text_column="prompt", target_column="completion")
    assert len(list(read_documents(corpus))) == 60


def test_init_says_how_many_answers_are_left_out(everlearn: Project) -> None:
    path = Path(written(everlearn.folder, unpaired()))
    outcome = everlearn("init", "-", "--domain", f"kto={path.name}")
    raw = yaml.safe_load(outcome.out)["domains"][0]
    assert raw == {"name": "kto", "path": path.name, "row_format": "prompt-completion"}
    assert "'kto': 20 rows are left out, because 'label' is false there" in " ".join(outcome.err.split())
    assert "40 documents" in outcome.out


def test_the_commands_read_lists_of_messages_with_labels(everlearn: Project, models: Path) -> None:
    """From `init` to `run`, with a tiny model that has a chat template."""
    model = shutil.copytree(models / "llama", everlearn.folder / "instruct")
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "label": row["label"]}
        | {"completion": [{"role": "assistant", "content": row["completion"]}]}
        for row in unpaired(90)
    ]
    path = Path(written(everlearn.folder, rows))
    outcome = everlearn.call("init", "mine.yaml", "--model", str(model), "--domain", f"kto={path.name}")
    assert outcome.code == 0, outcome
    assert yaml.safe_load(Path("mine.yaml").read_text())["domains"][0]["row_format"] == "prompt-completion"
    small = ("general=null", "method=sequential", "train.max_steps=2", "train.per_device_train_batch_size=2")
    small += ("domains.kto.validation=0.3", "data.block_size=64", "train.gradient_accumulation_steps=1")
    note = "'kto': 30 rows are left out, because 'label' is false there"
    checked = json.loads(everlearn.call("validate", "mine.yaml", *small, "--json").out)
    assert checked["ok"], checked
    assert any(each.startswith(note) for each in checked["notes"])
    seen = json.loads(everlearn.call("data", "mine.yaml", *small, "--json").out)
    assert any(each.startswith(note) for each in seen["findings"])
    (corpus,) = seen["corpora"]
    assert (corpus["documents"] + corpus["held_out"], corpus["undesired"], corpus["examples"]) == (60, 30, True)
    assert all("<s>user: " in sample and "<s>assistant: " in sample for sample in corpus["samples"])
    assert everlearn.call("run", "mine.yaml", *small, "--quiet").code == 0
    results = json.loads(Path("runs/first/results.json").read_text())
    assert any(each.startswith(note) for each in results["notes"])


def test_data_in_memory_keeps_its_labels(tmp_path: Path) -> None:
    path = inputs.keep(unpaired(), "d", {"row_format": "prompt-completion"}, str(tmp_path))
    assert len(documents(str(path), "prompt-completion")) == 40


def test_what_is_not_learnt_stays_so_where_domains_are_pooled(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": TALKED, "completion": ANSWERED}])
    domain = {"name": "a", "path": path, "row_format": "prompt-completion", "validation": None}
    file = pooled(parse({"model": "none", "domains": [domain]}), tmp_path / "pool", chats=True)
    ((document, _),) = read_documents(Corpus(path=str(file), messages_column="messages", tools_column="tools"))
    assert [message.learnt for message in document.messages] == [False, False, False, True]


@pytest.mark.parametrize(
    ("row", "says", "remedied", "keys"),
    [
        (
            {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"},
            "preferences with the prompts inside the texts .* `text_column: chosen`",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"row_format": "preference"},
        ),
        (
            {"input": ASKED, "output": ANSWERED},
            "chats in the column 'input' and their answers in 'output'. Rename the two to 'prompt' and 'completion'",
            {"prompt": ASKED, "completion": ANSWERED},
            {"row_format": "prompt-completion"},
        ),
        (
            {"prompt": "a", "responses": ["b", "c"]},
            r"prompts \('prompt'\) with several answers, .* in the column 'responses'\. Write each answer .* as a row",
            {"prompt": "a", "answer": "b"},
            {"row_format": "prompt-answer"},
        ),
        (
            {"instruction": "a", "completions": [{"response": "b", "model": "x"}]},
            r"prompts \('instruction'\) with several answers, or answers with more about them, .* 'completions'",
            {"prompt": "a", "answer": "b"},
            {"row_format": "prompt-answer"},
        ),
        (
            {"question": "a", "choices": ["b", "c"], "answer": 1},
            r"prompts \('question'\) with numbers as answers \('answer'\), .* Write each answer as a text",
            {"question": "a", "answer": "c"},
            {"row_format": "question-answer"},
        ),
        (
            {"problem": "a", "solution": "b"},
            r"Rename them to 'prompt' and 'answer', or .*: `text_column: problem`, `target_column: solution`",
            {"prompt": "a", "answer": "b"},
            {"row_format": "prompt-answer"},
        ),
        (
            {"conversation_a": CHAT, "conversation_b": CHAT, "winner": "model_a"},
            r"two answers to each prompt .*`row_format: preference`.* `messages_column: conversation_a`",
            {"chosen": CHAT, "rejected": CHAT},
            {"row_format": "preference"},
        ),
        (
            {"prompt": "a", "response_a": "b", "response_b": "c", "winner_model_a": 1},
            r"two answers to each prompt .*`row_format: preference`.* `text_column: response_a`",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"row_format": "preference"},
        ),
        (
            {"id": "1", "conversation": {"messages": CHAT, "language": "en"}},
            r"most of its text in lists in 'conversation\.messages', .* into 'messages', .*to learn 'id' alone",
            {"id": "1", "messages": CHAT},
            {"row_format": "messages"},
        ),
        (
            {"id": "1", "conversation": [{"input": "a", "output": "b"}]},
            r"most of its text in lists in 'conversation', .* or prompts and answers into 'prompt' and 'answer'",
            {"id": "1", "prompt": "a", "answer": "b"},
            {"row_format": "prompt-answer"},
        ),
        (
            {
                "3": "4",
                "Bears claw back into the black": "Oil prices soar",
                "Short sellers are seeing green again": "b",
            },
            r"'Bears claw back into the black', which looks like a text itself\. If the first line is a row",
            {"class": "3", "title": "Bears claw back", "description": "Short sellers are seeing green again"},
            {"text_column": "description"},
        ),
        (
            {"id": "1", "data": {"prompt": "a", "answer": "b"}},
            r"prompts and answers inside the column 'data'\. .* `text_column: \"\{data\.prompt\}\"`, `target_column: ",
            {"id": "1", "prompt": "a", "answer": "b"},
            {"row_format": "prompt-answer"},
        ),
    ],
)
def test_rows_that_would_be_learnt_wrong_are_refused(
    row: dict[str, Any], says: str, remedied: dict[str, Any], keys: dict[str, str]
) -> None:
    with pytest.raises(DataError, match=says):
        choose_columns([row], "rows", None)
    assert choose_columns([remedied], "rows", None).keys == keys, "the advice"


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"messages": json.dumps(CHAT)}, {"row_format": "messages"}),
        ({"text": json.dumps(CHAT)}, {"messages_column": "text"}),
        ({"conversations": ["a", "b"], "source": "forum"}, {"row_format": "sharegpt"}),
        ({"data": ["a", "b"], "id": "1"}, {"messages_column": "data"}),
        ({"tags": ["a", "b"], "page": "some text"}, {"text_column": "page"}),
    ],
)
def test_chats_as_json_and_lists_of_texts_are_found(row: dict[str, Any], keys: dict[str, str]) -> None:
    assert choose_columns([row], "rows", None).keys == keys


@pytest.mark.parametrize("rows", [[{"id": "a", "text": "b c"}, {"id": "d", "text": 1.5}], [{"text": 5}]])
def test_a_column_of_text_with_other_values_is_read_and_not_another_one(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(DataError, match=f"line {len(rows)}: column 'text' must hold text; it holds"):
        probe(written(tmp_path, rows), "--domain a")


def test_a_list_of_texts_is_said_in_turn() -> None:
    said = messages_in(["a", "b", "c"], "data", "line 1")
    assert [(each.role, each.content, each.learnt) for each in said] == [
        ("user", "a", False),
        ("assistant", "b", True),
        ("user", "c", False),
    ]


def test_chats_as_json_are_no_text_for_an_encoder(tmp_path: Path) -> None:
    path = written(tmp_path, [{"messages": json.dumps(CHAT)}])
    with pytest.raises(DataError, match=r"holds chats .column 'messages'., which a decoder learns"):
        probe(path, "--domain a", tokenizer=tokenizer(None), kind="encoder")


def test_a_transcript_is_learnt_as_text_where_a_recipe_says_so(tmp_path: Path) -> None:
    """The advice of the message on preferences."""
    path = written(tmp_path, [{"chosen": "Human: a Assistant: b", "rejected": "Human: a Assistant: c"}])
    assert next(read_documents(Corpus(path=path, text_column="chosen")))[0].text == "Human: a Assistant: b"


def test_an_encoder_is_not_advised_a_chat_template(tmp_path: Path) -> None:
    path = written(tmp_path, [{"messages": CHAT}])
    with pytest.raises(DataError, match=r"holds chats .column 'messages'., which a decoder learns"):
        probe(path, "--domain a", tokenizer=tokenizer(None), kind="encoder")


def test_a_text_inside_a_column_is_proposed(tmp_path: Path) -> None:
    inside = [{"id": 1, "doc": {"body": {"text": "a text inside"}, "kind": "x"}}]
    with pytest.raises(DataError, match=r"`text_column: \"\{doc\.body\.text\}\"`"):
        choose_columns(inside, "rows", None)
    path = written(tmp_path, inside)
    assert next(read_documents(Corpus(path=path, text_column="{doc.body.text}")))[0].text == "a text inside"


def test_init_names_a_longer_text_inside_a_column(everlearn: Project) -> None:
    rows = [{"title": text[:9], "doc": {"body": {"text": text}}} for text in tiny.texts(60)]
    path = Path(written(everlearn.folder, rows))
    noted = " ".join(everlearn("init", "-", "--domain", f"pages={path.name}").err.split())
    assert r'`text_column: "{title}\n\n{doc.body.text}"`' in noted
    assert '`text_column: "{doc.body.text}"`' in noted
