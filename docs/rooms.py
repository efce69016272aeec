"""The rooms of the house: who imports whom, held against the order that architecture.md declares, and a picture of it.

    python docs/rooms.py          # writes docs/rooms.svg

The tables of architecture.md are the one place where the order is declared, a table a package: a row a floor, from the
top. The picture is of the core.
`tests/test_rooms.py` checks the code against it. Read from the syntax trees alone: nothing is imported or run, and
imports that only types need, or that stand inside a function, count like any other.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
CORE = "everlearn"
TABLES = {CORE: "Rooms", "everlearn_bench": "Rooms of the benchmarks"}
"""Package → heading of its table."""
PAGE, PICTURE = HERE / "architecture.md", HERE / "rooms.svg"
Graph = dict[str, set[str]]


@functools.cache
def parsed(package: str = CORE) -> Mapping[str, ast.Module]:
    """Return the syntax tree of each file of the package, by its path below the package; read once."""
    source = SOURCES / package
    return {
        path.relative_to(source).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(source.rglob("*.py"))
    }


def imports(trees: Mapping[str, ast.Module] | None = None, package: str = CORE) -> Graph:
    """Return, for each file, the files of the package that it imports, anywhere in the file."""
    trees = parsed(package) if trees is None else trees
    graph: Graph = {}
    for file, tree in trees.items():
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # `from everlearn import files` names a file, `from everlearn.files import digest` a part of one.
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        graph[file] = {imported for name in names if (imported := _file(name, trees, package))} - {file}
    return graph


def _file(name: str, trees: Mapping[str, ast.Module], package: str) -> str | None:
    first, *parts = name.split(".")
    if first != package:
        return None
    for end in (len(parts), len(parts) - 1):
        path = "/".join(parts[: max(end, 0)])
        for file in (f"{path}.py", f"{path}/__init__.py".removeprefix("/")):
            if file in trees:
                return file
    return None


def floors(page: str | None = None, package: str = CORE) -> list[list[str]]:
    """Return the declared rooms from the top, row by row: folders (`run/`) and files (`learner.py`).

    Rooms of one row must not import each other.
    """
    text = PAGE.read_text(encoding="utf-8") if page is None else page
    table = text.split(f"\n## {TABLES[package]}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([^`]+)`", row) for row in rows]


def room_of(file: str, rooms: Iterable[str]) -> str | None:
    """Return the room with the longest path that contains a file."""
    fitting = [room for room in rooms if file == room or (room.endswith("/") and file.startswith(room))]
    return max(fitting, key=len, default=None)


def folders(graph: Graph) -> Graph:
    """Return the same arrows between folders.

    A file at the top is a node of its own; a nested folder is a part of its parent.
    """
    arrows: Graph = defaultdict(set)
    for file, others in graph.items():
        own = _folder(file)
        arrows[own] |= {other for other in map(_folder, others) if not f"{own}/".startswith(f"{other}/")}
        arrows[own] -= {other for other in arrows[own] if other.startswith(f"{own}/")}
    return dict(arrows)


def _folder(file: str) -> str:
    return file.rpartition("/")[0] or file


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that import each other in a cycle, each sorted."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {tuple(sorted(a for a in reached[node] if node in reached.get(a, ()))) for node in graph}
    return [list(group) for group in sorted(groups) if group]


def _reached(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def between_rooms(graph: Graph, order: list[list[str]]) -> dict[tuple[str, str], list[str]]:
    """Return the imports that leave a room, as "file → file", by pairs of room and imported room.

    The `__init__.py` of the package re-exports names and is left out.
    """
    rooms = [room for floor in order for room in floor]
    crossing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file, others in sorted(graph.items()):
        for other in sorted(others):
            pair = room_of(file, rooms), room_of(other, rooms)
            if file != "__init__.py" and None not in pair and pair[0] != pair[1]:
                crossing[pair[0] or "", pair[1] or ""].append(f"{file} → {other}")
    return dict(crossing)


# -- the picture ----------------------------------------------------------------------------------------------

WIDTH, HEIGHT, GAP, LEFT, LANE, HEAD = 620, 46, 12, 10, 11, 28
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .name { font-weight: 600 } .what { fill: #59636e; font-size: 11px }
  rect { fill: #f6f8fa; stroke: #d1d9e0 } path { fill: none; stroke: #8c959f; stroke-width: 1.2 } .tip { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .what { fill: #9198a1 } rect { fill: #151b23; stroke: #3d444d }
    path { stroke: #656c76 } .tip { fill: #656c76 }
  }
"""


def needed(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the arrows that are not implied by others: A → C is left out if A → B and B → C exist."""
    graph: Graph = defaultdict(set)
    for a, b in pairs:
        graph[a].add(b)
    return sorted((a, b) for a in graph for b in graph[a] if all(b not in _reached(graph, c) for c in graph[a] - {b}))


def picture() -> str:
    """Return an SVG with one row per floor, and on the right the arrows that are not implied by others."""
    trees, order = parsed(CORE), floors()
    arrows = needed(between_rooms(imports(trees), order))
    level = {room: number for number, floor in enumerate(order) for room in floor}
    parts, ends = [], {}
    for number, floor in enumerate(order):
        top, width = HEAD + number * (HEIGHT + GAP), (WIDTH - GAP * (len(floor) - 1)) / len(floor)
        for place, room in enumerate(floor):
            left = LEFT + place * (width + GAP)
            parts.append(f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{HEIGHT}" rx="5"/>')
            parts.append(f'<text class="name" x="{left + 10:g}" y="{top + 19}">{escape(room)}</text>')
            summary = textwrap.shorten(_sentence(trees, room), int(width / 6.2), placeholder=" …")
            parts.append(f'<text class="what" x="{left + 10:g}" y="{top + 36}">{escape(summary)}</text>')
        ends[number] = top
    labels: dict[tuple[int, int], list[str]] = defaultdict(list)
    for a, b in arrows:
        labels[level[a], level[b]].append(f"{a} → {b}")
    lanes: list[list[tuple[int, int]]] = []
    wide = LEFT + WIDTH
    for span in sorted(labels, key=lambda span: (span[1] - span[0], span[0])):
        lane = next((i for i, taken in enumerate(lanes) if all(_apart(span, each) for each in taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(span)
        start, stop, right = ends[span[0]] + HEIGHT - 12, ends[span[1]] + 12, wide + 12 + LANE * (lane + 1)
        parts.append(
            f'<path d="M{wide} {start} H{right - 6} Q{right} {start} {right} {start + 6} V{stop - 6} '
            f'Q{right} {stop} {right - 6} {stop} H{wide + 6}"><title>{escape(", ".join(labels[span]))}</title></path>'
            f'<path class="tip" d="M{wide + 1} {stop} l7 -3.5 v7 z"/>'
        )
    height, full = HEAD + len(order) * (HEIGHT + GAP), wide + 24 + LANE * (len(lanes) + 1)
    head = f'<text class="what" x="{LEFT}" y="17">A room imports only from rooms below it.</text>'
    body = "\n".join([head, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full} {height}" width="{full}" height="{height}" '
        f'role="img" aria-label="The rooms of everlearn, each above all that it imports">\n<style>{STYLE}</style>\n'
        f"{body}\n</svg>\n"
    )


def _apart(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[1] <= b[0] or b[1] <= a[0]


def _sentence(trees: Mapping[str, ast.Module], room: str) -> str:
    """Return the first sentence of a room's docstring; for a folder that of its `__init__.py`."""
    docstring = ast.get_docstring(trees[f"{room}__init__.py" if room.endswith("/") else room]) or ""
    return re.split(r"(?<=[.!?])\s", " ".join(docstring.replace("``", "").split()))[0].rstrip(".")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"Wrote {PICTURE}")
