"""The memory folder of protected trainings, which carries the methods' memory to the next domain."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from everlearn import files
from everlearn.errors import MethodError, RunError
from everlearn.evaluation.cell import Cell
from everlearn.methods.base import Method
from everlearn.run.stage_files import load_memories, save_memories
from everlearn.version import __version__

FACTS, HELD_OUT = "stage.json", "base-scores-{}.safetensors"


class MemoryFolder:
    """Save and load what methods keep from one domain to the next, for trainings with `protect`.

    Methods keep tensors and numbers from earlier domains, such as importances and anchors: their memory. After each
    domain the memory is saved in a new subfolder ``stage-<number>-<domain>/``, with checksums and in the format of a
    run folder. The subfolder with the highest number is loaded.

    Args:
        path: the folder that contains the subfolders; it need not exist.

    Raises:
        RunError: a file of the last subfolder is missing or differs from its checksum.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.newest = self._newest()
        """The folder of the memory after the last domain, or None."""
        if self.newest is not None and (wrong := files.damage(self.newest)):
            raise RunError(f"{wrong}. Restore it from a copy, or start again with another folder (`memory`).")
        self.domains: list[str] = [] if self.newest is None else files.read_json(self.newest / FACTS)["domains"]
        """Names of the domains learnt so far, in order."""
        cells = sorted(self.newest.glob(HELD_OUT.format("*"))) if self.newest is not None else []
        self.base_scores: dict[str, Cell] = {cell.task: cell for cell in map(Cell.load, cells)}
        """The scores of the base model, before the first domain, on each held-out text that was scored then."""

    def check_unchanged(self) -> None:
        """Check that no other training has written a newer memory than the one that was loaded.

        Raises:
            RunError: another process has written one since.
        """
        there = self._newest()
        if there != self.newest:
            raise RunError(
                f"{self.path} holds {there.name if there else 'nothing'} and held "
                f"{self.newest.name if self.newest else 'nothing'} when `protect` was called: another training has "
                "written there since. Call `protect` again after it, or give another folder (`memory`)."
            )

    def load(self, methods: Sequence[Method]) -> None:
        """Load the memory of each method.

        Raises:
            MethodError: a method that has a memory is not in the list, and would lose it.
        """
        if self.newest is None:
            return
        known = {method.name for method in methods}
        lost = sorted({p.stem for p in self.newest.glob("*.json")} - known - {Path(FACTS).stem, Path(files.SEAL).stem})
        if lost:
            raise MethodError(
                f"{self.path} holds the memory of method '{lost[0]}', which is not in the list and would forget what "
                f"it knows of {', '.join(self.domains)}. Add it, or give another folder (`memory`)."
            )
        load_memories(self.newest, methods)

    def save(self, methods: Sequence[Method], domain: str, writes: bool = True) -> None:
        """Save the memory of the methods after a domain; the previous one is removed once this one is complete.

        Args:
            methods: the methods.
            domain: name of the domain.
            writes: whether this process writes; all must call it (:func:`save_memories`).
        """
        if not writes:
            save_memories(self.path, methods, writes=False)
            return
        self.check_unchanged()
        domains, before = [*self.domains, domain], self.newest
        place = self.path / f"stage-{len(domains):02d}-{domain}"
        with files.new_folder(place) as folder:
            save_memories(folder, methods)
            for number, cell in enumerate(self.base_scores.values()):
                cell.save(folder / HELD_OUT.format(f"{number:02d}"))
            files.write_json(folder / FACTS, {"domains": domains, "everlearn": __version__})
        self.domains, self.newest = domains, place
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def _newest(self) -> Path | None:
        stages = (path for path in self.path.glob("stage-*-*") if (path / files.SEAL).is_file())
        return max(stages, key=_number, default=None)


def _number(path: Path) -> int:
    number = path.name.split("-")[1]
    return int(number) if number.isdigit() else -1
