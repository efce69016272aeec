"""The suites `standard-cl` and `long-sequence` for recipes, grids and pages, and the addresses of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from everlearn.config.reading import read_yaml
from everlearn.grid.template import Metric
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.continual_tasks.claims import LONG_CLAIMS, STANDARD_CLAIMS
from everlearn_bench.suites.continual_tasks.files import PARTS, data_folder, proxy, task_file
from everlearn_bench.suites.continual_tasks.published import published
from everlearn_bench.suites.continual_tasks.systems import GROUPS, LONG_SYSTEMS, PAPER_NAMES, SYSTEMS
from everlearn_bench.suites.continual_tasks.tasks import BY_HAND, LONG, STANDARD, TASKS, TWICE, sources
from everlearn_bench.suites.overlay import lay_over


class ContinualTasks(Suite):
    """Base class of the suites whose domains are classification tasks, as text to text."""

    class Config(Suite.Config):
        answers: Literal["written", "chosen", "head"] = "written"
        """The model generates the answer, or its most likely label is the answer, or (encoders) a classifier is
        fine-tuned on every evaluated checkpoint."""
        names: bool = True
        """Whether prompts begin with the names of task and dataset."""

    groups = GROUPS
    paper_names = PAPER_NAMES
    systems = SYSTEMS
    metrics: tuple[Metric, ...] = ("accuracy",)
    by_hand = BY_HAND
    cache = "continual-tasks"

    def locate(self, inside: str) -> Path:
        """Return the file of prompts and answers of a task."""
        self.check_address(inside, (f"{task}/{part}.jsonl" for task in self.domains for part in PARTS))
        task, part = inside.removesuffix(".jsonl").split("/")
        return task_file(task, part, data_folder(self.data), self.config.names)

    def begin(self, raw: dict[str, Any]) -> None:
        """Configure how tasks are answered, and set their labels."""
        lay_over(raw, read_yaml(Path(__file__).with_name("answers.yaml"), "template")[self.config.answers])
        for task in raw["end_tasks"]:
            labels = list(TASKS[task["name"]].labels)
            task |= {
                "written": {"labels": labels},
                "chosen": {"choices": labels},
                "head": {"train": f"suite:{self.name}/{task['name']}/train.jsonl"},
            }[self.config.answers]

    def finish(self, raw: dict[str, Any]) -> None:
        """Cut tests as training rows are cut, learn a task of order 5 or 6 twice, and say which tasks are proxies."""
        domains = {item["name"]: item for item in raw["domains"]}
        for task in raw["end_tasks"]:
            task.setdefault("max_length", raw["data"]["block_size"])
        if (twice := TWICE.get(tuple(domains))) and raw["train"].get("max_steps", 0) <= 0:
            domains[twice].setdefault("train", {"num_train_epochs": 2})
        proxies = {name: proxy(name, data_folder(self.data)) for name in sorted(TASKS) if name in domains}
        raw["run"]["notes"] = [
            *(f"Proxy task '{name}': {what}." for name, what in proxies.items() if what),
            "Held-out text is a part of each training file: the published development files are the test files again.",
        ]


@register_suite
class StandardCL(ContinualTasks):
    """Four tasks in the orders 1 to 3 of O-LoRA and MIGU."""

    name = "standard-cl"
    orders = STANDARD
    published = published(0, tuple(STANDARD), name)
    claims = STANDARD_CLAIMS
    sources = sources(STANDARD[1])


@register_suite
class LongSequence(ContinualTasks):
    """Fifteen tasks in the orders 4 to 6."""

    name = "long-sequence"
    orders = LONG
    published = published(4, tuple(LONG), name)
    claims = LONG_CLAIMS
    systems = LONG_SYSTEMS
    sources = sources(LONG[4])
