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

This page lists the files that `everlearn bench SUITE --data fetch` downloads, with the licence that each repository
states. The files are not part of this repository, and nothing is downloaded unless you ask for it. They are stored in
`$EVERLEARN_CACHE` (or in `everlearn` in the user's cache folder), one folder per suite, where later commands find them.

* A downloaded file is used only if it is complete and has the SHA-256 in the table. If the table has none, that of the
  first download is recorded in `fetched.json` beside the files, and later downloads must have the same. Numbers of rows
  and column names are also checked where they are known.
* A `.tar.gz` of a repository is created by the server for each download, so the next download may have other bytes and
  another SHA-256.
* If the command is interrupted, call it again: it downloads the files that are missing.

**The addresses have not been tried yet.** They are built from repository, commit and path. What is known about them:

* `six-domains`: an index of public files contains all paths except two. It has `data/reviews.csv` only as
  `yelp_reviews/data/reviews.csv` of an earlier commit, and instead of the folder `data/xml_all` of acl-anthology only
  `data/xml`, in the same format. The checksums are those of the copies that the committed results were made with.
* CL_Benchmark: we have not seen the files dbpedia/train, yahoo, IMDB/test, yelp/test and MultiRC/test; their paths
  follow those of the others.
* HellaSwag: we have not seen the complete file; other projects read it from this path.
* M2D2 is on the Hugging Face Hub, not on GitHub. Of its tarballs we know one size (`cs.CL`, 144,417,418 bytes) and no
  checksum. The settings choose which are downloaded ([`suite.domains`](m2d2.md#settings)), by default all of
  level 2.

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
