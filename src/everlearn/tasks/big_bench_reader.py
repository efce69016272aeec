"""Read tasks in BIG-bench's JSON format: examples with targets or scored options, and how they are shown.

The keys and their defaults are those of the benchmark's documentation (arXiv 2206.04615, section 2.1). An example is
shown as `example_input_prefix`, its input, its options in a random order (`append_choices_to_input`) and
`example_output_prefix`. `task_prefix` comes before everything, and `few_shot_example_separator` between examples.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from everlearn.data.readers import files_beside
from everlearn.data.text_files import text_of
from everlearn.errors import DataError
from everlearn.evaluation.task import TaskConfig
from everlearn.seeding import seed_for
from everlearn.wording import count

FILE = "task.json"
CHOICE, EXACT, ROUGE = "multiple_choice_grade", "exact_str_match", "rouge_l"
Measure = Literal["multiple_choice_grade", "exact_str_match", "rouge_l"]
DEFAULT_REGEX = r"[^\.\?\!\;\n]+"
"""The part of a written answer that counts if a task has neither `stop_string` nor `output_regex`."""


class BigBenchTask(TaskConfig):
    """A task of BIG-bench or in its format: options are compared by likelihood, written answers by exact match."""

    paths = ("test",)
    kind: Literal["big-bench"] = "big-bench"
    """A JSON task of BIG-bench: the likeliest option, or a written answer, and the benchmark's normalised score."""
    test: str
    """A `task.json`, a folder with one, or a folder with a folder for each subtask. Scores of subtasks are averaged."""
    metrics: tuple[Measure, ...] = ()
    """Metrics to measure. Default: those of the task's `metrics` that are supported: multiple_choice_grade,
    exact_str_match, and rouge_l for every kind of ROUGE."""
    shots: int = Field(default=0, ge=0)
    """Number of other examples of the task that are shown with their answers before each one; the same ones each
    time."""
    low: float | None = None
    """The score that counts as 0. Default: the task's own, or else that of guessing."""
    high: float | None = None
    """The score that counts as 100. Default: the task's own, or else the best possible."""
    max_new_tokens: int = Field(default=32, ge=1)
    """Maximum number of tokens of a written answer."""
    max_length: int | None = Field(default=None, ge=8)
    """Maximum number of tokens of a prompt; longer ones are cut at the beginning. Default: the model's longest
    input."""
    max_test: int | None = Field(default=None, ge=1)
    """Maximum number of examples of each subtask, drawn at random; the same ones each time."""

    # Options of other kinds that the generative tasks read; fixed for this kind.
    keep_last: ClassVar[int] = 0
    separator: ClassVar[str] = ""
    stop: ClassVar[tuple[str, ...]] = ()
    labels: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _scale(self) -> BigBenchTask:
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"`low` ({self.low}) must be below `high` ({self.high})")
        return self

    def files(self) -> list[Path]:
        """Return the task's file, or those of its subtasks; raise ``DataError`` if there is none."""
        place = Path(self.test).expanduser()
        if place.is_file():
            return [place]
        if not place.is_dir():
            raise DataError(f"`test: {self.test}`: there is no such file or folder.{files_beside(place)}")
        paths = [place / FILE] if (place / FILE).is_file() else []
        paths += sorted(path for path in place.rglob(FILE) if path != place / FILE)
        if not paths:
            raise DataError(f"`test: {self.test}` is a folder without any `{FILE}`.")
        return paths


@dataclass(frozen=True)
class Prompted:
    """Hold an example as a model sees it.

    Attributes:
        prompt: everything before the answer.
        options: the answers to choose from; empty if there are none.
        scores: the score of each option.
        targets: the right written answers.
    """

    prompt: str
    options: tuple[str, ...]
    scores: tuple[float, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Subtask:
    """Hold one file of a task.

    Attributes:
        name: name of its folder or file.
        examples: the examples as they are shown.
        metrics: the supported metrics that it names.
        preferred: its preferred metric, by its own name.
        low: the score that counts as 0; None for that of guessing.
        high: the score that counts as 100; None for the best possible.
        stop: text that ends a written answer; empty for none.
        regex: pattern whose first match is the answer; empty for all of the text.
    """

    name: str
    examples: tuple[Prompted, ...]
    metrics: tuple[Measure, ...]
    preferred: str
    low: float | None
    high: float | None
    stop: str
    regex: str

    def answer_in(self, text: str) -> str:
        """Return the part of a written text that counts as the answer."""
        text = text.partition(self.stop)[0] if self.stop else text
        if self.regex:
            match = re.search(self.regex, text)
            text = match[0] if match else ""
        return text.strip()


def read_big_bench(task: BigBenchTask) -> list[Subtask]:
    """Read the subtasks of a task; a task without subtasks is its only one.

    Raises:
        DataError: a file is not a JSON task of BIG-bench; the message names the file and what is missing.
    """
    files = task.files()
    raw = [(path, _loaded(path, task)) for path in files]
    own = [(path, content) for path, content in raw if "examples" in content]  # the file of a parent task has none
    if not own:
        raise DataError(f"{files[0]} has no `examples`: it is not a JSON task of BIG-bench.")
    return [_subtask(task, path, content) for path, content in own]


def _loaded(path: Path, task: BigBenchTask) -> dict[str, Any]:
    text = text_of(path, task.limits)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON task of BIG-bench: it holds no mapping with `examples`.")
    return content


def _subtask(task: BigBenchTask, path: Path, raw: dict[str, Any]) -> Subtask:
    examples = raw["examples"]
    if not isinstance(examples, list) or not examples:
        raise DataError(f"{path}: `examples` must be a list that is not empty.")
    name = path.parent.name if path.name == FILE else path.stem
    rng = np.random.Generator(np.random.PCG64(seed_for("big-bench", name, len(examples))))
    read = [_example(path, raw, number, example, rng) for number, example in enumerate(examples, 1)]
    chosen: Sequence[int] = range(len(read))
    if task.max_test is not None and task.max_test < len(read):
        chosen = np.sort(rng.choice(len(read), task.max_test, replace=False)).tolist()
    if task.shots >= len(read):
        raise DataError(
            f"End task '{task.name}': `shots` is {task.shots}, and {path} has "
            f"{count(len(read), 'example')}, one of which is "
            f"scored. Set it to {len(read) - 1} or less."
        )
    before, between = _text(raw, "task_prefix", "", path), _text(raw, "few_shot_example_separator", "\n", path)

    def shown(number: int) -> Prompted:
        own = read[number]
        draw = np.random.Generator(np.random.PCG64(seed_for("big-bench shots", name, number)))
        others = [read[i] for i in draw.permutation(len(read)) if i != number][: task.shots]
        return Prompted(
            before + between.join([*(other.prompt + other.targets[0] for other in others), own.prompt]),
            own.options,
            own.scores,
            own.targets,
        )

    stop, regex = _text(raw, "stop_string", "", path), _text(raw, "output_regex", "", path)
    try:
        re.compile(regex)
    except re.error as error:
        raise DataError(f"{path}: `output_regex` is not a regular expression: {error}.") from None
    return Subtask(
        name=name,
        examples=tuple(map(shown, chosen)),
        metrics=_measured(raw.get("metrics"), path),
        preferred=str(raw.get("preferred_score", "")),
        low=_number(raw, ("low", "low_score"), path),
        high=_number(raw, ("high", "high_score"), path),
        stop=stop,
        regex=regex or ("" if stop else DEFAULT_REGEX),
    )


def _example(path: Path, raw: dict[str, Any], number: int, example: Any, rng: np.random.Generator) -> Prompted:
    where = f"{path}, example {number}"
    if not isinstance(example, dict) or not isinstance(example.get("input"), str):
        raise DataError(f"{where}: it must be a mapping with a text as `input`.")
    scored, targets = example.get("target_scores"), example.get("target")
    if scored is None and targets is None:
        raise DataError(f"{where} has neither `target` nor `target_scores`.")
    options: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    if scored is not None:
        if not isinstance(scored, Mapping) or len(scored) < 2 or "" in scored or not all(map(_real, scored.values())):
            raise DataError(f"{where}: `target_scores` must map two or more options to numbers (got {scored!r:.80}).")
        options, scores = tuple(scored), tuple(map(float, scored.values()))
    if targets is None:
        best = max(scores)
        targets = [option for option, score in zip(options, scores, strict=True) if score == best]
    listed = targets if isinstance(targets, list) else [targets]
    if not listed or not all(isinstance(target, str) for target in listed):
        raise DataError(f"{where}: `target` must be a text or a list of texts (got {targets!r:.80}).")
    text = _text(raw, "example_input_prefix", "\nQ: ", path) + example["input"]
    order = rng.permutation(len(options))  # always drawn, so that the order does not depend on other keys
    if options and _truth(raw, "append_choices_to_input", path):
        prefix = _text(raw, "choice_prefix", "\n  choice: ", path)
        text += "".join(prefix + options[i] for i in order)
    return Prompted(text + _text(raw, "example_output_prefix", "\nA: ", path), options, scores, tuple(listed))


def _measured(names: Any, path: Path) -> tuple[Measure, ...]:
    if names is None:  # the recipe may name metrics instead
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: `metrics` must be a list of names (got {names!r:.80}).")
    own = [ROUGE if name.lower().startswith("rouge") else name for name in names]
    return tuple(name for name in (CHOICE, EXACT, ROUGE) if name in own)  # type: ignore[misc]


def _text(raw: Mapping[str, Any], key: str, default: str, path: Path) -> str:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise DataError(f"{path}: `{key}` must be a text (got {value!r:.80}).")
    return value


def _truth(raw: Mapping[str, Any], key: str, path: Path) -> bool:
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{path}: `{key}` must be true or false (got {value!r:.80}).")
    return value is not False


def _number(raw: Mapping[str, Any], keys: Sequence[str], path: Path) -> float | None:
    value = next((raw[key] for key in keys if raw.get(key) is not None), None)
    if value is not None and not _real(value):
        raise DataError(f"{path}: `{keys[0]}` must be a number (got {value!r:.80}).")
    return None if value is None else float(value)


def _real(value: Any) -> bool:
    # An integer in JSON can be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
