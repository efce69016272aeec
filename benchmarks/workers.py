"""Share one sweep between two workers, kill one of them in the middle, and compare the cells with those of one process.

    python benchmarks/workers.py [--by processes|submitit|ray] [--output FILE.json]

Each worker runs the same `everlearn sweep` command. `submitit` uses its local executor, `ray` a cluster of this
machine; both must be installed. Exit code 1 if a cell is missing or its scores differ.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.grid.archive import find_cells

RECIPE = """
model: suite:docs/base
objective: masked
domains:
  - {name: sympy, path: suite:docs/sympy/train.jsonl, validation: suite:docs/sympy/validation.jsonl}
  - {name: networkx, path: suite:docs/networkx/train.jsonl, validation: suite:docs/networkx/validation.jsonl}
data: {block_size: 64}
train: {max_steps: 8, per_device_train_batch_size: 4, learning_rate: 1.0e-3, save_steps: 2}
evaluation: {blocks: 8, samples: 0}
run: {name: shared}
"""
SWEEP = ["--methods", "sequential,l2", "--seeds", "1,2,3", "--quiet"]
WORKERS = 2
MEASURED = ("matrices", "summary")
"""Keys of a cell that must be equal; others depend on the machine's speed."""


def work(folder: str, number: int) -> int:
    """Run the sweep in a process of its own, whose number is kept for the one who kills it; return its exit code."""
    place = Path(folder)
    command = [sys.executable, "-m", "everlearn", "sweep", "recipe.yaml", *SWEEP]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL)
    (place / f"worker-{number}").write_text(str(process.pid))
    return process.wait()


def by_processes(folder: Path) -> list[int]:
    """Start each worker in a thread that waits for its process."""
    codes: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda n=number: codes.update({n: work(str(folder), n)})) for number in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [codes[number] for number in range(WORKERS)]


def by_submitit(folder: Path) -> list[int]:
    """Submit the workers to submitit's local executor; on a cluster its `AutoExecutor` makes a SLURM array of them."""
    import submitit

    executor = submitit.LocalExecutor(folder / "logs")
    executor.update_parameters(timeout_min=60)
    return [job.result() for job in executor.map_array(work, [str(folder)] * WORKERS, range(WORKERS))]


def by_ray(folder: Path) -> list[int]:
    """Run the workers as tasks of a Ray cluster on this machine."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    task = ray.remote(num_cpus=1)(work)
    return list(ray.get([task.remote(str(folder), number) for number in range(WORKERS)]))


ENGINES: dict[str, Callable[[Path], list[int]]] = {"processes": by_processes, "submitit": by_submitit, "ray": by_ray}


def kill_one(folder: Path) -> None:
    """Kill the first worker when the first cell is measured, while it works on another."""
    results = folder / "sweep/shared"
    while not any(results.glob("*order*.json")):
        time.sleep(0.1)
    time.sleep(1.0)
    os.kill(int((folder / "worker-0").read_text()), signal.SIGKILL)


def cells(folder: Path) -> dict[str, Any]:
    """Return the scores of each cell."""
    kept_cells = find_cells(folder / "sweep/shared")
    return {name: {key: cell.value[key] for key in MEASURED} for name, cell in kept_cells.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--by", choices=ENGINES, default="processes")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        alone, shared = Path(scratch, "alone"), Path(scratch, "shared")
        for folder in (alone, shared):
            folder.mkdir()
            (folder / "recipe.yaml").write_text(RECIPE)
        killer = threading.Thread(target=kill_one, args=[shared], daemon=True)
        killer.start()
        codes = ENGINES[arguments.by](shared)
        work(str(alone), 0)
        expected, actual = cells(alone), cells(shared)
        failed = {path.parent.name: files.read_json(path) for path in shared.rglob("failed.json")}
    report = {
        "engine": arguments.by,
        "version": version(arguments.by) if arguments.by != "processes" else None,
        "workers": WORKERS,
        "exit_codes": codes,
        "cells": len(expected),
        "measured": len(actual),
        "equal": sum(actual.get(name) == cell for name, cell in expected.items()),
    }
    print(json.dumps({**report, "failed": failed}, indent=1))
    if arguments.output is not None:
        known = files.read_json(arguments.output) if arguments.output.exists() else {}
        files.write_json(arguments.output, {**known, arguments.by: report})
    sys.exit(not report["cells"] or report["equal"] != report["cells"])


if __name__ == "__main__":
    main()
