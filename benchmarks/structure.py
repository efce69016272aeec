"""Count the source at commits, for docs/results/structure.md.

python benchmarks/structure.py COMMIT [COMMIT …]

Prints a table: files and lines of each import package, the median and the longest file, and all tracked files.
"""

from __future__ import annotations

import statistics
import subprocess
import sys


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


def lines_of(commit: str, package: str) -> dict[str, int]:
    """Return the number of lines of each Python file of a package."""
    names = git("ls-tree", "-r", "--name-only", commit, f"src/{package}/").splitlines()
    return {name: git("show", f"{commit}:{name}").count("\n") for name in names if name.endswith(".py")}


def main() -> None:
    print("| Commit | Package | Files | Lines | Median file | Longest file | Tracked files in all |")
    print("|---|---|---:|---:|---:|---|---:|")
    for commit in sys.argv[1:]:
        short, tracked = git("rev-parse", "--short", commit).strip(), len(git("ls-tree", "-r", commit).splitlines())
        for package in ("everlearn", "everlearn_bench"):
            lines = lines_of(commit, package)
            if not lines:
                continue
            longest = max(lines, key=lambda name: lines[name])
            place = longest.removeprefix(f"src/{package}/")
            print(
                f"| {short} | `{package}` | {len(lines)} | {sum(lines.values()):,} | "
                f"{statistics.median(lines.values()):.0f} | `{place}`, {lines[longest]} | {tracked:,} |"
            )


if __name__ == "__main__":
    main()
