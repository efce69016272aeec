"""A run on disk: where everything is, what is complete, what is damaged. Every file in it is whole or absent."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.errors import RunError
from everlearn.run.trainer import checkpoints
from everlearn.version import __version__

try:
    import fcntl
except ImportError:  # Windows has no flock; nothing else here needs it
    fcntl = None  # type: ignore[assignment]

TIME = "_time.json"
"""Beside the cells of a row: how long measuring them took; no cell can have this name."""
NO_RUN = "checkpoints.json"
"""In a folder where `everlearn evaluate` has kept what it measured: there is nothing to resume."""
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "optimizer.safetensors", "optimizer.json")
"""What a thinned stage is without."""
PACKAGES = ("torch", "transformers", "accelerate", "peft", "datasets", "tokenizers", "safetensors", "numpy", "scipy")


class RunFolder:
    """The folder of one run.

    Args:
        path: where it is or will be.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.results_file = self.path / "results.json"
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
        if self.path.exists() and any(self.path.iterdir()):
            raise RunError(f"{self.path} exists and is no run folder. Set another `run.name` or `run.folder`.")

    def create(self, wanted: Recipe) -> None:
        """Claim the folder for a recipe; it must be free (:meth:`check_free`)."""
        self.check_free(wanted)
        self.path.mkdir(parents=True, exist_ok=True)
        recipes.save(wanted, self.recipe_file)
        files.write_json(self.path / "environment.json", environment())

    def recipe(self) -> Recipe:
        """The recipe that the run was made with.

        Raises:
            RunError: the folder holds no run.
        """
        if not self.recipe_file.is_file():
            raise RunError(f"{self.path} is no run folder: it has no recipe.yaml.")
        if (self.path / NO_RUN).is_file():
            raise RunError(f"{self.path} is no run folder: it has the scores of models that existed already.")
        return recipes.load(self.recipe_file)

    @contextlib.contextmanager
    def lock(self, first_process: bool = True) -> Iterator[None]:
        """Keep other commands from working on the run at the same time; a killed process leaves no lock behind.

        Raises:
            RunError: another process works on it.
        """
        if fcntl is None or not first_process:
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"Another process works on {self.path} just now. Wait for it, or stop it.") from None
            yield

    # -- stages -----------------------------------------------------------------------------------------------

    def stage(self, index: int, domain: str) -> Path:
        """Where the finished stage of a domain is; `index` counts from 1."""
        return self.path / f"stage-{index:02d}-{domain}"

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
        return (folder / files.SEAL).is_file() and not any(folder.glob(WEIGHTS[0]))

    def checkpoint(self, index: int, domain: str, say: Any = None) -> Path | None:
        """The last whole checkpoint of an unfinished stage; damaged ones are named and passed over."""
        folder = self.training(index, domain)
        for candidate in reversed(checkpoints(folder) if folder.is_dir() else []):
            if (wrong := files.damage(candidate)) is None:
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

    # -- the log ----------------------------------------------------------------------------------------------

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.path.mkdir(parents=True, exist_ok=True)
        with files.full_disk_is_an_error(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": stamp} | line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Every whole line of ``metrics.jsonl``; a line that a kill cut short is left out."""
        lines = []
        if self.metrics_file.is_file():
            for text in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(text))
        return lines

    def forget_log_after(self, stage: int, step: int) -> None:
        """Drop the lines that a resumed stage will write again, and a line that a kill cut short."""
        kept = [line for line in self.metrics() if line.get("stage") != stage or line.get("step", 0) <= step]
        if self.metrics_file.is_file():
            files.write_text(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))


def step_of(checkpoint: Path) -> int:
    """Optimizer steps behind a checkpoint."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def environment() -> dict[str, Any]:
    """Versions and hardware, for ``environment.json`` and ``everlearn env``."""
    cuda = torch.cuda.is_available()
    return {
        "everlearn": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "command": " ".join(["everlearn", *sys.argv[1:]]) if "everlearn" in sys.argv[0] else "Python",
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
