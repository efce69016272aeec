"""Build the domains of a stream: selected, truncated, deduplicated, with a report."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import DataError, RecipeError, did_you_mean
from everlearn.files import digest, read_json, write_json
from everlearn.wording import percent
from everlearn_bench.suites import cache
from everlearn_bench.suites.m2d2 import domain_names, duplicates
from everlearn_bench.suites.m2d2.corpus_folders import PARTS, Leaf, Taxonomy
from everlearn_bench.suites.m2d2.duplicates import Duplicates
from everlearn_bench.suites.m2d2.options import StreamOptions

NAME = "m2d2"
REPORT = "report.json"
ORDER_OF_PARTS = ("test", "valid", "train")
"""What comes first stays: text is taken from training before it is taken from what is measured."""
SAME = 0.5
"""Share of a held-out part found in its own training text from which it is no held-out part."""
FEW = 20
"""Documents below which that share says nothing."""


def choose(taxonomy: Taxonomy, options: StreamOptions) -> tuple[Leaf, ...]:
    """Return the domains of a stream, in the order of the taxonomy.

    Raises:
        RecipeError: the settings name a missing domain, or nothing is left.
    """
    words = {
        leaf.name: {leaf.name, leaf.branch.group, leaf.branch.super_domain}
        for leaf in taxonomy.leaves
        if leaf.branch.level == options.level
    }
    for domain in options.domains:
        if not any(domain in each for each in words.values()):
            known = {word for each in words.values() for word in each}
            other = next((leaf for leaf in taxonomy.leaves if leaf.name == domain), None)
            why = f" It is of level {other.branch.level} (`suite.level`)." if other else did_you_mean(domain, known)
            raise RecipeError(f"`suite.domains` names '{domain}', which is no domain or group of the stream.{why}")
    chosen = [name for name, each in words.items() if not options.domains or each.intersection(options.domains)]
    if options.aliases == "drop":
        chosen = domain_names.without_aliases(chosen)
    if not chosen:
        raise RecipeError(f"There is no domain of level {options.level} (`suite.level`).")
    return tuple(leaf for leaf in taxonomy.leaves if leaf.name in chosen)


def dropped(taxonomy: Taxonomy, chosen: Sequence[Leaf], options: StreamOptions) -> dict[str, str]:
    """Return the domain that was kept for each dropped alias."""
    there, stayed = {leaf.name for leaf in taxonomy.leaves}, {leaf.name for leaf in chosen}
    pairs = domain_names.ALIASES.items() if options.aliases == "drop" else ()
    return {alias: name for alias, name in pairs if alias in there and name in stayed}


def build(taxonomy: Taxonomy, chosen: Sequence[Leaf], options: StreamOptions) -> Path:
    """Return the folder with ``<domain>/{train,valid,test}.jsonl`` and ``report.json``, built if it is missing.

    Raises:
        DataError: a part is empty, or a held-out part equals its training text.
    """
    most = options.domain_bytes or taxonomy.most_bytes
    how = [options.duplicates, options.near, most, options.held_out_bytes, options.balanced, taxonomy.lines]
    code = [digest(Path(module)) for module in (__file__, duplicates.__file__)]
    marks = [f"{leaf.name} {leaf.mark}" for leaf in chosen]

    def write(folder: Path) -> None:
        texts = {
            leaf.name: {part: _read(leaf, part, most, options, taxonomy.lines) for part in PARTS} for leaf in chosen
        }
        for name, parts in texts.items():
            if empty := next((part for part in PARTS if not parts[part]), None):
                raise DataError(
                    f"'{empty}' of the domain '{name}' is empty. Leave the domain out (`suite.domains` of a grid's "
                    "settings; for a recipe, `domains` in a file `stream.json` in the data folder)."
                )
            _check(name, parts)
        report, kept = _distinct(texts, options)
        if options.balanced:
            smallest = min(_size(parts["train"]) for parts in kept.values())
            for parts in kept.values():
                parts["train"] = first_by_hash(parts["train"], smallest, taxonomy.lines)
        for name, parts in kept.items():
            (folder / name).mkdir()
            for part, rows in parts.items():
                if not rows:
                    raise DataError(
                        f"Nothing is left of '{part}' of the domain '{name}': all of it repeats other domains, or "
                        "`suite.domain_bytes` and `suite.balanced` leave nothing. Leave the domain out."
                    )
                cache.write_lines(folder / name / f"{part}.jsonl", ({"text": text} for text in rows))
        sizes = {name: {part: [len(rows), _size(rows)] for part, rows in parts.items()} for name, parts in kept.items()}
        write_json(folder / REPORT, {"aliases": dropped(taxonomy, chosen, options), "kept": sizes, **report})

    return cache.derived(NAME, "stream", (), (*code, json.dumps(how), *marks), write)


def first_by_hash(texts: Iterable[str], most: int | None, in_place: bool) -> list[str]:
    """Return the texts that come first by their hashes and fit into a number of bytes.

    Args:
        texts: documents; they are read once, and only those that fit are held.
        most: bytes of UTF-8; None for all. A document that alone exceeds the limit is skipped, for it would displace
            all others; if every one does, only the first is kept.
        in_place: whether to keep their own order instead of that of their hashes.
    """
    heap: list[tuple[bytes, int, str]] = []
    longer: tuple[bytes, int, str] | None = None
    size = 0
    for place, text in enumerate(texts):
        key = bytes(255 - byte for byte in _hash(text))  # inverted: the heap pops the smallest, the last by hash
        own = len(text.encode("utf-8", "replace"))
        if most is not None and own > most:
            longer = max(longer or (b"", 0, ""), (key, -place, text))
            continue
        heapq.heappush(heap, (key, -place, text))
        size += own
        while most is not None and size > most:
            size -= len(heapq.heappop(heap)[2].encode("utf-8", "replace"))
    if not heap and longer is not None:
        heap = [longer]
    chosen = sorted(heap, key=lambda each: -each[1] if in_place else each[0], reverse=not in_place)
    return [text for _, _, text in chosen]


def sentences(folder: Path) -> list[str]:
    """Return notes for readers of results on how the text was built."""
    report: dict[str, Any] = read_json(folder / REPORT)
    done = "taken out" if report["duplicates"] == "remove" else "left in"
    pairs: Counter[tuple[str, str]] = Counter()
    for each in report["repeated"]:
        pairs[each["of"], each["domain"]] += each["documents"]
    across = Counter({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})
    most = ", ".join(f"{one} and {other} {count:,}" for (one, other), count in across.most_common(3))
    notes = [
        f"Of {report['documents']:,} documents, {across.total():,} repeat one of another domain and "
        f"{pairs.total() - across.total():,} one of their own (Jaccard of {duplicates.WORDS}-word shingles: "
        f"{report['near']} or more); they were {done}." + (f" Most: {most}." if most else "")
    ]
    if shared := report["held_out_in_train"]:
        named = ", ".join(f"{name} {count:,}" for name, count in list(shared.items())[:5])
        notes.append(
            f"Held-out documents that were in the training text of their own domain: {named}; they were {done}."
        )
    if aliases := report["aliases"]:
        notes.append(
            "Left out as second names of a category: " + ", ".join(f"{a} ({b})" for a, b in aliases.items()) + "."
        )
    return notes


def _read(leaf: Leaf, part: str, most: int | None, options: StreamOptions, lines: bool) -> list[str]:
    return first_by_hash(leaf.texts[part](), most if part == "train" else options.held_out_bytes, lines)


def _check(name: str, parts: dict[str, list[str]]) -> None:
    """Refuse held-out text that is training text: an early loader of M2D2 returned the test file as training text."""
    train = set(map(_hash, parts["train"]))
    for part in ("valid", "test"):
        same = sum(_hash(text) in train for text in parts[part])
        if len(parts[part]) >= FEW and same > SAME * len(parts[part]):
            raise DataError(
                f"{percent(same / len(parts[part]), 0)} of the documents of '{part}' of the domain '{name}' are in its "
                "training text too: it is no held-out text. Fetch the domain again, or leave it out (`suite.domains`)."
            )


Texts = dict[str, dict[str, list[str]]]


def _distinct(texts: Texts, options: StreamOptions) -> tuple[dict[str, Any], Texts]:
    """Return the documents without those that repeat an earlier one, and a report; test parts come first."""
    known = Duplicates(options.near)
    places: list[tuple[str, str]] = []
    kept: Texts = {name: {part: [] for part in PARTS} for name in texts}
    repeated: Counter[tuple[str, str, str, str, str]] = Counter()
    shared: Counter[str] = Counter()
    for part in ORDER_OF_PARTS:
        for name, parts in texts.items():
            for text in parts[part]:
                match = known.add(text)
                if known.last == len(places):
                    places.append((name, part))
                if match is not None:
                    of, of_part = places[match.document]
                    repeated[name, part, of, of_part, "exact" if match.exact else "near"] += 1
                    shared[name] += of == name and part == "train" != of_part
                if match is None or options.duplicates == "report":
                    kept[name][part].append(text)
    keys = ("domain", "part", "of", "of_part", "kind")
    report = {
        "duplicates": options.duplicates,
        "near": options.near,
        "documents": sum(len(rows) for parts in texts.values() for rows in parts.values()),
        "repeated": [dict(zip(keys, place, strict=True)) | {"documents": n} for place, n in repeated.most_common()],
        "held_out_in_train": {name: count for name, count in shared.most_common() if count},
    }
    return report, kept


def _size(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).digest()


def read(folder: Path, name: str, part: str) -> Iterator[str]:
    """Yield the documents of a domain of the stream."""
    return (str(row["text"]) for row in cache.read_lines(folder / name / f"{part}.jsonl"))
