"""The documentation site: built from the pages without a warning, complete, and readable without a network."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from sphinx.cmd.build import build_main
from sphinx.util.inventory import InventoryFile

import everlearn
import everlearn.evaluation
import everlearn.methods.base
import everlearn.methods.cost
import everlearn.report
from everlearn.cli import COMMANDS
from everlearn.grid.archive import find_cells

# Sphinx's own extension and MyST use what Sphinx 11 will not have: about 1,400 times, and no page can help it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning:sphinx"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning:myst_parser"),
]
DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import site_pages  # noqa: E402


class Page(HTMLParser):
    """What a page of the site loads, links to, and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag in ("script", "img", "iframe", "source", "video") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given["href"] != "#" and given.get("rel") not in ("canonical", "author", "license"):
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    arguments = ["--quiet", "--fresh-env", "--fail-on-warning", "--keep-going", "-d", str(folder / "doctrees")]
    code = build_main([*arguments, "-w", str(folder / "warnings.txt"), str(DOCS), str(folder / "html")])
    warned = (folder / "warnings.txt").read_text(encoding="utf-8")
    assert code == 0, warned
    assert warned == ""
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path.resolve()) for path in sorted(site.rglob("*.html"))}


def test_the_page_of_mistakes_is_the_table_that_was_made(tmp_path: Path) -> None:
    app, source = SimpleNamespace(srcdir=tmp_path / "docs"), ["# A page without a table"]
    site_pages._complete(app, "mistakes", source)
    assert source == ["# A page without a table"], "it has not been made"
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "mistakes.md").write_text("| the user … |")
    site_pages._complete(app, "mistakes", source)
    assert source == ["| the user … |"]


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    start = pages[(site / "index.html").resolve()]
    reached = {(site / link.partition("#")[0]).resolve() for link in start.links if "://" not in link}
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).resolve() in reached | {start.path}, page


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Page]) -> None:
    for page in pages.values():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            place, _, anchor = link.partition("#")
            target = (page.path.parent / unquote(place)).resolve() if place else page.path
            assert target.exists(), (page.path.name, link)
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].anchors, (page.path.name, link)


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        assert page.loads
        for address in page.loads:
            assert not re.match(r"([a-z]+:)?//", address), (page.path.name, address)
            if not address.startswith("data:"):
                assert (page.path.parent / address.partition("?")[0]).resolve().is_file(), (page.path.name, address)
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    objects = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    known = {name for kind, names in objects.items() if kind.startswith("py:") for name in names}
    base = everlearn.methods.base
    own = {base.__name__, everlearn.methods.cost.__name__}
    interface = [
        name
        for name, thing in vars(base).items()
        if inspect.isclass(thing) or inspect.isfunction(thing)
        if not name.startswith("_") and thing.__module__ in own
    ]
    assert {"Method", "Cost", "build"} <= set(interface)
    for module, names in (
        (everlearn, [name for name in everlearn.__all__ if name != "__version__"]),
        (base, interface),
        (everlearn.evaluation, everlearn.evaluation.__all__),
        (everlearn.report, everlearn.report.__all__),
    ):
        for name in names:
            thing = getattr(module, name)
            if isinstance(thing, dict):  # a registry, which does not know where it stands
                found = any(each.endswith(f".{name}") for each in known)
            else:
                home = f"{thing.__module__}.{thing.__qualname__}"
                found = bool({f"{module.__name__}.{name}", f"everlearn.{name}", home} & known)
            assert found, f"docs/reference lacks {module.__name__}.{name}"


def test_the_site_says_what_the_commands_and_methods_say(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for verb in (*COMMANDS, "bench", "demo"):
        assert f'id="everlearn-{verb}"' in commands
    methods = (site / "reference" / "methods.html").read_text(encoding="utf-8")
    for name in everlearn.methods.base.REGISTRY:
        assert f"method: {name}<" in re.sub(r"</?span[^>]*>", "", methods).replace("</code>", "<")
    assert "strength" in methods
    assert "das_without_contrast" in methods


def test_the_search_index_knows_words_of_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")  # a script, not a fetch: it also works from a file
    for page in ("quickstart", "methods", "reference/commands"):
        assert f'"{page}"' in index


# -- the page of systems: as its script writes it, with commands that parse and files that are there -------------------

ROOT = Path(__file__).parents[2]


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import systems

    return systems


def test_the_page_is_what_the_script_writes(systems) -> None:
    assert systems.PAGE.read_text(encoding="utf-8") == systems.page(), "python docs/systems.py"


def test_every_method_and_variant_is_a_row_once(systems) -> None:
    rows = systems.methods()
    names = {name for cls in systems.REGISTRY.values() for name in (cls.name, *(each.name for each in cls.variants))}
    assert {row.command.rpartition("=")[2] for row in rows} == names
    assert len(rows) == len(names)
    assert len(re.findall(r"^\| .* \|$", systems.page(), re.MULTILINE)) - 4 >= 85


def test_tests_and_results_are_there_and_name_the_system(systems) -> None:
    for row in (*systems.methods(), *systems.BENCHMARKS, *systems.STUDIES, *systems.analyses()):
        text = (ROOT / row.test).read_text(encoding="utf-8")
        for page in row.results:
            assert (systems.RESULTS / page).is_file(), row
        if "method=" in row.command:
            name = row.command.rpartition("=")[2]
            base = next(cls for cls in systems.REGISTRY.values() if name in {cls.name, *(v.name for v in cls.variants)})
            assert re.search(rf"\b({name}|{base.name}|{base.__name__})\b", text), f"{name} is not in {row.test}"
        assert row.results or row.remark or systems.MISSING in row.row()


def grids(folder: str) -> list[dict]:
    return [cell.value["grid"] for cell in find_cells(ROOT / "benchmarks" / folder).values()]


def test_a_method_that_has_one_seed_alone_says_so(systems) -> None:
    seeds = Counter(grid["row"] for grid in grids("six-domains/results"))
    for row in systems.methods():
        name = row.command.rpartition("=")[2]
        alone = seeds[name] == 1 and row.results == ["six-domains.md"]
        assert (row.remark == "one seed") == alone, name


def test_orders_that_were_not_run_are_named(systems) -> None:
    ran = {
        int(grid["order"])
        for part in ("orders", "orders-long")
        for grid in grids(f"continual-tasks/decoder-results/{part}")
    }
    asked = {}
    for row in systems.BENCHMARKS:
        if row.results == ["standard-cl-decoder.md"]:
            asked |= {int(order): row for order in row.command.partition("--orders ")[2].split(",")}
    assert asked.keys() == {2, 3, 4, 5, 6}
    for order, row in asked.items():
        assert (f"order {order} was not run" in row.remark) == (order not in ran)
