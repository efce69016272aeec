"""Describe a run folder: where each file is, what is complete and what is damaged.

Files are replaced atomically, so each is complete or absent.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everlearn import files, plugins, wording
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.errors import EverlearnError, RunError, RunInUse
from everlearn.evaluation.cell import ALONE
from everlearn.methods.config import as_saved
from everlearn.run.checkpoint import checkpoints
from everlearn.run.environment import environment

try:
    import fcntl
except ImportError:  # Windows has no flock; nothing else here needs it
    fcntl = None  # type: ignore[assignment]

TIME = "_time.json"
"""File beside the cells of a row: how long it took to measure them. No cell can have this name."""
NO_RUN = "checkpoints.json"
"""File that marks a folder of `everlearn evaluate --keep`: it has scores, but there is no run to resume."""
MODELS = ("model*.safetensors", "adapter_model.safetensors")
"""Files of a stage's model: complete weights, or an adapter of the base model."""
BASE = "base"
"""Folder for a base model or tokenizer that was passed as a Python object."""
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "optimizer.safetensors", "optimizer.json")
"""Files that are removed from a stage by :meth:`RunFolder.thin`."""
MOST_NAMED = 4
"""Maximum number of differing keys that an error names."""


class RunFolder:
    """Paths and state of one run on disk.

    Args:
        path: the folder, which need not exist yet.
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

    # -- the run ----------------------------------------------------------------------------------------------

    def check_free(self, recipe: Recipe) -> None:
        """Refuse a folder in which a new run cannot be created.

        Raises:
            RunError: it holds a run of this recipe (resume it) or of another (choose another name), or other files.
        """
        if self.recipe_file.exists():
            differing = list(_differing(self.recipe().model_dump(), recipe.model_dump()))
            keys = ", ".join(f"`{key}`" for key in differing[:MOST_NAMED])
            more = ", …" if len(differing) > MOST_NAMED else ""
            resume = wording.command("resume", self.path)
            raise RunError(
                f"{self.path} holds a run of this recipe already. Continue it with `{resume}`, or set another "
                "`run.name`."
                if not differing
                else f"{self.path} holds a run of another recipe (there, other values are set for {keys}{more}). Set "
                f"another `run.name` or `run.folder`; `{resume}` continues that run as it began."
            )
        # Two things may be here before a run: a base model that was passed as an object, and a partial file left by a
        # process that was killed while it wrote the recipe.
        ours = (files.PARTIAL, BASE)
        if self.path.exists() and any(not path.name.startswith(ours) for path in self.path.iterdir()):
            raise RunError(f"{self.path} exists and is not a run folder. Set another `run.name` or `run.folder`.")

    def create(self, recipe: Recipe) -> None:
        """Create the folder of a recipe; it must be free (see :meth:`check_free`)."""
        self.check_free(recipe)
        recipes.save(recipe, self.recipe_file)
        self.complete()

    def complete(self) -> None:
        """Write the environment's versions and hardware, unless that was done when the run began.

        Raises:
            RunError: the file exists and is damaged.
        """
        if self.environment_file.exists():
            files.check(self.environment_file)
        else:
            files.write_json(self.environment_file, environment(), sealed=True)

    def recipe(self) -> Recipe:
        """Load the recipe of the run.

        Raises:
            RunError: the folder holds no run, or its recipe was changed or damaged.
        """
        if not self.recipe_file.is_file():
            advice = ""
            if (self.path.parent / self.recipe_file.name).is_file():
                advice = f" The run is {self.path.parent}."
            elif (self.path / "config.json").is_file():
                advice = (
                    f" It is a model alone: begin a new run with it (`everlearn init --model {self.path}`), or export "
                    "the run `--with-memory` to continue it from there."
                )
            raise RunError(f"{self.path} is not a run folder: it has no recipe.yaml.{advice}")
        if (self.path / NO_RUN).is_file():
            raise RunError(f"{self.path} is not a run folder: it has the scores of models that existed already.")
        files.check(self.recipe_file)
        try:
            with as_saved():
                loaded = recipes.load(self.recipe_file)
        except EverlearnError:
            self._check_plugins()
            raise
        self._check_plugins()
        base = self.path.resolve() / BASE
        moved = {
            key: str(base)
            for key in ("path", "tokenizer")
            if Path(getattr(loaded.model, key) or "").name == BASE and base.is_dir()
        }
        # The folder may have been moved since: let the paths of its own base model point to where it is now.
        return loaded.model_copy(update={"model": loaded.model.model_copy(update=moved)}) if moved else loaded

    def _check_plugins(self) -> None:
        """Refuse to open a run without the plugins that it was started with."""
        with contextlib.suppress(RunError):  # damage is reported where the file is needed
            if self.environment_file.is_file():
                plugins.check_record(files.read_json(self.environment_file).get("plugins"), self.path)

    @contextlib.contextmanager
    def lock(self, first_process: bool = True) -> Iterator[None]:
        """Keep other processes from working on the run; the lock of a killed process is released by the system.

        Raises:
            RunInUse: another process is working on the run.
            RunError: the file system has no locks.
        """
        if fcntl is None or not first_process:
            yield
            return
        place = self.path / ".lock"
        if place.is_symlink():
            raise RunError(f"{place} is a link; a run's lock is a file of its own. Remove it.")
        with files.writing(place):
            # Do not follow a link that was made since, and do not truncate: the file may be someone else's.
            handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunInUse(f"Another process is working on {self.path}. Wait for it, or stop it.") from None
            except OSError as error:
                raise RunError(
                    f"The file system of {self.path} has no locks ({error.strerror}), which keep two processes from "
                    "working on one run. Choose a folder on another one: `run.folder`, or `--runs` of a grid."
                ) from None
            yield
        finally:
            os.close(handle)

    # -- stages -----------------------------------------------------------------------------------------------

    def stage(self, index: int, domain: str) -> Path:
        """Return the folder of a domain's finished stage; `index` counts from 1."""
        return self.path / f"stage-{index:02d}-{domain}"

    def alone(self, domain: str) -> RunFolder:
        """Return the run folder of a domain that is trained alone, from the base model."""
        return RunFolder(self.path / ALONE / domain)

    def training(self, index: int, domain: str) -> Path:
        """Return the folder with the checkpoints of an unfinished stage."""
        return self.path / f"stage-{index:02d}-{domain}.training"

    def finished(self, index: int, domain: str) -> bool:
        """Return whether a stage is complete.

        Raises:
            RunError: the stage was complete and has been damaged since.
        """
        folder = self.stage(index, domain)
        if not folder.is_dir():
            return False
        if (wrong := files.damage(folder)) is not None:
            raise RunError(
                f"{wrong}. Restore it from a copy; or delete {folder.name} and every later stage folder, and "
                "`everlearn resume` will learn them again from the last intact stage."
            )
        return True

    def thin(self, index: int, domain: str) -> None:
        """Remove the weights of a finished stage (`run.keep_stages`); its facts and the methods' memory are kept.

        The seal is written first, so after an interruption the stage still counts as complete and is thinned again.
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
        """Return whether a stage is finished and its weights were removed."""
        folder = self.stage(index, domain)
        return (folder / files.SEAL).is_file() and not any(any(folder.glob(pattern)) for pattern in MODELS)

    def checkpoint(self, index: int, domain: str, say: Any = None) -> Path | None:
        """Return the last intact checkpoint of an unfinished stage; damaged ones are reported and skipped."""
        folder = self.training(index, domain)
        for candidate in reversed(checkpoints(folder) if folder.is_dir() else []):
            if (wrong := files.damage(candidate, exactly=True)) is None:
                return candidate
            if say is not None:
                say(f"Checkpoint {candidate.name} of '{domain}' is damaged and skipped: {wrong}.")
        return None

    def clean_up(self) -> None:
        """Remove partial files of killed processes, and the checkpoints of finished stages."""
        files.remove_leftovers(self.path)
        for training in self.path.rglob("stage-*.training"):
            if training.with_name(training.name.removesuffix(".training")).is_dir():
                shutil.rmtree(training, ignore_errors=True)

    def row(self, index: int) -> Path:
        """Return the folder with the scores after a stage; 0 is the base model."""
        return self.path / "evaluation" / f"stage-{index:02d}"

    def take_base_scores(self, other: RunFolder) -> None:
        """Copy the base model's scores and the held-out rows of another run, as far as they are not here.

        They depend on neither the method nor how it is trained.
        """
        for part in (other.row(0), other.sets):
            for file in filter(Path.is_file, part.rglob("*")):
                place = self.path / file.relative_to(other.path)
                if file.suffix == ".safetensors" and not file.name.startswith(files.PARTIAL) and not place.is_file():
                    files.check(file)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    partial = place.with_name(f"{files.PARTIAL}{place.name}")
                    shutil.copyfile(file, partial)
                    partial.replace(place)
                    files.enlist(place)

    @property
    def _data_file(self) -> Path:
        return self.path / "data.json"

    def data_notes(self) -> list[str]:
        """Return the notes on the data that were saved when it was read; the data itself may be gone since."""
        return [str(note) for note in self._data_facts().get("notes", [])]

    def leaked(self) -> dict[str, float]:
        """Return the share of each held-out set and end task that was found in training text, as saved then."""
        return {str(name): float(share) for name, share in self._data_facts().get("leaked", {}).items()}

    def keep_data_findings(self, notes: list[str], leaked: Mapping[str, float]) -> None:
        """Save the notes on the data, and the shares of sets and tasks that were found in training text."""
        shares = {**self.leaked(), **leaked}
        if notes != self.data_notes() or shares != self.leaked():
            files.write_json(self._data_file, {"notes": notes, "leaked": shares}, sealed=True)

    def _data_facts(self) -> dict[str, Any]:
        facts = files.read_json(self._data_file) if self._data_file.is_file() else {}
        return facts if isinstance(facts, dict) else {}

    # -- the log ----------------------------------------------------------------------------------------------

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        files.unlist(self.metrics_file)
        with files.writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": stamp} | line) + "\n")

    def seal_log(self) -> None:
        """Seal ``metrics.jsonl`` after a stage, when its lines can no longer change."""
        if self.metrics_file.is_file():
            files.enlist(self.metrics_file)

    def metrics(self) -> list[dict[str, Any]]:
        """Return every complete line of ``metrics.jsonl``; a line that was cut short by a kill is skipped.

        Raises:
            RunError: the file has changed since it was sealed after the last stage.
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
        """Drop the lines that a resumed stage will write again, and a line that was cut short by a kill."""
        if self.metrics_file.is_file():
            kept = [line for line in self.metrics() if line.get("stage") != stage or _at(line) <= step]
            files.write_text(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept), sealed=True)


def _at(line: dict[str, Any]) -> float:
    """Return the step of a line of the log; 0 if the line has none."""
    step = line.get("step")
    return step if isinstance(step, int | float) else 0


def _differing(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the keys whose values differ."""
    for key in dict.fromkeys((*there, *here)):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}"
