"""Orders of the tasks, as published."""

from __future__ import annotations

STANDARD: dict[int, tuple[str, ...]] = {
    1: ("dbpedia", "amazon", "yahoo", "agnews"),
    2: ("dbpedia", "amazon", "agnews", "yahoo"),
    3: ("yahoo", "amazon", "agnews", "dbpedia"),
}
LONG: dict[int, tuple[str, ...]] = {
    4: ("mnli", "cb", "wic", "copa", "qqp", "boolqa", "rte", "imdb", "yelp", "amazon", "sst-2", "dbpedia", "agnews",
        "multirc", "yahoo"),
    5: ("multirc", "boolqa", "wic", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst-2", "dbpedia", "agnews", "yelp",
        "amazon", "yahoo"),
    6: ("yelp", "amazon", "mnli", "cb", "copa", "qqp", "rte", "imdb", "sst-2", "dbpedia", "agnews", "yahoo", "multirc",
        "boolqa", "wic"),
}  # fmt: skip
"""The orders of O-LoRA (arXiv 2310.14152) and MIGU (arXiv 2406.17245, table 7), by their numbers."""
TWICE = {LONG[5]: "wic", LONG[6]: "mnli"}
"""Tasks that the released scripts of an order learn for two epochs: its third one."""
