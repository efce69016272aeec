"""Every shape in which data comes, read as a domain; ``python tests/data_shapes_page.py`` writes the page."""

from __future__ import annotations

import copy
import gzip
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyarrow import feather
from tokenizers import AddedToken

import tiny
import tried_table
from everlearn.commands.data_probe import probe
from everlearn.config.recipe import parse
from everlearn.data.columns import Columns
from everlearn.data.corpus import Domain
from everlearn.data.documents import read_documents
from everlearn.data.fill_in_middle import TOKENS
from everlearn.data.packing import IGNORED
from everlearn.data.prepare import prepare
from everlearn.errors import EverlearnError

PAGE = Path(__file__).parents[1] / "docs" / "data-shapes.md"
COLUMNS = ("shape", "keys of the domain", "read", "learnt", "`everlearn init` writes")
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
TEXTS, QUESTIONS = tuple(tiny.texts(60, seed=1)), tuple(tiny.texts(60, seed=2, words=6))
"""What is to be learnt in every shape, and what is asked where that is an answer."""
NOTHING = "–"
"""What a cell says that has nothing to show."""
SYSTEM = ("Be brief.", "Be kind.", "")
Write = Callable[[Path], Mapping[str, Any]]


@dataclass(frozen=True)
class Shape:
    """A shape of data.

    Attributes:
        write: writes :data:`TEXTS` into a folder and returns the keys of the domain; `path` is relative to the folder.
        learnt: the documents, or their answers, that are to be read.
    """

    write: Write
    learnt: Sequence[str] = TEXTS


def _rows(**columns: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _lines(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _jsonl(rows: Sequence[Mapping[str, Any]], **keys: Any) -> Shape:
    """Return JSON lines with these rows."""

    def write(folder: Path) -> Mapping[str, Any]:
        _lines(folder / "rows.jsonl", rows)
        return {"path": "rows.jsonl", **keys}

    return Shape(write)


def _file(name: str, save: Callable[[Path], object], learnt: Sequence[str] = TEXTS, **keys: Any) -> Shape:
    """Return a file that a function writes."""

    def write(folder: Path) -> Mapping[str, Any]:
        save(folder / name)
        return {"path": name, **keys}

    return Shape(write, learnt)


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


def _tree(name: str, save: Callable[[Path, str], object], learnt: Sequence[str] = TEXTS, **keys: Any) -> Shape:
    """Return a folder with a file for each text; `name` has its number."""

    def write(folder: Path) -> Mapping[str, Any]:
        for number, text in enumerate(TEXTS):
            path = folder / name.format(number)
            path.parent.mkdir(exist_ok=True)
            save(path, text)
        return {"path": f"**/*{Path(name).suffix}", **keys}

    return Shape(write, learnt)


def _clone(folder: Path) -> Mapping[str, Any]:
    """Write a data set as `git clone` brings it from a hub."""
    for split, texts in (("train", TEXTS), ("validation", QUESTIONS[:20]), ("test", QUESTIONS[20:])):
        _lines(folder / "set" / "data" / f"{split}-00000-of-00001.jsonl", _rows(text=texts))
    for name in ("README.md", "LICENSE.txt", ".gitattributes"):
        (folder / "set" / name).write_text("Not to be learnt.\n")
    (folder / "set" / "dataset_infos.json").write_text('{"default": {}}')
    return {"path": "set", "validation": "validation"}


def _prose(folder: Path) -> Mapping[str, Any]:
    """Write splits of prose, with a card, a licence and a file without a split."""
    (folder / "set").mkdir()
    for name in ("README.md", "LICENSE.txt", "test.txt", "notes.txt"):
        (folder / "set" / name).write_text("Not to be learnt.\n")
    (folder / "set" / "train.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return {"path": "set"}


def _saved(splits: bool) -> Write:
    def write(folder: Path) -> Mapping[str, Any]:
        train = datasets.Dataset.from_dict({"text": TEXTS})
        saved = datasets.DatasetDict({"train": train, "test": train.select([0])}) if splits else train
        saved.save_to_disk(str(folder / "saved"))
        return {"path": "saved"}

    return write


def _mixture(folder: Path) -> Mapping[str, Any]:
    """Write plain text and prompts with answers."""
    (folder / "plain.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    _lines(folder / "asked.jsonl", _rows(question=QUESTIONS, answer=TEXTS))
    answers = {"path": f"{folder}/asked.jsonl", "row_format": "question-answer", "weight": 1}
    return {"sources": [{"path": f"{folder}/plain.txt", "weight": 3}, answers]}


def _at_a_url(folder: Path) -> Mapping[str, Any]:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    fsspec.filesystem("memory").pipe("/shapes/rows.jsonl", lines.encode())
    return {"path": "memory://shapes/rows.jsonl"}


def _again(folder: Path) -> Mapping[str, Any]:
    """Write text that has grown; the domain before it had the first half."""
    _lines(folder / "half.jsonl", _rows(text=TEXTS[:30]))
    _lines(folder / "grown.jsonl", _rows(text=TEXTS))
    return {"path": "grown.jsonl", "continues": "a"}


def pdf(path: Path, words: str) -> None:
    """Write a PDF file of one page with a line of text."""
    content = f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    written, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(written))
        written += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    written += b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        size,
        table,
        size,
        len(written),
    )
    path.write_bytes(written)


def _chats(role: str, content: str, user: str, assistant: str) -> list[list[dict[str, str]]]:
    asked = zip(QUESTIONS, TEXTS, strict=True)
    return [[{role: user, content: one}, {role: assistant, content: two}] for one, two in asked]


TABLE = pa.table({"text": TEXTS})
OPENAI = _chats("role", "content", "user", "assistant")
ANSWERS = [chat[1:] for chat in OPENAI]
BEFORE = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "mean"}]
TURNS = [[*BEFORE, chat[0]] for chat in OPENAI]
"""Prompts of three turns, of which the second is the assistant's."""
WEIGHTED = [[one, {**two, "weight": 0}, three] for one, two, three in TURNS]
SYSTEMS = [[{"role": "system", "content": SYSTEM[n % 3]}] * (n % 3 < 2) + chat for n, chat in enumerate(OPENAI)]
TRANSCRIPTS = [f"Human: {one} Assistant: {two}" for one, two in zip(QUESTIONS, TEXTS, strict=True)]
NESTED = _rows(title=QUESTIONS, doc=[{"body": {"text": text}} for text in TEXTS])
TITLED = [f"{title}\n\n{text}" for title, text in zip(QUESTIONS, TEXTS, strict=True)]
PLAIN = _rows(text=TEXTS)
CODE = [f"# {text}\n" for text in TEXTS]
NOTEBOOK = {"cell_type": "code", "outputs": [{"text": "printed"}]}
SHAPES: dict[str, Shape] = {
    "a data set cloned from a hub: splits, card, licence, infos": Shape(_clone),
    "prose: splits, card, licence, a file without a split": Shape(_prose),
    "`Dataset.save_to_disk`": Shape(_saved(splits=False)),
    "`DatasetDict.save_to_disk`": Shape(_saved(splits=True)),
    "`.arrow`": _file("rows.arrow", lambda path: feather.write_feather(TABLE, str(path), compression="uncompressed")),
    "`.feather`": _file("rows.feather", lambda path: feather.write_feather(TABLE, str(path))),
    "`.parquet`": _file("rows.parquet", lambda path: pa.parquet.write_table(TABLE, path)),
    "`.csv`": _file("rows.csv", lambda path: pa.csv.write_csv(TABLE, path)),
    "`.tsv`": _file("rows.tsv", lambda path: pa.csv.write_csv(TABLE, path, pa.csv.WriteOptions(delimiter="\t"))),
    "`.txt`, a document a line": _file("rows.txt", _text("\n".join(TEXTS))),
    "`.md`, a document a file": _tree("{:02}.md", lambda path, text: path.write_text(text), documents="file"),
    "JSON array over many lines": _file("rows.json", _text(json.dumps(PLAIN, indent=2))),
    "JSON object over many lines": _file("rows.json", _text(json.dumps({"data": PLAIN}, indent=2))),
    "JSON lines": _jsonl(PLAIN),
    "JSON lines, compressed": _file(
        "rows.jsonl.gz", lambda path: path.write_bytes(gzip.compress("".join(map(_line, PLAIN)).encode()))
    ),
    "chats in `messages`": _jsonl(_rows(messages=OPENAI), row_format="messages"),
    "chats in another column": _jsonl(_rows(talk=OPENAI), messages_column="talk"),
    "ShareGPT": _jsonl(_rows(conversations=_chats("from", "value", "human", "gpt")), row_format="sharegpt"),
    "Gemini, chats in `contents`": _jsonl(
        _rows(
            systemInstruction=[{"parts": [{"text": text}]} for text in SYSTEM * 20],
            contents=[
                [{"role": "user", "parts": [{"text": asked}]}, {"role": "model", "parts": [{"text": said}]}]
                for asked, said in zip(QUESTIONS, TEXTS, strict=True)
            ],
        ),
        row_format="gemini",
    ),
    "Alpaca": _jsonl(_rows(instruction=QUESTIONS, input=["", "this"] * 30, output=TEXTS), row_format="alpaca"),
    "Alpaca, with the joined text": _jsonl(
        _rows(instruction=QUESTIONS, input=[""] * 60, output=TEXTS, text=QUESTIONS), row_format="alpaca"
    ),
    "Dolly": _jsonl(_rows(instruction=QUESTIONS, context=["", "this"] * 30, response=TEXTS), row_format="dolly"),
    "question and answer": _jsonl(_rows(question=QUESTIONS, answer=TEXTS), row_format="question-answer"),
    "questions with several answers, as in SQuAD": _jsonl(
        _rows(question=QUESTIONS, answers=[{"text": [text], "answer_start": [0]} for text in TEXTS]),
        row_format="question-answers",
    ),
    "prompt and completion": _jsonl(_rows(prompt=QUESTIONS, completion=TEXTS), row_format="prompt-completion"),
    "prompts and answers in other columns": _jsonl(
        _rows(source=QUESTIONS, target=TEXTS), text_column="source", target_column="target"
    ),
    "preferences, the chosen answers": _jsonl(
        _rows(prompt=QUESTIONS, chosen=TEXTS, rejected=QUESTIONS), row_format="preference"
    ),
    "preferences, lists of messages": _jsonl(
        _rows(prompt=TURNS, chosen=ANSWERS, rejected=[chat[:1] for chat in ANSWERS]), row_format="preference"
    ),
    "preferences, transcripts of text": _file(
        "rows.jsonl",
        lambda path: _lines(path, _rows(chosen=TRANSCRIPTS, rejected=QUESTIONS)),
        TRANSCRIPTS,
        text_column="chosen",
    ),
    "answers, desired or not (KTO), the desired ones": _file(
        "rows.jsonl",
        lambda path: _lines(path, _rows(prompt=QUESTIONS, completion=TEXTS, label=[True, False] * 30)),
        TEXTS[::2],
        row_format="prompt-completion",
    ),
    "lists of messages in `prompt` and `completion`": _jsonl(
        _rows(prompt=TURNS, completion=ANSWERS), row_format="prompt-completion"
    ),
    "chats with turns of `weight: 0`": _jsonl(
        _rows(messages=[[*asked, *said] for asked, said in zip(WEIGHTED, ANSWERS, strict=True)]), row_format="messages"
    ),
    "chats as lists of texts (LIMA, UltraChat)": _jsonl(
        _rows(data=[[message["content"] for message in chat] for chat in OPENAI], id=QUESTIONS), messages_column="data"
    ),
    "chats as JSON text": _jsonl(_rows(messages=[json.dumps(chat) for chat in OPENAI]), row_format="messages"),
    "several system prompts in one file of chats": _jsonl(_rows(messages=SYSTEMS), row_format="messages"),
    "a system prompt in a column": _jsonl(
        _rows(system_prompt=SYSTEM * 20, question=QUESTIONS, response=TEXTS), row_format="question-response"
    ),
    "plain text and answers, with weights": Shape(_mixture, [*TEXTS, *TEXTS]),
    "nested columns": _jsonl(NESTED, text_column="{doc.body.text}"),
    "nested columns, the bare name": _jsonl(NESTED, text_column="doc.body.text"),
    "a template of columns": _file(
        "rows.jsonl", lambda path: _lines(path, NESTED), TITLED, text_column="{title}\n\n{doc.body.text}"
    ),
    "a code tree": _tree("{:02}/code.py", lambda path, text: path.write_text(f"# {text}\n"), CODE),
    "a code tree, filled in the middle": _tree(
        "{:02}/code.py", lambda path, text: path.write_text(f"# {text}\n"), CODE, fill_in_middle=0.9
    ),
    "notebooks": _tree(
        "{:02}.ipynb", lambda path, text: path.write_text(json.dumps({"cells": [NOTEBOOK | {"source": [text]}]}))
    ),
    "web pages": _tree("{:02}.html", lambda path, text: path.write_text(f"<script>x</script><p>{text}</p>")),
    "PDF with a text layer": _tree("{:02}.pdf", pdf),
    "a URL of `fsspec`": Shape(_at_a_url),
    "a domain learnt again, with more text": Shape(_again),
}


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def tokenizer() -> Any:
    """Return the tests' tokenizer with a chat template and tokens to fill in the middle."""
    made = copy.deepcopy(tiny.tokenizer())
    made.chat_template = TEMPLATE
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS[0]])
    return made


def row(name: str) -> str:
    """Return the line of the page for a shape."""
    with tempfile.TemporaryDirectory() as made:
        folder, cache = Path(made) / "data", os.environ.get("XDG_CACHE_HOME")
        folder.mkdir()
        os.environ["XDG_CACHE_HOME"] = made
        try:
            cells = _tried(SHAPES[name], folder)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if cache is not None:
                os.environ["XDG_CACHE_HOME"] = cache
    return f"| {' | '.join(cell.replace('|', '/') for cell in (name, *cells))} |"


def _tried(shape: Shape, folder: Path) -> list[str]:
    """Return the cells of a shape: keys, what is read, what is learnt, what `init` writes."""
    keys = dict(shape.write(folder))
    shown = _shown(keys, folder)
    if "path" in keys and "://" not in keys["path"]:
        keys["path"] = f"{folder}/{keys['path']}"
    domains = [{"name": "b", "validation": 0.2, **keys}]
    if "continues" in keys:
        domains.insert(0, {"name": "a", "path": f"{folder}/half.jsonl"})
        keys.pop("continues")
        domains[1].pop("validation")
    written = _init(keys, folder)
    try:
        domain = parse({"model": "none", "domains": domains}).domains[-1]
        read = [document for part in domain.parts for document, _ in read_documents(part)]
    except EverlearnError as error:
        return [shown, f"no: {error}".replace(f"{folder}/", ""), NOTHING, written]
    texts = sorted((document.target or document.text).strip() for document in read)
    right = texts == sorted(text.strip() for text in shape.learnt)
    return [shown, f"yes, {len(read)} documents" if right else "no: other text", _learnt(domain, folder), written]


def _init(keys: Mapping[str, Any], folder: Path) -> str:
    """Return what `everlearn init` writes for a shape, and whether these are the right columns."""
    if "path" not in keys:
        return NOTHING
    try:
        found = probe(keys["path"], "--domain", tokenizer=tokenizer())
    except EverlearnError:
        return "refused, with the remedy"
    written = found.columns.keys
    if written == {key: value for key, value in keys.items() if key in Columns._fields}:
        return _shown(written, folder)
    return f"other text ({_shown(written, folder)})" + (
        f"; a note proposes `{{{found.nested}}}`" if found.nested else ": correct it"
    )


def _shown(keys: Mapping[str, Any], folder: Path) -> str:
    own = {key: value for key, value in keys.items() if key != "path" or "://" in str(value)}
    texts = [f"`{key}: {json.dumps(value)}`".replace(f"{folder}/", "").replace('"', "") for key, value in own.items()]
    return ", ".join(texts) or "none"


def _learnt(domain: Domain, folder: Path) -> str:
    """Return what rows for a decoder have labels on."""
    made = tokenizer()
    prepared = prepare(domain, made, "decoder", 64, seed=0, cache=folder / ".cache")
    blocks = [next(prepared.train) for _ in range(12)]
    kinds = {
        "answers" if (block.get("labels", block["input_ids"]) == IGNORED).any() else "all text" for block in blocks
    }
    middle = made.convert_tokens_to_ids(TOKENS[0][0])
    rearranged = any(middle in block["input_ids"] for block in blocks)
    return " and ".join(sorted(kinds)) + (", rearranged" if rearranged else "")


def committed() -> dict[str, str]:
    """Return the lines of the page by shape."""
    return tried_table.rows_of(PAGE)


def main() -> None:
    """Write the table."""
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    tried_table.write(PAGE, tried_table.table(COLUMNS, map(row, SHAPES)))


if __name__ == "__main__":
    main()
