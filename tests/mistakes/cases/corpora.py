"""Corpora: formats, damage, limits."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable

import pyarrow
from pyarrow import parquet

import tiny
from cli_project import Project
from mistakes import Case, both, corpus, domain, file, group, jsonl


def broken_line(project: Project) -> None:
    lines = (project.folder / "a.jsonl").read_text().splitlines()
    lines[6] = '{"text": "cut off'
    (project.folder / "a.jsonl").write_text("\n".join(lines))


LOOK = ("data", "recipe.yaml")
FINDS = ("data", "recipe.yaml", "--json")
TEXTS = tiny.texts(150)
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)


def given(name: str, content: bytes | str, **keys: object) -> Callable[[Project], None]:
    """The first domain reads this file."""
    return both(file(name, content), domain(path=name, **keys))


def refused(name: str, path: str, content: bytes | str, *says: str, **keys: object) -> Case:
    """A file that is refused with a sentence that names it."""
    return Case(name, given(path, content, **keys), LOOK, says=(path, *says))


def table(columns: dict[str, pyarrow.Array]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def broken_strings() -> pyarrow.Array:
    raw = pyarrow.array([b"fine", b"caf\xe9"])
    return pyarrow.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])


def in_csv(*rows: str) -> str:
    return "n,text\n" + "".join(f"{row}\n" for row in rows)


PARQUET = table({"text": pyarrow.array(TEXTS)})


CASES = [
    Case("names a corpus that is not there", domain(path="aa.jsonl"), says=("aa.jsonl", "a.jsonl")),
    Case("gives an empty corpus", corpus(b""), says=("a.jsonl", "empty")),
    Case("gives a binary file", corpus(bytes(range(256)) * 40), says=("a.jsonl", "binary")),
    Case("gives less text than a row", corpus(b'{"text": "tiny"}\n'), says=("'a'", "32")),
    Case(
        "has the text in another column",
        jsonl("a.jsonl", [{"body": text, "title": "t"} for text in tiny.texts(150)]),
        says=("'text'", "'body'", "'title'"),
    ),
    Case("has a line that was cut off", broken_line, says=("a.jsonl, line 7", "JSON")),
    Case(
        "names a corpus of the hub without network",
        domain(path="somebody/some-data"),
        says=("somebody/some-data", "path"),
    ),
    # JSON
    refused("writes JSON with single quotes", "x.jsonl", "{'text': 'a'}\n", "line 1", "JSON"),
    refused("writes a number where text belongs", "x.jsonl", '{"text": "a"}\n{"text": 5}\n', "line 2", "int"),
    refused("writes true where text belongs", "x.jsonl", '{"text": true}\n', "line 1", "bool"),
    refused("writes a list where text belongs", "x.jsonl", '{"text": ["a", "b"]}\n', "line 1", "list"),
    refused("writes an object where text belongs", "x.jsonl", '{"text": {"en": "a"}}\n', "line 1", "dict"),
    refused("writes a text alone on a line of JSON", "x.jsonl", '"a"\n', "line 1", "str"),
    refused("has a column twice in a line of JSON", "x.jsonl", '{"text": "a", "text": "b"}\n', "'text' 2 times"),
    refused("names a column in other letters", "x.jsonl", '{"Text": "a", "id": 1}\n' * 3, "Did you mean 'Text'"),
    refused("has null in every row", "x.jsonl", '{"text": null}\n' * 4, "4 rows", "null"),
    refused("has blanks in every row", "x.jsonl", '{"text": " "}\n' * 4, "4 rows", "blank"),
    refused("forgets the end of a JSON array", "x.json", '[{"text": "a"},\n{"text": "b"}', "line 2", "delimiter"),
    refused("leaves a comma at the end of a JSON array", "x.json", '[{"text": "a"},]', "line 1, column 16"),
    refused("has two JSON arrays in a file", "x.json", '[{"text": "a"}][{"text": "b"}]', "Extra data"),
    refused("mixes texts into a JSON array", "x.json", '[{"text": "a"}, "b"]', "item 2", "str"),
    refused("nests JSON without end", "x.json", "[" * 100_000, "item 1"),
    refused("nests a line of JSON without end", "x.jsonl", '{"text": ' * 100_000, "line 1"),
    refused("gives JSON of columns, not rows", "x.json", '{"text": ["a", "b"]}', "line 1", "list"),
    refused("gives an empty JSON array", "x.json", "[]", "empty"),
    # tables
    refused("has a column twice in a table", "x.csv", "text,n,text\na,1,b\n", "'text' 2 times"),
    refused("has a row with too many cells", "x.csv", in_csv("1,a", "2,b,c"), "line 3", "3 cells", "2 columns"),
    refused("has a row with too few cells", "x.csv", in_csv("1,a", "2"), "line 3", "1 cell;"),
    refused("has no header", "x.csv", "first text\nsecond text\n", "no column 'text'", "'first text'"),
    refused("separates a csv by colons", "x.csv", "n:text\n1:a\n", "no column 'text'", "'n:text'"),
    refused("has a header and no row", "x.csv", "text\n", "empty"),
    refused("has a header with blanks around a name", "x.csv", "n, text\n1,a\n", "no column 'text'", "' text'"),
    # Parquet
    refused(
        "has Parquet text that is not UTF-8", "x.parquet", table({"text": broken_strings()}), "UTF-8", "rows 1 to 2"
    ),
    refused("has bytes in Parquet", "x.parquet", table({"text": pyarrow.array([b"a"])}), "row 1", "bytes"),
    refused("has lists in Parquet", "x.parquet", table({"text": pyarrow.array([["a"]])}), "row 1", "list"),
    refused("has structs in Parquet", "x.parquet", table({"text": pyarrow.array([{"a": 1}])}), "row 1", "dict"),
    refused("has nothing but nulls in Parquet", "x.parquet", table({"text": pyarrow.nulls(3)}), "3 rows", "null"),
    refused("has no row in Parquet", "x.parquet", table({"text": pyarrow.array([], pyarrow.string())}), "empty"),
    refused("lacks the column in Parquet", "x.parquet", table({"body": pyarrow.array(["a"])}), "'body'"),
    refused("cuts a Parquet file short", "x.parquet", PARQUET[:-30], "Parquet"),
    refused("damages the middle of a Parquet file", "x.parquet", PARQUET[:50] + bytes(900) + PARQUET[950:], "Parquet"),
    refused("calls a text Parquet", "x.parquet", "just text\n", "Parquet"),
    refused("compresses Parquet", "x.parquet.gz", gzip.compress(PARQUET), "compressed inside"),
    # compressed
    refused("calls a text gz", "x.txt.gz", "just text\n", "decompressed"),
    refused("cuts a gz short", "x.jsonl.gz", gzip.compress(LINES.encode())[:-20], "decompressed"),
    refused("cuts an xz short", "x.jsonl.xz", lzma.compress(LINES.encode())[:-20], "decompressed"),
    refused("cuts a bz2 short", "x.jsonl.bz2", bz2.compress(LINES.encode())[:-20], "decompressed"),
    refused("calls a text zst", "x.txt.zst", "just text\n", "decompressed"),
    refused("adds bytes behind a gz", "x.jsonl.gz", gzip.compress(LINES.encode()) + b"more", "decompressed"),
    refused("gives a zip", "x.zip", b"PK\x03\x04", "not known", ".jsonl"),
    refused("gives a tar", "x.tar.gz", gzip.compress(b"x"), "not known"),
    refused("gives a Word document", "x.docx", b"PK\x03\x04", "not known"),
    Case(
        "gives a gz that unpacks without end",
        both(
            given("x.txt.gz", gzip.compress(b"a line\n" * 10**6)), group("data", max_row_bytes=4096, max_expansion=50)
        ),
        LOOK,
        says=("x.txt.gz", "50 times", "data.max_expansion"),
    ),
    Case(
        "gives a gz that is one line without end",
        both(given("x.jsonl.gz", gzip.compress(b"0" * 10**6)), group("data", max_row_bytes=4096)),
        LOOK,
        says=("x.jsonl.gz, line 1", "4,096 bytes", "data.max_row_bytes"),
    ),
    Case(
        "leaves a quote open in a long table",
        both(given("x.csv", 'text\n"' + "a line\n" * 2000), group("data", max_row_bytes=4096)),
        LOOK,
        says=("x.csv", "quote", "data.max_row_bytes"),
    ),
    Case("allows rows of no length", group("data", max_row_bytes=10), LOOK, says=("data.max_row_bytes", "1024")),
    Case("allows files to shrink only", group("data", max_expansion=0.5), LOOK, says=("data.max_expansion",)),
    # text
    refused("saves text as UTF-16", "x.txt", "some text\n".encode("utf-16"), "UTF-16", "UTF-8"),
    refused("saves text as Latin-1", "x.txt", "fine\ncafé\n".encode("latin-1"), "line 2", "UTF-8"),
    refused("gives a text of blank lines", "x.txt", "\n \n\t\n", "empty"),
    Case(
        "gives a folder without text", both(file("x/y.png", b"1"), domain(path="x")), LOOK, says=("x", "known format")
    ),
    Case("gives a glob that matches nothing", domain(path="*.tsv"), LOOK, says=("*.tsv", "no file")),
    Case("gives an empty path", domain(path=""), LOOK, says=("`domains.0.path` is empty", "Name a path")),
    # held out
    Case(
        "holds out the training file", domain(validation="a.jsonl"), LOOK, says=("a.jsonl", "nothing would be held out")
    ),
    Case(
        "holds out a copy of the training file",
        both(corpus(LINES), file("copy.jsonl", LINES), domain(validation="copy.jsonl")),
        LOOK,
        says=("copy.jsonl", "same file", "nothing would be held out"),
    ),
    Case(
        "holds out a file that is among the training files",
        both(
            corpus(LINES),
            file("all/one.jsonl", LINES),
            file("all/two.jsonl", '{"text": "x"}\n'),
            domain(path="all", validation="all/two.jsonl"),
        ),
        LOOK,
        says=("two.jsonl", "nothing would be held out"),
    ),
    Case(
        "holds out some of the training text",
        both(
            corpus(LINES),
            jsonl("held.jsonl", [{"text": text} for text in [*TEXTS[:10], *tiny.texts(30, 99)]]),
            domain(validation="held.jsonl"),
        ),
        FINDS,
        says=("10 of the 40 held-out documents of 'a'", "10 of them verbatim"),
        code=0,
    ),
    Case(
        "gives two domains one file", domain(1, path="a.jsonl"), FINDS, says=("'a' and 'b' read the same file",), code=0
    ),
    Case(
        "gives two domains copies of one file",
        both(corpus(LINES), file("b.jsonl", LINES)),
        FINDS,
        says=("'a' and 'b' read the same file",),
        code=0,
    ),
    Case(
        "takes a domain for general text",
        lambda project: project.recipe.update(general="a.jsonl"),
        FINDS,
        says=("the drift of 'general' is not that of unseen text",),
        code=0,
    ),
    # sources
    Case(
        "gives a domain a path and sources", domain(sources=[{"path": "b.jsonl"}]), LOOK, says=("`path`", "`sources`")
    ),
    Case(
        "weighs a source with nothing",
        domain(path="", sources=[{"path": "a.jsonl", "weight": 0}]),
        LOOK,
        says=("weight", "0"),
    ),
    Case(
        "names a source that is not there",
        domain(path="", sources=[{"path": "a.jsonl"}, {"path": "aa.jsonl"}]),
        LOOK,
        says=("aa.jsonl", "Did you mean"),
    ),
    Case(
        "mistypes a key of a source",
        domain(path="", sources=[{"path": "a.jsonl", "wieght": 2}]),
        LOOK,
        says=("wieght", "Did you mean 'weight'"),
    ),
    Case(
        "measures on one of the sources",
        domain(path="", sources=[{"path": "a.jsonl"}, {"path": "c.jsonl"}], validation="c.jsonl"),
        says=("`validation:", "c.jsonl", "nothing would be held out"),
    ),
]
