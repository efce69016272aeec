"""Hundreds of domains under every method that keeps a memory: what does not grow, and what grows as declared.

    make soak COUNT=200 MINUTES=60

COUNT is the number of stages of a method. Methods that OUTPUT has from an earlier run with as many stages are left out.

What a stage keeps must be no more than `Method.cost` declares, the number of open files must stay, and beside what is
declared to grow the process must not. The time of a stage is recorded and judged by nobody.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import stages
import tiny
from endurance.quick import place_of, quick
from endurance.record import Record, asked
from everlearn.errors import MethodError, first_line
from everlearn.methods import Method, build
from everlearn.methods.base import REGISTRY
from everlearn.methods.engine.protection import check_methods

PAGES = os.sysconf("SC_PAGE_SIZE")
MAY_GROW = 32 * 2**20
"""Bytes of the process that nobody declares: what allocators and libraries keep."""
PER_PARAMETER = 32
"""Bytes of the process for each parameter that a growing model gains: weights, gradients, optimizer, a teacher."""
MOST = 10
"""A model that has grown to so many times its parameters learns no further domain."""
WARM = 3
"""Stages before which libraries still load and fill their caches."""


def held() -> int:
    """Bytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGES


def bytes_of(method: Method) -> int:
    """Bytes of what a stage keeps of the method."""
    return sum(value.numel() * value.element_size() for value in method.memory().tensors.values())


def stream(name: str, count: int) -> dict[str, Any] | None:
    """Learn so many domains; what was measured, or None if the method does not fit tiny models."""
    method, (objective, architecture) = build(quick(name)), place_of(name)
    model = tiny.model(architecture, dropout=0.1)
    parameters = [model.num_parameters()]
    try:
        check_methods([method], stages.setting(model, [method], objective, general=True))
    except MethodError:
        return None
    seconds, memory, kept, opened, saved, ended = [], [], [], [], [], ""
    for index in range(1, count + 1):
        began = time.process_time()
        saved.append(method.cost(model).saved(index))  # a model that grows makes what is kept of each domain grow
        stage = stages.stage(model, index, objective, general=True, steps=2)
        try:
            stages.learn([method], stage)
        except MethodError as error:
            if index == 1:
                raise
            ended, _ = first_line(error), saved.pop()
            break
        model = stage.model
        parameters.append(model.num_parameters())
        seconds.append(time.process_time() - began)
        kept.append(bytes_of(method))
        memory.append(held())
        opened.append(len(os.listdir("/proc/self/fd")))
        if kept[-1] > saved[-1]:
            raise AssertionError(f"keeps {kept[-1]:,} bytes after {index} stages; {saved[-1]:,} are declared")
        if parameters[-1] > MOST * parameters[0]:
            ended = f"The model has {parameters[-1] / parameters[0]:.0f} times the parameters that it had at first."
            break
    count = len(kept)
    if opened[-1] > opened[min(WARM, count) - 1]:
        raise AssertionError(f"has {opened[-1]} open files after {count} stages, {opened[min(WARM, count) - 1]} before")
    grown = memory[-1] - memory[min(WARM, count) - 1]
    told = saved[-1] - saved[min(WARM, count) - 1]
    held_of_it = 3 * told  # the memory, what it is loaded from, and what training makes of it
    if grown > MAY_GROW + held_of_it + PER_PARAMETER * (parameters[-1] - parameters[0]):
        raise AssertionError(f"grew by {grown:,} bytes in {count} stages; {told:,} are declared")
    part = max(1, count // 4)
    times = [statistics.median(each) for each in (seconds[WARM : WARM + part], seconds[-part:]) if each]
    return {
        "stages": count,
        "ended": ended,
        "seconds": [round(each, 4) for each in times],
        "kept": [kept[0], kept[-1]],
        "declared": [saved[0], saved[-1]],
        "grown": grown,
        "open files": opened[-1],
    }


def main() -> int:
    """Every method that keeps something."""
    options = asked(__doc__, 200)
    record = Record(options)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the collections of each stage do not look at the libraries
    keeping = [name for name in sorted(REGISTRY) if build(name).needs.keeps != "nothing"]
    known = {name for run in record.before if run["stages"] == options.count for name in run["methods"]}
    waiting = [name for name in keeping if name not in known]
    found: dict[str, Any] = {}
    refused: list[str] = []
    record.more = {
        "stages": options.count,
        "methods": found,
        "refused by the tiny models": refused,
        "not reached": waiting,
    }
    while waiting and time.monotonic() - record.started < 60 * options.minutes:
        name, wrong = waiting.pop(0), ""
        torch.manual_seed(options.seed)
        try:
            if (measured := stream(name, options.count)) is None:
                refused.append(name)
                continue
            found[name] = measured
        except Exception as error:
            wrong = f"{name}: {type(error).__name__}: {error}"
        record.done("methods", keeping.index(name), wrong)
    return record.finish()


if __name__ == "__main__":
    raise SystemExit(main())
