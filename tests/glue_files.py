"""GLUE's published files with invented sentences: the columns, quotes, marks and gaps of the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import datasets

from everlearn.tasks.glue_formats import FORMATS

MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
MRPC = "#1 ID\t#2 ID\t#1 String\t#2 String"
_PARSE = "( The cat )\t( A cat )\t(ROOT (NP (DT The) (NN cat)))\t(ROOT (NP (DT A) (NN cat)))"


def write(folder: Path, task: str, part: str, *lines: str) -> Path:
    """One file of a task; MRPC's begins with a byte order mark and has line ends of Windows, as Microsoft wrote it."""
    place = folder / FORMATS[task].folder
    place.mkdir(parents=True, exist_ok=True)
    windows = task == "mrpc"
    text = ("\r\n" if windows else "\n").join((*lines, ""))
    file = place / part
    file.write_bytes(text.encode("utf-8-sig" if windows else "utf-8"))
    return file


def publish(folder: Path) -> Path:
    """All nine tasks, a few rows a part, as the folder that GLUE's script makes."""
    for part in ("train", "dev"):
        write(
            folder,
            "cola",
            f"{part}.tsv",
            "in01\t1\t\tThe cat that I fed slept.",
            "in02\t0\t*\tThe cat fed that slept I.",
        )
        write(folder, "sst-2", f"{part}.tsv", "sentence\tlabel", 'an " unfinished quote \t1', "a dull film \t0")
        write(
            folder, "mrpc", f"{part}.tsv", f"Quality\t{MRPC}",
            '1\t702\t703\tHe said the shop " was open .\tThe shop " was open , he said .',
            "0\t210\t211\tShares rose 2 % .\tShares fell .",
        )  # fmt: skip
        write(
            folder,
            "sts-b",
            f"{part}.tsv",
            f"{STSB}\tscore",
            "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA man rides.\tA man is riding.\t4.750",
            '1\tmain-news\tMSRpar\t2013\t0002\tnone\tnone\tThe "old bridge.\tA new shop.\t0.000',
        )
        write(
            folder, "qqp", f"{part}.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "7\t11\t12\tHow do I bake bread?\tHow is bread baked?\t1", "8\t13\t14\tWhat is", "9\t15\t16\tWhy?\tWho?\t0",
        )  # fmt: skip
        write(
            folder, "qnli", f"{part}.tsv", "index\tquestion\tsentence\tlabel",
            "0\tWho built it?\tIt was built by Ann.\tentailment", "1\tWhen?\tIt is red.\tnot_entailment",
        )  # fmt: skip
        for task, one, other in (("rte", "entailment", "not_entailment"), ("wnli", "1", "0")):
            write(
                folder, task, f"{part}.tsv", "index\tsentence1\tsentence2\tlabel",
                f"0\tAnn sold her car to Bo.\tBo has a car.\t{one}", f"1\tIt rained.\tIt was dry.\t{other}",
            )  # fmt: skip
    write(folder, "mnli", "train.tsv", f"{MNLI}\tsentence1\tsentence2\tlabel1\tgold_label", *_mnli("train", 1))
    five = "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label"
    for part in ("matched", "mismatched"):
        rows = (*_mnli(part, 5), f"9\t9\t9c\tslate\t{_PARSE}\tNobody agreed.\tOn this.{'	neutral' * 5}\t-")
        write(folder, "mnli", f"dev_{part}.tsv", f"{MNLI}\tsentence1\tsentence2{five}", *rows)
    write(folder, "cola", "test.tsv", "index\tsentence", "0\tA sentence whose label is hidden.")
    return folder


def _mnli(part: str, annotators: int) -> list[str]:
    return [
        f"{number}\t{number}\t{number}e\tfiction\t{_PARSE}\tIt rained {part}.\tIt was {label}."
        + f"\t{label}" * (annotators + 1)
        for number, label in enumerate(("entailment", "neutral", "contradiction"))
    ]


def learnable(folder: Path, task: str, train: int = 24, dev: int = 12) -> Path:
    """CoLA or STS-B with a label that the text tells: "axes" is right, or similar; "matrix" is not."""
    for part, count in (("train", train), ("dev", dev)):
        words = (("axes", "matrix")[number % 2] for number in range(count))
        rows = [" ".join([word] * (3 + number % 5)) for number, word in enumerate(words)]
        if task == "cola":
            write(
                folder, task, f"{part}.tsv", *(f"in\t{1 - n % 2}\t{'*' * (n % 2)}\t{row}" for n, row in enumerate(rows))
            )
        else:
            cells = (
                f"{n}\tg\tf\t2012\t1\tnone\tnone\t{row}\t{row}\t{4.5 - 4 * (n % 2):.3f}" for n, row in enumerate(rows)
            )
            write(folder, task, f"{part}.tsv", f"{STSB}\tscore", *cells)
    return folder


def on_hub(folder: Path, task: str, splits: dict[str, Sequence[dict[str, object]]]) -> Path:
    """A copy of the hub's data set with one task: a card, and a Parquet file a split; labels are classes."""
    subset, labels = FORMATS[task].subset, FORMATS[task].labels
    (folder / subset).mkdir(parents=True, exist_ok=True)
    files = "".join(f"  - split: {split}\n    path: {subset}/{split}-*\n" for split in splits)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {subset}\n  data_files:\n{files}---\n")
    for split, rows in splits.items():
        table = datasets.Dataset.from_list([dict(row) for row in rows])
        if labels:
            table = table.cast_column("label", datasets.ClassLabel(names=list(labels)))
        table.to_parquet(folder / subset / f"{split}-00000-of-00001.parquet")
    return folder
