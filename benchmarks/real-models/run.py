"""Run the trials of the development stream that are missing; each becomes one line of ``development.jsonl``.

python benchmarks/real-models/run.py MODEL DATA [--rows mas,ewc] [--trials 3] [--list]

The rules are in README.md, the spaces in rows.yaml. A killed trial is resumed by the next call.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from everlearn import files

HERE = Path(__file__).parent
STREAM = "development"
FIRST = [("plain", 4), ("recommended", 0), ("plain", 2), ("plain", 5), ("plain", 3), ("plain", 6)]
"""Trials that run before all others: (row, number)."""


@dataclass(frozen=True)
class Trial:
    """One run of the search: a row's methods at one point of its space."""

    row: str
    number: int
    learning_rate: float
    methods: tuple[dict[str, Any], ...]

    @property
    def name(self) -> str:
        """Name of its run."""
        return f"{self.row}-{self.number}"


def draws(count: int, dimensions: int = 3) -> list[list[float]]:
    """Return the points of the unit cube that all rows share: read from draws.json, drawn where there is none."""
    place = HERE / "draws.json"
    if not place.exists():
        from scipy.stats import qmc

        points = qmc.Sobol(dimensions, scramble=True, rng=0).random(count)
        files.write_text(place, json.dumps([[round(float(x), 6) for x in point] for point in points], indent=1) + "\n")
    points = json.loads(place.read_text())
    if len(points) < count:
        sys.exit(f"draws.json has {len(points)} points, and rows.yaml asks for {count} trials.")
    return points[:count]


def value_at(u: float, kind: str, *bounds: Any) -> Any:
    """Map a number of [0, 1) to a range: `log` and `linear` have two bounds, `one of` any number of choices."""
    if kind == "one of":
        return bounds[int(u * len(bounds))]
    low, high = bounds
    value = math.exp(math.log(low) + u * math.log(high / low)) if kind == "log" else low + u * (high - low)
    return float(f"{value:.3g}")


def trials() -> list[Trial]:
    """Return all trials in the order of the runs."""
    spaces = yaml.safe_load((HERE / "rows.yaml").read_text())
    points = draws(spaces["trials"])
    every = [trial for row, space in spaces["rows"].items() for trial in _of_row(row, space, points)]
    early = {pair: place for place, pair in enumerate(FIRST)}
    return sorted(every, key=lambda trial: (early.get((trial.row, trial.number), len(early)), trial.number))


def _of_row(row: str, space: dict[str, Any], points: Sequence[Sequence[float]]) -> Iterator[Trial]:
    rate = space["rate"]
    if isinstance(rate, dict) and "only" in rate:
        yield Trial(row, 0, rate["only"], tuple(space["methods"]))
        return
    if isinstance(rate, dict):
        for number in range(len(points)):
            yield Trial(
                row, number, value_at(number / (len(points) - 1), "log", *rate["grid"]), tuple(space["methods"])
            )
        return
    for number, point in enumerate(points):
        methods = [dict(method) for method in space["methods"]]
        for u, setting in zip(point[1:], (space.get("strength"), space.get("option")), strict=True):
            if setting is not None:
                keys, kind, *bounds = setting
                for key in keys.split():
                    position, option = key.split(".")
                    methods[int(position)][option] = value_at(u, kind, *bounds)
        yield Trial(row, number, value_at(point[0], *rate), tuple(methods))


def overrides(trial: Trial, model: Path, data: Path) -> list[str]:
    """Return what the trial changes of the stream's recipe."""
    raw = yaml.safe_load((HERE / f"{STREAM}.yaml").read_text())
    groups = {f"domains.{number}": domain for number, domain in enumerate(raw["domains"])} | {"general": raw["general"]}
    places = [f"{key}.{part}={data / group[part]}" for key, group in groups.items() for part in ("path", "validation")]
    own = [f"train.learning_rate={trial.learning_rate}", f"method={json.dumps(list(trial.methods))}"]
    return [f"model.path={model}", *places, *own, f"run.name={trial.name}"]


def equal_steps(changes: Sequence[str]) -> int:
    """Return how many steps cost as much as plain training's in the recipe, rounded down."""
    from everlearn.config.recipe import load
    from everlearn.grid.compute import Effort
    from everlearn.learner import ContinualLearner
    from everlearn.methods.engine.protection import costs_of
    from everlearn.model.loading import load_model
    from everlearn.run.method_checks import check_run_methods

    recipe = load(HERE / f"{STREAM}.yaml", changes)
    learner = ContinualLearner(recipe)
    model = load_model(recipe.model, recipe.run.seed)
    check_run_methods(learner, model)
    effort = Effort.of(learner, costs_of(recipe.methods(), model))
    return effort.steps(recipe.train["max_steps"])


def machine() -> dict[str, Any]:
    """Return what the arithmetic depends on."""
    import torch
    import transformers

    cpu = next(
        (line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), platform.machine()
    )
    bf16 = any("avx512_bf16" in line for line in _cpu_lines() if line.startswith("flags"))
    return {"cpu": cpu, "avx512_bf16": bf16, "torch": torch.__version__, "transformers": transformers.__version__}


def _cpu_lines() -> list[str]:
    place = Path("/proc/cpuinfo")
    return place.read_text().splitlines() if place.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", help="Only these rows, with commas.")
    parser.add_argument("--trials", type=int, help="Of each row only the first so many.")
    parser.add_argument("--list", action="store_true", help="Run nothing: list what is missing.")
    parser.add_argument("--runs", type=Path, default=Path("runs/real-models"))
    parser.add_argument("--results", type=Path, default=HERE / f"{STREAM}.jsonl")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = {(line["trial"]["row"], line["trial"]["number"]) for line in map(json.loads, lines)}
    rows = options.rows.split(",") if options.rows else None
    missing = [trial for trial in trials() if (trial.row, trial.number) not in done]
    missing = [trial for trial in missing if rows is None or trial.row in rows]
    missing = [trial for trial in missing if options.trials is None or trial.number < options.trials]
    if options.list:
        for trial in missing:
            print(f"{trial.name:20} {trial.learning_rate:8.2g}  {json.dumps(trial.methods)}")
        return
    weights = hashlib.sha256((options.model / "model.safetensors").read_bytes()).hexdigest()
    facts = machine()
    for trial in missing:
        record = {"trial": asdict(trial), "machine": facts, "model": {"sha256": weights}}
        record |= run(trial, options.model.resolve(), options.data.resolve(), options.runs)
        lines.append(json.dumps(record, sort_keys=True))
        files.write_text(options.results, "\n".join(lines) + "\n")
        print(f"{trial.name}: {'failed' if 'error' in record else 'done'}", flush=True)


def run(trial: Trial, model: Path, data: Path, runs: Path) -> dict[str, Any]:
    """Run a trial, or resume it; return its steps and results, or the reason why it failed."""
    folder = runs / trial.name
    changes = [*overrides(trial, model, data), f"run.folder={folder}"]
    steps = equal_steps(changes)
    if steps < 1:
        return {"steps": 0, "error": "Its passes outside of the steps cost as much as all steps of plain training."}
    everlearn = [sys.executable, "-m", "everlearn"]
    if (folder / "recipe.yaml").exists():
        call = [*everlearn, "resume", str(folder), "--quiet"]
    else:
        call = [*everlearn, "run", str(HERE / f"{STREAM}.yaml"), *changes, f"train.max_steps={steps}", "--quiet"]
    process = subprocess.run(call, capture_output=True, text=True)
    if process.returncode == 2:
        return {"steps": steps, "error": process.stderr.strip().splitlines()[-1]}
    if process.returncode != 0:
        sys.exit(f"{trial.name} ended with exit code {process.returncode}:\n{process.stderr[-2000:]}")
    results = json.loads((folder / "results.json").read_text())
    results["model"] = model.name
    for stage in folder.glob("stage-*"):
        shutil.rmtree(stage)
    return {"steps": steps, "results": results}


if __name__ == "__main__":
    main()
