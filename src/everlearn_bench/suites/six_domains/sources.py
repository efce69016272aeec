"""Where the data of the suite can be fetched: the end tasks, the reviews, and the sources of the other corpora."""

from __future__ import annotations

from everlearn_bench.suites.six_domains import proxy_corpora, reviews
from everlearn_bench.suites.six_domains.corpora import PROXIES
from everlearn_bench.suites.sources import Fetchable, github

RAW = "six_end_tasks_raw"
ASPECTS = ("ZixuanKe/LifelongSentClass", "a247ea62634a4a6621ba1952bc891ce4c2885624", "no licence stated")
SCIENCE = ("allenai/scibert", "06793f77d7278898159ed50da30d173cdc8fdea9", "repository Apache-2.0")
PLACES = {
    "restaurant14": "dat/XuSemEval/asc/14/rest",
    "Nokia6610": "dat/Bing5Domains/asc/Nokia6610",
    "CanonG3": "dat/Bing5Domains/asc/CanonG3",
    "NikonCoolpix4300": "dat/Bing5Domains/asc/NikonCoolpix4300",
    "Nokia6600": "dat/Bing9Domains/asc/Nokia6600",
    "CanonPowerShotSD500": "dat/Bing9Domains/asc/CanonPowerShotSD500",
    "CanonS100": "dat/Bing9Domains/asc/CanonS100",
}
"""Folders of the aspect tasks."""
DIGESTS = {
    "CanonG3.dev.json": "56956df2b012d0489398f6e1c1548fa3619c07754777c2efd55c929f6d8be134",
    "CanonG3.test.json": "3edbbfa75834cb725ed499bfa88a43a1e57c4d1cf2ac781a5d40f90d2afa428e",
    "CanonG3.train.json": "798156c7db66d19acfaf4bd855216b3a88a1b490143c80af782d69b6009d4b8e",
    "CanonPowerShotSD500.dev.json": "3737c40b82bb42e3ad580e65ccc719ef5cda398474458f6fae552a4c0560e944",
    "CanonPowerShotSD500.test.json": "75b133c4d2cfac94110caca60face9b1bfbe9aaea4b0f3812960fc553369b33c",
    "CanonPowerShotSD500.train.json": "f8908a8cddae30c4337d7b45671836ab3628ddb4fef2bbb6658fdc66eeb6d999",
    "CanonS100.dev.json": "e9f4519c014bf2c253dc5419c1261fecc45807ed579dac6f89c47a50ff661b53",
    "CanonS100.test.json": "f3c5b13ac24ba67944d26fe487862cacac4b92f64c9a90e2f8f5abfa2e62ddcd",
    "CanonS100.train.json": "7cb61efe0d90c971ab58d7b8a4ca904ddeefd2337c51e5f19481c126a12eec00",
    "NikonCoolpix4300.dev.json": "ef6fcda4296b72477eb403c9b61f4f44c01c1cb5a23d3b696bb967929162a281",
    "NikonCoolpix4300.test.json": "d8bdc8fe727e0e528711ec19f92057c0c894511232c2526259bd298829fe5256",
    "NikonCoolpix4300.train.json": "b316440a757c84a26afb677e3aed536abe5a762c417a581a4bb8ef18328dd227",
    "Nokia6600.dev.json": "c8dedeb7926dfaac3d1351a66404395ebdc693b559386b7928955e2f614947c0",
    "Nokia6600.test.json": "2174f17cb80c77126b17f1e9bd35de378e9231597fd6f39fd7245e31477324ed",
    "Nokia6600.train.json": "3d18ed4135ca362f22e2276cdf01b6e315038123c6f193e9092c4ab351bbb055",
    "Nokia6610.dev.json": "558fe158ee42fe9a43416ddf22dd69cb23990d13ec36baee48bc55bd7405b3c8",
    "Nokia6610.test.json": "bc2dd7a9003c67c929e88a7a46933f89ad37e35a44d432964ddb8cd2780b3077",
    "Nokia6610.train.json": "dcfb8cc888e42b0d616cdf82e6a696a9d20abf10b14806f71ccd161f6df2f18d",
    "chemprot.dev.jsonl": "bfe8f39e5146ad4bb16b23707dade850546a305047bc666f6f6824c6a7e3df2f",
    "chemprot.test.jsonl": "372249c85ffea6d9a18dc5168cf45841b3d79b03412d6c620381cfc0dd3d6d49",
    "chemprot.train.jsonl": "ab17b85c4fb869b2338d7c9617414e63f3c7225e5005920b18d9cd996f1049d8",
    "citation_intent.dev.jsonl": "bc456ac8caf40829dc2d3a44801a385ad8463c80682cbf002c19329b35812b5f",
    "citation_intent.test.jsonl": "749d083cc3141d54a2bf1475c02a5a1c020c664601d55fe2829bdf85f06db4bb",
    "citation_intent.train.jsonl": "58eef60d2bbfdabefc3de25191714f769db03134523ef67e87d864112c67908c",
    "restaurant14.dev.json": "e3a562ffdadd9d781e9d54a1b022c07c19ed7a992c99f5cf1f2c6050018af4ac",
    "restaurant14.test.json": "588d3f04badf0b4515686346f663cd8f541b3e15adc801e9968255b80d595a9e",
    "restaurant14.train.json": "9a51a1b32c7fa487e9bdf98b594b9e8d757ab8a7eb5023eb2d03902e7cbab6f9",
    "sciie-relation-extraction.dev.jsonl": "9500a8e561f1ce50d972b8473525fe24ebae732bde653c381a4c65945965567a",
    "sciie-relation-extraction.test.jsonl": "be4c06d2b8903783818a5e4cba08c71b954a86f00021907706f66ac3e26c58bd",
    "sciie-relation-extraction.train.jsonl": "83d395d97de2c02dcb4898af3c6e34b5f5aa19771298fbc9f69ae435fa1258fb",
}
"""SHA-256 of each file as it was published, taken from the copies that the committed results were made with."""
REVIEWS = ("ccsasuke/man", "b57b4c14340db1ca7bffb5d9737b7c2601dc8df2", "repository MIT; nothing said about the text")
BY_HAND = (
    "If a corpus cannot be fetched, make it by hand: docs/six-domains.md lists the repository, commit and files of "
    "each, and how it is cleaned. Put it beside the fetched files, or use your own text (`corpora` in the settings)."
)


def _fetchable(name: str, digest: str) -> Fetchable:
    task, part, ending = name.split(".")
    if ending == "jsonl":  # JSON lines, whatever the published name says
        repository, commit, licence = SCIENCE
        path = f"data/text_classification/{task}/{part}.txt"
    else:
        repository, commit, licence = ASPECTS
        path = f"{PLACES[task]}/{part}.json"
    return Fetchable(f"{RAW}/{name}", github(repository, commit, path), licence, digest)


def _reviews(category: str, kind: str) -> Fetchable:
    repository, commit, licence = REVIEWS
    name = f"{category}.task.{kind}"
    return Fetchable(f"{reviews.FOLDER}/{name}", github(repository, commit, f"data/fdu-mtl/{name}"), licence)


SOURCES = (
    *(_fetchable(name, digest) for name, digest in DIGESTS.items()),
    *(_reviews(proxy.category, kind) for proxy in PROXIES.values() if proxy.category for kind in reviews.KINDS),
    *proxy_corpora.SOURCES,
)
