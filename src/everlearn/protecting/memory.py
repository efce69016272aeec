"""The folder in which protected trainings leave what their methods must know in the next domain."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from everlearn import files
from everlearn.errors import MethodError, RunError
from everlearn.methods.base import Method
from everlearn.run.trainer import load_memories, save_memories
from everlearn.version import __version__

FACTS = "stage.json"


class MemoryFolder:
    """``<memory>/stage-<number>-<domain>/``: a stage's memory, as a run folder has it, sealed. The last one counts.

    Args:
        path: the folder; it need not exist.

    Raises:
        RunError: the last memory is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = sorted((p for p in path.glob("stage-*-*") if (p / files.SEAL).is_file()), key=lambda p: _number(p))
        self._last = found[-1] if found else None
        if self._last is not None and (wrong := files.damage(self._last)):
            raise RunError(f"{wrong}. Restore it, or delete {self._last} to go on from the memory before it.")
        self.domains: list[str] = [] if self._last is None else files.read_json(self._last / FACTS)["domains"]
        """Learnt so far, in order."""

    def load(self, methods: Sequence[Method]) -> None:
        """Give each method what it remembers.

        Raises:
            MethodError: a method that remembers something is not in the list, and would forget it.
        """
        if self._last is None:
            return
        known = {method.name for method in methods}
        lost = sorted({p.stem for p in self._last.glob("*.json")} - known - {Path(FACTS).stem, Path(files.SEAL).stem})
        if lost:
            raise MethodError(
                f"{self.path} holds the memory of method '{lost[0]}', which is not in the list and would forget what "
                f"it knows of {', '.join(self.domains)}. Add it, or give another folder (`memory`)."
            )
        load_memories(self._last, methods)

    def save(self, methods: Sequence[Method], domain: str) -> None:
        """Keep the methods' memory after a domain; the memory before it goes when this one is whole."""
        domains, before = [*self.domains, domain], self._last
        place = self.path / f"stage-{len(domains):02d}-{domain}"
        with files.new_folder(place) as folder:
            save_memories(folder, methods)
            files.write_json(folder / FACTS, {"domains": domains, "everlearn": __version__})
        self.domains, self._last = domains, place
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)


def _number(path: Path) -> int:
    number = path.name.split("-")[1]
    return int(number) if number.isdigit() else -1
