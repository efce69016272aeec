"""Write docs/data-sources.md: where the suites' data can be fetched, from the tables in the code.

python docs/data_sources.py
"""

from __future__ import annotations

from pathlib import Path

from everlearn_bench.suites import SUITES, Suite, find_suite
from everlearn_bench.suites.sources import Fetchable

PAGE = Path(__file__).with_name("data-sources.md")
HEAD = """\
# Data sources

What `everlearn bench SUITE --data fetch` gets, file by file, with the licence that the repository states. It goes into
`$EVERLEARN_CACHE` (else `everlearn` in the user's cache folder), a folder a suite, where later commands find it. A
file is moved to its place when it is whole and has its SHA-256; where nobody wrote that down, the first fetch does, in
`fetched.json` beside the files, and from then on the file must have it; what else is known of it, its rows and their
columns, is looked at. A `.tar.gz` of a whole repository is packed when it is asked for, perhaps of other bytes next
time: it is read to its end, and one that was removed may come back with another SHA-256. An interrupted command goes on
with the next file. Nothing of it is part of this repository, and nothing is fetched unless you ask for it.

Addresses are those of commits, put together from repository, commit and path; they have not been tried yet. Of those of
`six-domains`, an index of public files knows all but two: `data/reviews.csv` only as `yelp_reviews/data/reviews.csv` of
an earlier commit, and the folder `data/xml_all` of acl-anthology not at all, only `data/xml` of the same form. The
checksums are those of the copies that the committed results were made with. Of CL_Benchmark the files dbpedia/train,
yahoo, IMDB/test, yelp/test and MultiRC/test were not seen: their paths follow those of the others. Neither was the
whole of HellaSwag: its path is the one that others read it from. M2D2 is on the Hugging Face Hub, not on GitHub; of its
tarballs the size of one is known (`cs.CL`, 144,417,418 bytes) and no digest. Its settings choose which are fetched
([`suite.domains`](m2d2.md#settings)): left to itself that is all of level 2.

`python docs/data_sources.py` writes this page.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    listed: dict[tuple[str, ...], list[Suite]] = {}
    for suite in map(find_suite, sorted(SUITES)):
        if suite.sources:
            listed.setdefault((suite.cache or suite.name,), []).append(suite)
    for suites in listed.values():
        names = " and ".join(f"`{suite.name}`" for suite in sorted(suites, key=lambda suite: len(suite.sources)))
        largest = max(suites, key=lambda suite: len(suite.sources))
        rows = [f"| {each.path} | <{each.address}> | {each.licence} | {_known(each)} |" for each in largest.sources]
        table = "\n".join(["| file | address | licence | SHA-256 |", "|---|---|---|---|", *rows])
        parts.append(f"## {names}\n\n{largest.by_hand}\n\n{table}\n")
    return "\n".join(parts)


def _known(source: Fetchable) -> str:
    rows = f"; {source.rows:,} rows with {', '.join(source.columns)}" if source.rows else ""
    return source.sha256 or f"that of the first fetch{rows}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
