"""Everything that the package imports is declared, and what a system or an environment may lack is optional."""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import prepared
import tiny
from installed import PROJECT, canonical

SOURCE = Path(__file__).parents[2] / "src" / "everlearn"
DECLARED = {canonical(Requirement(text).name) for text in PROJECT["dependencies"]}
NOT_FOR_USERS = {"dev", "docs"}
OPTIONAL = {
    canonical(Requirement(text).name)
    for extra, texts in PROJECT["optional-dependencies"].items()
    if extra not in NOT_FOR_USERS
    for text in texts
}
INSIDE = "everlearn_bench/code_tasks/sandbox/inside.py"
"""Runs as a script of its own, on Linux only; nothing imports it."""
POSIX_MODULES = {
    *("crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"),
}
POSIX_NAMES = {
    "os": {
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "O_LARGEFILE", "O_SYNC", "chown", "fchmod"),
        *("fork", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "nice"),
        *("pread", "pwrite", "sched_getaffinity", "sched_setaffinity", "setpgid", "setsid", "statvfs", "sysconf"),
        *("uname", "wait", "waitid", "sched_yield", "posix_fadvise", "sendfile", "setpriority", "getpriority"),
    },
    "signal": {
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP", "SIGUSR1"),
        *("SIGUSR2", "SIGXCPU", "alarm", "pause", "pthread_kill", "setitimer", "sigwait"),
    },
    "time": {"tzset", "pthread_getcpuclockid"},
    "socket": {"AF_UNIX"},
}
"""Names that the modules of the standard library lack on Windows."""
GUARDED = {
    "run/environment.py": {"sysconf"},
    "run/folder.py": {"O_CLOEXEC", "O_NOFOLLOW"},
    "everlearn_bench/code_tasks/sandbox/calls.py": None,
    "everlearn_bench/code_tasks/sandbox/running.py": None,
}
"""Files in which such a name is reached only where it exists; None: any, since the sandbox asks for Linux first."""


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Return file → syntax tree; read when a test asks, since every worker imports this file."""
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}


def imports(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Yield each imported module's top-level name, its line, and whether it may be missing when the file is imported.

    It may inside a function, under `TYPE_CHECKING`, and in a `try` that expects an ImportError.
    """
    for node in ast.iter_child_nodes(tree):
        inner = guarded or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inner = True
        if isinstance(node, ast.Try):
            inner = inner or any(
                "ImportError" in ast.unparse(each.type) or "ModuleNotFoundError" in ast.unparse(each.type)
                for each in node.handlers
                if each.type
            )
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno, guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], node.lineno, guarded
        yield from imports(node, inner)


def test_imports_are_seen() -> None:
    """The test below must be able to fail."""
    text = (
        "import a.b\nif TYPE_CHECKING:\n    import c\ntry:\n    import d\nexcept ImportError:\n    d = None\n"
        "def f():\n    from e.g import h\nclass C:\n    import i\ntry:\n    import j\nexcept ValueError:\n    pass\n"
    )
    seen = {name: guarded for name, _, guarded in imports(ast.parse(text))}
    assert seen == {"a": False, "c": True, "d": True, "e": True, "i": False, "j": False}


def test_everything_that_is_imported_is_declared() -> None:
    """By the package's own dependencies; by an extra for users only where the import may fail."""
    distributions = packages_distributions()
    undeclared, absent = defaultdict(set), defaultdict(set)
    for file, tree in trees().items():
        for name, line, guarded in imports(tree):
            if name in sys.stdlib_module_names or name == "everlearn":
                continue
            owners = {canonical(each) for each in distributions.get(name, [name])}
            if not owners & (DECLARED | OPTIONAL):
                undeclared[name].add(f"{file}:{line}")
            elif not owners & DECLARED and not guarded:
                absent[name].add(f"{file}:{line}")
    assert dict(undeclared) == {}, "declare it in pyproject.toml"
    assert dict(absent) == {}, "only an extra brings it: import it inside a function"


def test_what_is_declared_is_needed() -> None:
    """No dependency is left over; attrs is PEFT's need, which PEFT does not declare."""
    distributions = packages_distributions()
    names = {name for tree in trees().values() for name, *_ in imports(tree)}
    needed = {canonical(owner) for name in names for owner in distributions.get(name, [])}
    assert DECLARED - needed == {"attrs"}


def test_what_only_some_systems_have_is_guarded() -> None:
    """Neither a POSIX module nor a POSIX function is needed where a file is imported, or used without asking first."""
    modules = [
        f"{file}:{line}: {name}"
        for file, tree in trees().items()
        for name, line, guarded in imports(tree)
        if name in POSIX_MODULES and not guarded and file != INSIDE
    ]
    assert modules == []
    used = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file, tree in trees().items()
        if file != INSIDE
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.attr in POSIX_NAMES.get(node.value.id, ())
        if file not in GUARDED or (GUARDED[file] is not None and node.attr not in (GUARDED[file] or ()))
    ]
    assert used == []


WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys

import datasets, peft, torch, transformers  # they know their own ways around; what follows must not need any
import transformers.trainer, torch.utils.data

posix = {modules!r}
for name in posix:
    sys.modules.pop(name, None)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in posix:
            raise ModuleNotFoundError("no module named " + name, name=name)

sys.meta_path.insert(0, Missing())
for module, names in ((os, {os_names!r}), (signal, {signal_names!r})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

import everlearn

for module in pkgutil.walk_packages(everlearn.__path__, "everlearn."):
    if not module.name.endswith(("__main__", "sandbox.inside", "sandbox.calls")):
        importlib.import_module(module.name)
for name in everlearn.__all__:
    getattr(everlearn, name)

from everlearn.cli import main

assert main(["env"]) == 0
assert main(["run", "small.yaml", "--quiet"]) == 0
assert not posix & set(sys.modules), posix & set(sys.modules)
"""


@pytest.mark.slow
def test_the_package_works_where_posix_is_not(models: Path, tmp_path: Path) -> None:
    """As on Windows: everything can be imported, and a run goes to its end, without modules that only POSIX has."""
    (tmp_path / "a.txt").write_text("\n\n".join(tiny.texts(40)))
    (tmp_path / "small.yaml").write_text(
        f"model: {models / 'llama'}\ndomains: [{{name: a, path: a.txt, validation: 0.3}}]\n"
        "data: {block_size: 16, cache: cache}\nevaluation: {blocks: 2}\nrun: {name: small}\n"
        "train: {max_steps: 1, per_device_train_batch_size: 2, use_cpu: true}\n"
    )
    # What the standard library itself reaches for at run time stays: it asks for the platform, not for the name.
    own = {name for names in GUARDED.values() for name in names or ()} | {"killpg", "sched_getaffinity", "nice", "fork"}
    script = WITHOUT_POSIX.format(
        modules=POSIX_MODULES - {"posix", "pwd", "grp"},
        os_names=sorted(own - {"O_CLOEXEC", "O_NOFOLLOW"}),
        signal_names=sorted({"SIGKILL", "SIGXCPU", "SIGALRM"}),
    )
    done = prepared.run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "small" / "results.json").is_file()
