"""A run on disk: where everything is, what is complete, what is damaged. Every file in it is whole or absent."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlearn import files, plugins
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.errors import EverlearnError, RunError
from everlearn.evaluation.cell import ALONE
from everlearn.run.environment import environment
from everlearn.run.trainer import checkpoints

try:
    import fcntl
except ImportError:  # Windows has no flock; nothing else here needs it
    fcntl = None  # type: ignore[assignment]

TIME = "_time.json"
"""Beside the cells of a row: how long measuring them took; no cell can have this name."""
NO_RUN = "checkpoints.json"
"""In a folder where `everlearn evaluate` has kept what it measured: there is nothing to resume."""
MODELS = ("model*.safetensors", "adapter_model.safetensors")
"""What a stage's model is in: whole, or as an adapter of the base model."""
BASE = "base"
"""In a run folder: the base model or tokenizer, where it was given as an object."""
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "optimizer.safetensors", "optimizer.json")
"""What a thinned stage is without."""


class RunFolder:
    """The folder of one run.

    Args:
        path: where it is or will be.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.results_file = self.path / "results.json"
        self.environment_file = self.path / "environment.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.report_file = self.path / "report.html"
        self.card_file = self.path / "README.md"
        self.sets = self.path / "evaluation" / "sets"

    # -- the whole run ----------------------------------------------------------------------------------------

    def check_free(self, wanted: Recipe) -> None:
        """Find out whether a new run may be made here.

        Raises:
            RunError: there is a run already, of this recipe (resume it) or of another (choose another name).
        """
        if self.recipe_file.exists():
            same = self.recipe().model_dump() == wanted.model_dump()
            raise RunError(
                f"{self.path} holds a run of this recipe already. Continue it with `everlearn resume {self.path}`, or "
                "set another `run.name`."
                if same
                else f"{self.path} holds a run of another recipe. Set another `run.name` or `run.folder`."
            )
        # A base model that was given as an object is saved beforehand; a process that was killed while it made a run
        # here may have left its first file half-written.
        ours = (files.PARTIAL, BASE)
        if self.path.exists() and any(not path.name.startswith(ours) for path in self.path.iterdir()):
            raise RunError(f"{self.path} exists and is no run folder. Set another `run.name` or `run.folder`.")

    def create(self, wanted: Recipe) -> None:
        """Claim the folder for a recipe; it must be free (:meth:`check_free`)."""
        self.check_free(wanted)
        recipes.save(wanted, self.recipe_file)
        self.complete()

    def complete(self) -> None:
        """Write down the environment, unless that was done when the run began.

        Raises:
            RunError: it was, and the file is damaged.
        """
        if self.environment_file.exists():
            files.check(self.environment_file)
        else:
            files.write_json(self.environment_file, environment(), sealed=True)

    def recipe(self) -> Recipe:
        """The recipe that the run was made with.

        Raises:
            RunError: the folder holds no run, or its recipe is not what was saved.
        """
        if not self.recipe_file.is_file():
            raise RunError(f"{self.path} is no run folder: it has no recipe.yaml.")
        if (self.path / NO_RUN).is_file():
            raise RunError(f"{self.path} is no run folder: it has the scores of models that existed already.")
        files.check(self.recipe_file)
        try:
            found = recipes.load(self.recipe_file)
        except EverlearnError:
            self._check_plugins()
            raise
        self._check_plugins()
        base = self.path.resolve() / BASE
        moved = {
            key: str(base)
            for key in ("path", "tokenizer")
            if Path(getattr(found.model, key) or "").name == BASE and base.is_dir()
        }
        # A run folder with a base model of its own may be copied or moved.
        return found.model_copy(update={"model": found.model.model_copy(update=moved)}) if moved else found

    def _check_plugins(self) -> None:
        """Refuse to open the run without the plugins that it was made with."""
        with contextlib.suppress(RunError):  # a damaged file is told of where it is needed
            if self.environment_file.is_file():
                plugins.check_record(files.read_json(self.environment_file).get("plugins"), self.path)

    @contextlib.contextmanager
    def lock(self, first_process: bool = True) -> Iterator[None]:
        """Keep other commands from working on the run at the same time; a killed process leaves no lock behind.

        Raises:
            RunError: another process works on it.
        """
        if fcntl is None or not first_process:
            yield
            return
        place = self.path / ".lock"
        if place.is_symlink():
            raise RunError(f"{place} is a link; a run's lock is a file of its own. Remove it.")
        with files.writing(place):
            # Never through a link, which may have come since, and never emptied: it may be somebody else's.
            handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"Another process works on {self.path} just now. Wait for it, or stop it.") from None
            yield
        finally:
            os.close(handle)

    # -- stages -----------------------------------------------------------------------------------------------

    def stage(self, index: int, domain: str) -> Path:
        """Where the finished stage of a domain is; `index` counts from 1."""
        return self.path / f"stage-{index:02d}-{domain}"

    def alone(self, domain: str) -> RunFolder:
        """The run of a domain that is trained alone, from the base model."""
        return RunFolder(self.path / ALONE / domain)

    def training(self, index: int, domain: str) -> Path:
        """Where the checkpoints of an unfinished stage are."""
        return self.path / f"stage-{index:02d}-{domain}.training"

    def finished(self, index: int, domain: str) -> bool:
        """Whether a stage is complete.

        Raises:
            RunError: it was complete and is damaged now.
        """
        folder = self.stage(index, domain)
        if not folder.is_dir():
            return False
        if (wrong := files.damage(folder)) is not None:
            raise RunError(
                f"{wrong}. Restore it from a copy; or delete {folder.name} and every later stage folder, and "
                "`everlearn resume` will learn them again from the last stage that is whole."
            )
        return True

    def thin(self, index: int, domain: str) -> None:
        """Remove the weights of a finished stage (`run.keep_stages`); what methods remember and facts are kept.

        The seal is written first: a stage whose removal was interrupted is whole, and thinned again.
        """
        folder = self.stage(index, domain)
        weights = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
        if weights:
            sealed = files.read_json(folder / files.SEAL)
            names = {path.name for path in weights}
            files.write_json(folder / files.SEAL, {name: mark for name, mark in sealed.items() if name not in names})
            for path in weights:
                path.unlink()

    def without_weights(self, index: int, domain: str) -> bool:
        """Whether a stage is finished and its weights were removed."""
        folder = self.stage(index, domain)
        return (folder / files.SEAL).is_file() and not any(any(folder.glob(pattern)) for pattern in MODELS)

    def checkpoint(self, index: int, domain: str, say: Any = None) -> Path | None:
        """The last whole checkpoint of an unfinished stage; damaged ones are named and passed over."""
        folder = self.training(index, domain)
        for candidate in reversed(checkpoints(folder) if folder.is_dir() else []):
            if (wrong := files.damage(candidate, exactly=True)) is None:
                return candidate
            if say is not None:
                say(f"Checkpoint {candidate.name} of '{domain}' is damaged and left out: {wrong}.")
        return None

    def clean_up(self) -> None:
        """Remove what a killed process was still writing, and checkpoints of finished stages."""
        files.remove_leftovers(self.path)
        for training in self.path.rglob("stage-*.training"):
            if training.with_name(training.name.removesuffix(".training")).is_dir():
                shutil.rmtree(training, ignore_errors=True)

    def row(self, index: int) -> Path:
        """Where the scores after a stage are; 0 is the base model."""
        return self.path / "evaluation" / f"stage-{index:02d}"

    @property
    def _data_file(self) -> Path:
        return self.path / "data.json"

    def data_notes(self) -> list[str]:
        """What was found in the data when it was read; later it need not be there any more."""
        found = files.read_json(self._data_file) if self._data_file.is_file() else []
        return [str(note) for note in found] if isinstance(found, list) else []

    def keep_data_notes(self, notes: list[str]) -> None:
        """Keep them."""
        if notes != self.data_notes():
            files.write_json(self._data_file, notes, sealed=True)

    # -- the log ----------------------------------------------------------------------------------------------

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        files.unlist(self.metrics_file)
        with files.writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": stamp} | line) + "\n")

    def seal_log(self) -> None:
        """After a stage: what the log says of it does not change any more."""
        if self.metrics_file.is_file():
            files.enlist(self.metrics_file)

    def metrics(self) -> list[dict[str, Any]]:
        """Every whole line of ``metrics.jsonl``; a line that a kill cut short is left out.

        Raises:
            RunError: the file is not what was saved after the last stage.
        """
        lines = []
        if self.metrics_file.is_file():
            files.check(self.metrics_file)
            with files.reading(self.metrics_file):
                texts = self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()
            for text in texts:
                with contextlib.suppress(ValueError, RecursionError):
                    if isinstance(line := json.loads(text), dict):
                        lines.append(line)
        return lines

    def forget_log_after(self, stage: int, step: int) -> None:
        """Drop the lines that a resumed stage will write again, and a line that a kill cut short."""
        if self.metrics_file.is_file():
            kept = [line for line in self.metrics() if line.get("stage") != stage or _at(line) <= step]
            files.write_text(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept), sealed=True)


def _at(line: dict[str, Any]) -> float:
    """The step of a line of the log; of one that is not ours, no step that is to come."""
    step = line.get("step")
    return step if isinstance(step, int | float) else 0
