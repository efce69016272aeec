"""The fifteen tasks, and seven that only `glue` has: labels, sizes, sources of their examples, and orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from everlearn_bench.suites.sources import Fetchable, github

CACHE = "continual-tasks"
"""Folder in the cache, for all suites of these tasks."""


@dataclass(frozen=True)
class TextTask:
    """A classification task whose answers are words.

    Attributes:
        group: kind of task, as named in prompts.
        dataset: name in prompts, and of the published folder below ``CL_Benchmark/<group>/``.
        labels: the answers, as published.
        train: number of training examples of the published file.
        test: number of test examples of the published file.
        copy: folder of a re-split copy below ``tasks/``.
        proxy: description of the copy if a part of the published task was not available; empty if it is the task.
        opening: prefix of every text of the published files, which the copy leaves out.
        spelt: label of the copy, in lower case → as published.
    """

    group: str
    dataset: str
    labels: tuple[str, ...]
    train: int
    test: int
    copy: str
    proxy: str = ""
    opening: str = ""
    spelt: Mapping[str, str] = field(default_factory=dict)

    def label(self, word: str) -> str | None:
        """Return a label as published, however it is spelt in a file; None if it is none."""
        known = {label.casefold(): label for label in self.labels} | dict(self.spelt)
        return known.get(" ".join(word.split()).casefold())


_STARS = ("very negative", "negative", "neutral", "positive", "very positive")
_OPINION = ("Good", "Bad")
_CLASSES = ("Company", "Educational Institution", "Artist", "Athlete", "Office Holder", "Mean of Transportation",
            "Building", "Natural Place", "Village", "Animal", "Plant", "Album", "Film", "Written Work")  # fmt: skip
_TOPICS = ("Society & Culture", "Science & Mathematics", "Health", "Education & Reference", "Computers & Internet",
           "Sports", "Business & Finance", "Entertainment & Music", "Family & Relationships",
           "Politics & Government")  # fmt: skip
_YAHOO = {
    **{topic.replace("&", "and").casefold(): topic for topic in _TOPICS},
    "science": "Science & Mathematics",
    "business": "Business & Finance",
    "computers and internet": "Computers & Internet",
}
_QUESTIONS = {"enty": "thing", "desc": "description", "hum": "person", "num": "number", "loc": "place",
              "abbr": "abbreviation"}  # fmt: skip
_AGAIN = "the published {} file, parted again"

TASKS: dict[str, TextTask] = {
    "dbpedia": TextTask("TC", "dbpedia", _CLASSES, 14_000, 7_600, "long15_dbpedia", _AGAIN.format("test")),
    "amazon": TextTask("SC", "amazon", _STARS, 5_000, 7_600, "long15_amazon"),
    "yahoo": TextTask(
        "TC", "yahoo", _TOPICS, 10_000, 7_600, "long15_yahoo", "few-shot samples of LFPT5, together", "Text: ", _YAHOO
    ),
    "agnews": TextTask(
        "TC", "agnews", ("World", "Sports", "Business", "Science or Technology"), 4_000, 7_600, "long15_agnews"
    ),
    "mnli": TextTask("NLI", "MNLI", ("neutral", "entailment", "contradiction"), 3_000, 7_600, "long15_mnli"),
    "cb": TextTask("NLI", "CB", ("entailment", "contradiction", "neutral"), 250, 56, "long15_cb"),
    "wic": TextTask("WiC", "WiC", ("True", "False"), 2_000, 638, "long15_wic"),
    "copa": TextTask("COPA", "COPA", ("A", "B"), 400, 100, "long15_copa"),
    "qqp": TextTask("QQP", "QQP", ("False", "True"), 2_000, 7_600, "long15_qqp"),
    "boolqa": TextTask("BoolQA", "BoolQA", ("True", "False"), 2_000, 3_270, "long15_boolq"),
    "rte": TextTask("NLI", "RTE", ("contradiction", "entailment"), 2_000, 277, "long15_rte"),
    "imdb": TextTask(
        "SC", "IMDB", _OPINION, 2_000, 7_600, "long15_imdb", "the published train file, and other test reviews"
    ),
    "yelp": TextTask("SC", "yelp", _STARS, 5_000, 7_600, "long15_yelp", _AGAIN.format("train"), "Text: "),
    "sst-2": TextTask("SC", "SST-2", _OPINION, 2_000, 872, "long15_sst2", opening="Text: "),
    "multirc": TextTask(
        "MultiRC", "MultiRC", ("False", "True"), 2_000, 4_848, "long15_multirc", _AGAIN.format("train")
    ),
    "subj": TextTask("SUBJ", "SUBJ", ("subjective", "objective"), 8_000, 1_000, "subj"),
    "trec": TextTask("QC", "TREC", tuple(_QUESTIONS.values()), 4_869, 500, "trec", spelt=_QUESTIONS),
    "cola": TextTask("CoLA", "CoLA", ("unacceptable", "acceptable"), 8_551, 1_043, "cola"),
    "mrpc": TextTask("PI", "MRPC", ("False", "True"), 3_668, 408, "mrpc"),
    "sts-b": TextTask("STS", "STS-B", tuple(f"{step / 5:.1f}" for step in range(26)), 5_749, 1_500, "sts-b"),
    "qnli": TextTask("QNLI", "QNLI", ("False", "True"), 104_743, 5_463, "qnli"),
    "wnli": TextTask("NLI", "WNLI", ("contradiction", "entailment"), 635, 71, "wnli"),
}
"""By the name that a domain and its end task have. Labels and sizes are those of the files of O-LoRA's repository,
which has not the last seven: two easier tasks, of which there are copies alone, and five of GLUE with its sizes. Values
of STS-B are rounded to multiples of 0.2 and written as text, as T5 learns them (arXiv 1910.10683, section 2.4)."""


GLUE_ONLY = ("cola", "mrpc", "sts-b", "qnli", "wnli")
"""Tasks whose published examples are GLUE's, wherever they are read."""
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


REPOSITORY, COMMIT = "cmnfriend/O-LoRA", "07117e1fc4a5f5ad9308a815a42cee8f46502dc8"
LICENCE = "repository MIT; nothing said about the single data sets"
BY_HAND = (
    f"The files are in the folder CL_Benchmark of the repository https://github.com/{REPOSITORY} at commit "
    f"{COMMIT[:12]}: clone it, and pass the folder that contains CL_Benchmark as `--data`."
)


def sources(tasks: Iterable[str]) -> tuple[Fetchable, ...]:
    """Return training and test file of each task; no digest was published, so that of the first fetch is recorded."""
    fetchables = []
    for name in tasks:
        task = TASKS[name]
        for part in ("train", "test"):
            path = f"CL_Benchmark/{task.group}/{task.dataset}/{part}.json"
            fetchables.append(Fetchable(path, github(REPOSITORY, COMMIT, path), LICENCE))
    return tuple(fetchables)
