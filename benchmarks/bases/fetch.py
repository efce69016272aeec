"""Get base models that the tree does not hold, from the history of this repository.

    python benchmarks/bases/fetch.py              # all of them
    python benchmarks/bases/fetch.py BASE ...     # these

`history.json` names the commit and the SHA-256 digest of each file. A file that is there with its digest is left alone;
one with another digest is replaced. It needs Git, a complete clone and nothing that is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HISTORY = HERE / "history.json"


def bases() -> dict[str, dict[str, str]]:
    """Return the files of every base that is fetched, with their digests."""
    digests: dict[str, dict[str, str]] = {}
    for name, digest in json.loads(HISTORY.read_text(encoding="utf-8"))["sha256"].items():
        base, _, file = name.partition("/")
        digests.setdefault(base, {})[file] = digest
    return digests


def content_of(base: str, file: str, digest: str) -> bytes:
    """Return a file as it was committed.

    Raises:
        SystemExit: Git is not there, the history has no such file, or its digest is another one.
    """
    commit = json.loads(HISTORY.read_text(encoding="utf-8"))["commit"]
    named = f"{commit}:benchmarks/bases/{base}/{file}"
    try:
        shown = subprocess.run(["git", "-C", str(HERE), "cat-file", "blob", named], capture_output=True)
    except FileNotFoundError:
        raise SystemExit(f"{base}/{file} is in the history of this repository, and Git is not installed.") from None
    if shown.returncode:
        why = shown.stderr.decode(errors="replace").strip().splitlines()
        raise SystemExit(
            f"{named} is not in the history that is here ({why[0] if why else 'no reason given'}). In a shallow clone "
            "run `git fetch --unshallow` first; without a clone take the base from the files of a release."
        )
    if (actual := hashlib.sha256(shown.stdout).hexdigest()) != digest:
        raise SystemExit(f"{named} has the SHA-256 digest {actual}, and history.json says {digest}.")
    return shown.stdout


def fetch(base: str, files: dict[str, str], destination: Path = HERE) -> list[str]:
    """Write the missing files of a base and return their names.

    Args:
        base: its folder's name.
        files: each with its digest.
        destination: where the folder is.
    """
    written = []
    for file, digest in files.items():
        place = destination / base / file
        if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == digest:
            continue
        content = content_of(base, file, digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".partial.{file}.{os.getpid()}")
        try:
            partial.write_bytes(content)
            os.replace(partial, place)
        finally:
            partial.unlink(missing_ok=True)
        written.append(file)
    return written


def main() -> None:
    """Read the command line and fetch."""
    known = bases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bases", nargs="*", metavar="BASE", help=", ".join(known))
    chosen = parser.parse_args().bases or list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"there is no {', '.join(unknown)} to fetch, only {', '.join(known)}")
    for base in chosen:
        written = fetch(base, known[base])
        print(f"{base}: {', '.join(written) if written else 'nothing to do'}")


if __name__ == "__main__":
    sys.exit(main())
