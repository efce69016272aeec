"""Find and load plugins of other packages: methods, kinds of tasks, metrics, figures, suites and more.

A package declares its plugins in its metadata: ``decay = "everlearn_decay"`` among the entry points
``everlearn.methods``. Importing that module registers the name, with the decorator that everlearn's own files use.
Nothing is imported before it is needed: a :class:`Registry` that lacks a name asks for the entry point of that name,
and one that is listed asks for all of its group. ``--import`` and a recipe's `plugins` name modules that declare no
entry point.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from everlearn.errors import PluginError, first_line

GROUPS = {
    "methods": "method",
    "tasks": "kind of end task",
    "metrics": "metric",
    "quantities": "quantity",
    "figures": "figure",
    "sections": "section of the report",
    "grid_parts": "part of a grid's page",
    "analyses": "analysis",
    "architectures": "architecture",
    "suites": "suite",
    "verbs": "command",
}
"""Group of entry points, less ``everlearn.`` → what one of its names is."""
NEEDED = ("methods", "tasks", "architectures", "suites")
"""Groups without which a run cannot go on."""
OWN = "everlearn"
"""The distribution of this package, whose own entry points are not treated as plugins."""
STALE = (
    "The metadata of this installation is older than its code, so suites and some commands are missing. Install "
    "everlearn again, in a checkout with `pip install --editable .`."
)
T = TypeVar("T")


@dataclass
class Brought:
    """A module that was imported, and where it is from.

    Attributes:
        module: its name.
        package: the distribution that has it, or "".
        version: version of the distribution.
        file: name of the file, if the module was given as a file; else "".
        sha256: checksum of that file.
        named: it was named by `--import` or by the recipe.
        names: group → names whose entry points led to this module.
    """

    module: str
    package: str = ""
    version: str = ""
    file: str = ""
    sha256: str = ""
    named: bool = False
    names: dict[str, list[str]] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the non-empty records."""
        return {key: value for key, value in vars(self).items() if key != "module" and value}


_BROUGHT: dict[str, Brought] = {}
_FAILED: dict[tuple[str, str], PluginError] = {}
_STRANGERS_HIDDEN: list[bool] = []
_REGISTRIES: dict[str, list[Registry[Any]]] = {}


class Registry(dict[str, T]):
    """A registry of objects by name. A lookup of an unknown name, or a list of all, loads the installed plugins.

    Args:
        group: a key of :data:`GROUPS`.
    """

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.registered_by: dict[str, str] = {}
        _REGISTRIES.setdefault(group, []).append(self)

    def add(self, name: str, thing: T, replace: bool = False) -> None:
        """Register a thing; a module that is run again may replace its own.

        Raises:
            PluginError: the name is taken by another module, and `replace` is not set.
        """
        module = _running_module()
        if not replace and self.has(name) and self.registered_by.get(name, module) != module:
            raise PluginError(
                f"{_owner(module)} and {_owner(self.registered_by[name])} both bring the {GROUPS[self.group]} '{name}'."
                " Rename or uninstall one of them."
            )
        self.registered_by[name] = module
        self[name] = thing

    def has(self, name: object) -> bool:
        """Return whether a name is registered already; imports nothing."""
        return super().__contains__(name)

    def __missing__(self, name: str) -> T:
        if find(self.group, name) and self.has(name):
            return super().__getitem__(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return self.has(name) or (isinstance(name, str) and find(self.group, name) and self.has(name))

    def __iter__(self) -> Iterator[str]:
        load(self.group)
        return super().__iter__()

    def __len__(self) -> int:
        load(self.group)
        return super().__len__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Return every name, including those of plugins."""
        load(self.group)
        return super().keys()

    def values(self) -> ValuesView[T]:  # type: ignore[override]
        """Return everything, including plugins."""
        load(self.group)
        return super().values()

    def items(self) -> ItemsView[str, T]:  # type: ignore[override]
        """Return every name with its object, including those of plugins."""
        load(self.group)
        return super().items()


# -- entry points -------------------------------------------------------------------------------------------------


def names(group: str) -> list[str]:
    """Return the names that installed packages declare in a group; imports nothing."""
    return sorted(_entries(group))


def registered(group: str) -> list[str]:
    """Return the names of a group that are registered already; imports nothing."""
    return sorted(name for each in _REGISTRIES.get(group, ()) for name in dict.keys(each))


def module_of(group: str, name: str) -> str:
    """Return the module of a name's entry point, or ""; imports nothing."""
    entries = _entries(group).get(name)
    return entries[0].module if entries else ""


def may_bring(*groups: str) -> bool:
    """Return whether these groups may contain plugins of other packages; imports nothing."""
    return any(each.named for each in _BROUGHT.values()) or any(map(_of_strangers, groups))


def _of_strangers(group: str) -> bool:
    return any(_distribution(entry)[0] != OWN for entries in _entries(group).values() for entry in entries)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Inside the context only everlearn's own entry points are visible."""
    _STRANGERS_HIDDEN.append(True)
    try:
        yield
    finally:
        _STRANGERS_HIDDEN.pop()


def is_stale() -> bool:
    """Return whether everlearn's metadata is older than its code, and lacks its own entry points."""
    with hidden():
        return not any(map(_entries, GROUPS))


def find(group: str, name: str) -> bool:
    """Import the entry point of this name, unless the name is known; return False where no package has one.

    Raises:
        PluginError: it cannot be imported, does not register the name, or two packages bring it.
    """
    if name not in _entries(group):
        return False
    if _registry_with(group, name) is not None:
        return True
    if (group, name) in _FAILED:
        raise _FAILED[group, name]
    try:
        _import_entry(group, name)
    except PluginError as error:
        _FAILED[group, name] = error
        raise
    return True


def load(group: str) -> list[PluginError]:
    """Import every entry point of a group once; return the errors instead of raising them."""
    for name, entries in _entries(group).items():
        try:
            known = _registry_with(group, name)
            package, version = _distribution(entries[0])
            ours = known is not None and known.registered_by.get(name, "").partition(".")[0] == "everlearn"
            if ours and package != OWN:
                _FAILED[group, name] = PluginError(
                    f"Package {package} {version} brings the {GROUPS[group]} '{name}', which everlearn has too. "
                    "Uninstall the package."
                )
            find(group, name)
        except PluginError:
            continue
    return [error for (of, _), error in _FAILED.items() if of == group]


def failures() -> list[PluginError]:
    """Return the errors of all plugins that were requested and failed to load."""
    return list(_FAILED.values())


def place_of(command: str) -> tuple[str, str]:
    """Return the module and the function of a command's entry point; imports nothing."""
    entry = _entries("verbs")[command][0]
    return entry.module, entry.attr


def command_of(command: str) -> Any:
    """Return the function behind the entry point of a command.

    Raises:
        PluginError: it cannot be imported, or two packages bring the command.
    """
    find("verbs", command)
    (entry,) = _entries("verbs")[command]
    return entry.load()


def _import_entry(group: str, name: str) -> None:
    entry, *others = _entries(group)[name]
    package, version = _distribution(entry)
    what = f"the {GROUPS[group]} '{name}'"
    if others:
        packages = " and ".join(sorted({package, *(_distribution(other)[0] for other in others)}))
        raise PluginError(f"{packages} both bring {what}. Uninstall one of them.")
    brought = _BROUGHT.get(entry.module) or Brought(entry.module, package, version)
    if name in brought.names.get(group, ()):
        return
    try:
        entry.load() if group == "verbs" else importlib.import_module(entry.module)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"Package {package} {version} brings {what}, but importing `{entry.value}` failed: {_reason(error)}"
        ) from error
    if group != "verbs" and _registry_with(group, name) is None:
        raise PluginError(
            f"Package {package} {version} brings {what}, but `{entry.module}` registers no {GROUPS[group]} '{name}'."
        )
    _BROUGHT[entry.module] = brought
    brought.names.setdefault(group, []).append(name)


def _registry_with(group: str, name: str) -> Registry[Any] | None:
    """Return the registry of a group that has a name already."""
    return next((each for each in _REGISTRIES.get(group, ()) if each.has(name)), None)


def _entries(group: str) -> Mapping[str, list[metadata.EntryPoint]]:
    by_name = _installed(tuple(sys.path)).get(group, {})
    if not _STRANGERS_HIDDEN:
        return by_name
    own = {name: [each for each in entries if _distribution(each)[0] == OWN] for name, entries in by_name.items()}
    return {name: entries for name, entries in own.items() if entries}


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> dict[str, dict[str, list[metadata.EntryPoint]]]:
    """Return the entry points of the packages on a search path, by group and name."""
    groups: dict[str, dict[str, list[metadata.EntryPoint]]] = {}
    seen = set()
    for distribution in metadata.distributions(path=list(path)):
        # Reading the name of every package would take longer than all else.
        if "[everlearn." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        name = str(distribution.name).lower()
        if name in seen:  # as in Python's own search, the first of a name hides the others
            continue
        seen.add(name)
        for entry in distribution.entry_points:
            package, _, group = entry.group.partition(".")
            if package == "everlearn" and group in GROUPS:
                groups.setdefault(group, {}).setdefault(entry.name, []).append(entry)
    return groups


def _distribution(entry: metadata.EntryPoint) -> tuple[str, str]:
    return ("", "") if entry.dist is None else _name_and_version(entry.dist)


@lru_cache(maxsize=64)  # of distributions as `_installed` found them: each reading parses a file
def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    return str(distribution.name), str(distribution.version)


# -- named by the user --------------------------------------------------------------------------------------------


def bring(words: Iterable[str], key: str, files: bool = False) -> None:
    """Import the modules that a user named.

    Args:
        words: names of modules; with `files` also paths of Python files.
        key: the option or recipe key in which the user named them, for errors.
        files: whether a word may name a Python file, or a module in the working folder. This is allowed on the command
            line but not in a recipe, which may come from someone else and must not run code that its user did not
            install.

    Raises:
        PluginError: there is no such module or file, or importing it fails.
    """
    for word in words:
        is_file = word.endswith(".py") or "/" in word or "\\" in word
        if is_file and not files:
            raise PluginError(f"`{key}` names the file '{word}', but may name installed modules only: give `--import`.")
        if is_file:
            _bring_file(Path(word).expanduser(), key)
        else:
            _bring_module(word, key, files)


def _bring_module(name: str, key: str, anywhere: bool) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(f"`{key}` is '{name}', but must name a module, such as my_package.my_method.")
    top = name.partition(".")[0]
    if not anywhere and (top in sys.stdlib_module_names or name.endswith("__main__")):
        raise PluginError(f"`{key}` names '{name}', which is no plugin.")
    if not _is_importable(top, anywhere):
        raise PluginError(f"`{key}` names the module '{name}', but '{top}' is not installed.")
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise PluginError(f"`{key}` names the module '{name}', but importing it failed: {_reason(error)}") from error
    package = next(iter(metadata.packages_distributions().get(top, ())), "")
    version = metadata.version(package) if package else ""
    _BROUGHT.setdefault(name, Brought(name, package, version)).named = True


def _is_importable(top: str, anywhere: bool) -> bool:
    """Return whether a module can be found; the working folder, which Python may look into first, does not count."""
    path = list(sys.path)
    try:
        if not anywhere and path and path[0] in ("", str(Path.cwd())):
            del sys.path[0]
        importlib.invalidate_caches()
        return top in sys.modules or importlib.util.find_spec(top) is not None
    finally:
        sys.path[:] = path


def _bring_file(path: Path, key: str) -> None:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PluginError(f"`{key}` names the file '{path}', which cannot be read: {error.strerror}.") from None
    if any(each.sha256 == digest for each in _BROUGHT.values()):
        return
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"everlearn_file_{digest[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"`{key}` names the file '{path}', but must name a Python file (.py) or a module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(f"`{key}` names the file '{path}', but importing it failed: {_reason(error)}") from error
    _BROUGHT[name] = Brought(name, file=path.name, sha256=digest, named=True)


# -- the record of a run ------------------------------------------------------------------------------------------


def record() -> dict[str, dict[str, Any]]:
    """Return the imported plugins for ``environment.json``: by module, package and version or file and digest.

    Modules of everlearn itself are omitted: ``environment.json`` lists its version separately.
    """
    return {module: each.facts() for module, each in sorted(_BROUGHT.items()) if each.package != OWN or each.named}


def imports(recorded: Any) -> list[str]:
    """Return the modules and files of a :func:`record` that were named by the user, as `--import` takes them."""
    return [str(facts.get("file") or module) for module, facts in _facts(recorded) if facts.get("named")]


def _facts(recorded: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the modules of a record, which may be from a foreign file, with what is known of each."""
    known = recorded.items() if isinstance(recorded, Mapping) else ()
    return [(str(module), facts) for module, facts in known if isinstance(facts, Mapping)]


def check_record(recorded: Any, run: Path) -> None:
    """Refuse to continue or repeat a run without the plugins that it was started with.

    Args:
        recorded: the result of :func:`record` at the start of the run; anything else is ignored.
        run: the run's folder, for the error.

    Raises:
        PluginError: a plugin is missing; the sentence says how to give it.
    """
    for module, facts in _facts(recorded):
        if file := facts.get("file"):
            if not any(each.file == file or each.sha256 == facts.get("sha256") for each in _BROUGHT.values()):
                raise PluginError(f"{run} was made with the file {file}: give `--import {file}`.")
            continue
        owner = f"{facts['package']} {facts.get('version', '')}".strip() if facts.get("package") else module
        used = facts.get("names")
        needed = [(g, n) for g, own in used.items() if g in NEEDED for n in own] if isinstance(used, Mapping) else []
        for group, name in needed:
            if name not in _entries(group) and _registry_with(group, name) is None:
                raise PluginError(
                    f"{run} was made with the {GROUPS[group]} '{name}' of {owner}: install it, or give "
                    f"`--import {module}`."
                )
        if facts.get("named") and module not in _BROUGHT:
            raise PluginError(f"{run} was made with the module {module} of {owner}: give `--import {module}`.")


def _running_module() -> str:
    """Return the name of the module whose body is being run: the one that registers something."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _owner(module: str) -> str:
    """Return the user-facing name of a module: its package or file."""
    brought = _BROUGHT.get(module, Brought(module))
    return brought.package or brought.file or module.partition(".")[0]


def distribution_of(module: str) -> str:
    """Return the distribution that a module is installed with, or its top-level package if it is not installed."""
    top = module.partition(".")[0]
    return next(iter(metadata.packages_distributions().get(top, ())), top)


def _reason(error: BaseException) -> str:
    sentence = first_line(error)
    kind = "" if isinstance(error, PluginError | TypeError) else f"{type(error).__name__}: "
    return f"{kind}{sentence}" + ("" if sentence.endswith((".", "!", "?")) else ".")
