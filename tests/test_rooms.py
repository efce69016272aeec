"""The house: arrows run down, no circle, one meaning a name, no long file, and a map that is true.

The order of the rooms is declared in docs/architecture.md and nowhere else; docs/rooms.py reads it. The core knows
nothing of the benchmarks.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

import everlearn

DOCS = Path(__file__).resolve().parents[1] / "docs"
LONGEST = 600
HOPS = 8
SHARED = {"Config"}
"""Class names that several files may define: a method's options are `Config` inside the method's class."""


def _rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", DOCS / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rooms = _rooms()
PACKAGES = tuple(rooms.TABLES)
each_package = pytest.mark.parametrize("package", PACKAGES)


# Read when a test asks: every worker imports this file, and one of them runs its tests.
def house(package: str) -> Mapping[str, ast.Module]:
    """Return file → syntax tree of a package."""
    return rooms.parsed(package)


@functools.cache
def graph(package: str) -> dict[str, set[str]]:
    """Return file → the files of its package that it imports."""
    return rooms.imports(house(package), package)


def core() -> Mapping[str, ast.Module]:
    """Return file → syntax tree of the core."""
    return house(rooms.CORE)


@each_package
def test_no_circle_between_files(package: str) -> None:
    assert rooms.circles(graph(package)) == []


@each_package
def test_no_circle_between_folders(package: str) -> None:
    assert rooms.circles(rooms.folders(graph(package))) == []


@each_package
def test_every_file_is_in_a_room_and_every_room_is_there(package: str) -> None:
    declared = [room for floor in rooms.floors(package=package) for room in floor]
    assert len(declared) == len(set(declared))
    found = {file: rooms.room_of(file, declared) for file in house(package)}
    assert {file for file, room in found.items() if room is None} <= {"__init__.py", "__main__.py"}
    assert set(found.values()) - {None} == set(declared)


@each_package
def test_arrows_run_down(package: str) -> None:
    floors = rooms.floors(package=package)
    level = {room: number for number, floor in enumerate(floors) for room in floor}
    pairs = rooms.between_rooms(graph(package), floors)
    assert {pair: found for pair, found in pairs.items() if level[pair[0]] >= level[pair[1]]} == {}


@each_package
def test_nobody_imports_the_face_of_the_package(package: str) -> None:
    """`everlearn/__init__.py` hands on names of every room: who imports it stands above and below everything."""
    assert [file for file, others in graph(package).items() if "__init__.py" in others] == []


def test_the_core_does_not_name_the_benchmarks() -> None:
    """It finds them by entry points, as it finds any plugin."""
    folder = rooms.SOURCES / rooms.CORE
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert [file.relative_to(folder).as_posix() for file in files if b"everlearn_bench" in file.read_bytes()] == []


def test_imports_for_types_and_inside_functions_are_seen() -> None:
    """What holds the code must be able to fail."""
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from everlearn.b import B\n"
        "def f():\n    import everlearn.c\n    from everlearn import d\n"
    )
    trees = {"a.py": tree, "b.py": ast.parse("from everlearn.a import A"), "c.py": ast.parse(""), "d.py": ast.parse("")}
    trees["__init__.py"] = ast.parse("")
    seen = rooms.imports(trees)
    assert seen["a.py"] == {"b.py", "c.py", "d.py"}
    assert rooms.circles(seen) == [["a.py", "b.py"]]
    assert rooms.circles({"x": {"y"}, "y": {"z"}, "z": {"x"}, "w": {"x"}}) == [["x", "y", "z"]]
    assert rooms.needed([("a", "b"), ("b", "c"), ("a", "c")]) == [("a", "b"), ("b", "c")]
    page = "\n## Rooms\n| room | x |\n|---|---|\n| `a.py`, `b.py` | top |\n| `c/` | low |\n\n## Next\n| `d.py` | no |\n"
    assert rooms.floors(page) == [["a.py", "b.py"], ["c/"]]


def test_the_picture_is_of_this_house() -> None:
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), "run `python docs/rooms.py`"


def test_a_class_name_has_one_meaning() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file, tree in house(package).items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{package}/{file}")
    assert {name: files for name, files in found.items() if len(files) > 1 and name not in SHARED} == {}


@each_package
def test_no_file_is_long(package: str) -> None:
    source = rooms.SOURCES / package
    lines = {file: len((source / file).read_text("utf-8").splitlines()) for file in house(package)}
    assert {file: number for file, number in lines.items() if number > LONGEST} == {}


@each_package
def test_every_folder_says_what_it_is(package: str) -> None:
    trees = house(package)
    folders = {file for file in trees if file.endswith("/__init__.py")}
    assert {file.rpartition("/")[0] for file in trees if "/" in file} == {file.rpartition("/")[0] for file in folders}
    assert [file for file in folders if not ast.get_docstring(trees[file])] == []


def _walks() -> dict[str, list[tuple[str, str]]]:
    """Title → (file, name in it) of each hop, as docs/architecture.md tells them."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8").split("\n## Three walks\n", 1)[1].split("\n## ", 1)[0]
    parts = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    hop = re.compile(r"^\d+\. `([\w/.]+)` `([\w.]+)`", re.MULTILINE)
    return {part.splitlines()[0]: hop.findall(part) for part in parts}


def _names(tree: ast.AST, prefix: str = "") -> set[str]:
    """Functions, classes, methods and annotated or assigned attributes, as `Class.name`."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found |= _names(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_there_are_three_walks() -> None:
    assert list(_walks()) == ["A batch", "A score", "A key of the recipe"]


@pytest.mark.parametrize("title", ["A batch", "A score", "A key of the recipe"])
def test_a_walk_goes_through_the_house_as_told(title: str) -> None:
    """Every file and name exists, each step crosses an import, no file is entered twice, and there are few."""
    hops = _walks()[title]
    files = [file for file, _ in hops]
    assert 2 <= len(hops) <= HOPS
    assert len(files) == len(set(files)), "a walk does not come back"
    for file, name in hops:
        assert file in core(), file
        assert name in _names(core()[file]), f"{file} has no {name}"
    for one, other in itertools.pairwise(files):
        assert other in _known(one) or one in _known(other), f"{one} and {other} do not know each other"


def _known(file: str) -> set[str]:
    """What a file imports, by itself or through the face of a folder, which hands on names."""
    known = graph(rooms.CORE)
    faces = {other for other in known[file] if other.endswith("/__init__.py")}
    return known[file].union(*(known[face] for face in faces))


def test_nothing_decides_by_the_name_of_a_method() -> None:
    """Outside the methods' own files; the benchmarks have claims about methods, and the demo shows some."""
    own = {name for file, tree in core().items() if file.startswith("methods/") for name in _method_names(tree)}
    assert {"das", "hat_all", "inc_lora", "sequential"} <= own
    ordinary = {"replay", "wise_ft", "budget"}  # a block source, a way of merging, a limit of `repair`
    wired = [
        f"{file}:{node.lineno}: {node.value}"
        for file, tree in core().items()
        if not file.startswith("methods/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in own - ordinary
    ]
    assert [place for place in wired if not place.startswith("commands/recommendation.py")] == []
    assert len(wired) <= 1, "the recommendation names one"


def _method_names(tree: ast.Module) -> set[str]:
    """Names that classes and variants give themselves."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "name":
                    found.add(getattr(line.value, "value", ""))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Variant" and node.args:
            found.add(getattr(node.args[0], "value", ""))
    return found


# -- the public names of the package -----------------------------------------------------------------------------------


def test_names_are_the_lists_and_the_methods() -> None:
    from everlearn.methods import REGISTRY

    methods = [cls.__name__ for cls in REGISTRY.values() if cls.__module__.startswith("everlearn.")]
    assert everlearn.__all__ == sorted([*everlearn.PUBLIC, *methods, "__version__"])
    assert dir(everlearn) == everlearn.__all__
    assert len(everlearn.PUBLIC) == 21, "what is not a method is a short list"


@pytest.mark.parametrize("name", sorted(everlearn.__all__))
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(everlearn, name) is not None


def test_methods_go_by_their_class_names() -> None:
    from everlearn.methods import REGISTRY

    assert everlearn.EWC is REGISTRY["ewc"]
    assert everlearn.DomainEnsemble is REGISTRY["ensemble"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("Dsa", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(everlearn, name)


def test_import_is_light() -> None:
    code = (
        "import sys, everlearn; dir(everlearn); hasattr(everlearn, 'Dsa'); "
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
