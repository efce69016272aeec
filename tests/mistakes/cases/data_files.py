"""Data files."""

import tiny
from cli_project import Project
from mistakes import Case, corpus, domain, jsonl


def broken_line(project: Project) -> None:
    lines = (project.folder / "a.jsonl").read_text().splitlines()
    lines[6] = '{"text": "cut off'
    (project.folder / "a.jsonl").write_text("\n".join(lines))


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
]
