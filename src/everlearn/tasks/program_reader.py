"""Programming problems: a function's head, tests of it, and a solution, as HumanEval has them (arXiv 2107.03374)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from everlearn.data.readers import Row
from everlearn.errors import DataError
from everlearn.tasks.prompts import Asked, drawn, filled, rows


class CodeTask(Asked):
    """Programming problems: the model writes the rest of a function, which is run on the problem's tests (pass@k)."""

    kind: Literal["code"] = "code"
    """The model writes the rest of a function, which is run on tests in a sandbox; nothing is fine-tuned."""
    prompt: str = "{prompt}"
    """What the model reads, and what its program begins with; `{column}` stands for a column's value."""
    tests_column: str = "test"
    """Column with the tests: the source of a function `check(candidate)`."""
    entry_point_column: str = "entry_point"
    """Column with the name of the function that is checked."""
    solution_column: str | None = "canonical_solution"
    """Column with a reference solution, whose bits per byte after the prompt are measured; null for none."""
    run_code: bool | None = None
    """Whether the programs that the model writes are run, in a sandbox. It must be said: without, the reference
    solutions alone are measured."""
    samples: int = Field(default=1, ge=1)
    """Programs of each problem; pass@10 and pass@100 are measured where there are as many."""
    temperature: float = Field(default=0.0, ge=0)
    """0 writes the likeliest token each time; more draws tokens, from log-probabilities divided by this. Codex: 0.2 for
    pass@1, 0.8 for pass@100."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Tokens that the model may write."""
    stop: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    """Texts that end a program: those of Codex, section 2.3: what follows the function."""
    seconds: int = Field(default=3, ge=1)
    """Of computing, for each program."""
    megabytes: int = Field(default=512, ge=128)
    """Of memory, for each program."""

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty text ends every program before it begins")
        return value

    @model_validator(mode="after")
    def _said(self) -> CodeTask:
        if self.run_code is None:
            raise ValueError(
                f"end task '{self.name}' runs programs that the model writes, in a sandbox: allow it with `run_code: "
                "true`, or measure reference solutions alone with `run_code: false`"
            )
        if not self.run_code and self.solution_column is None:
            raise ValueError(
                f"end task '{self.name}' measures nothing with `run_code: false` and `solution_column: null`"
            )
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"`samples: {self.samples}` would all be the same with `temperature: 0`; set it above 0")
        return self


@dataclass(frozen=True)
class Problem:
    """A problem.

    Attributes:
        prompt: head of the function.
        tests: source that defines ``check``.
        entry_point: name of the function.
        solution: the rest of the function; None where none is read.
    """

    prompt: str
    tests: str
    entry_point: str
    solution: str | None = None

    def program(self, rest: str) -> str:
        """What is run: the prompt with a rest of the function, and its tests behind."""
        return f"{self.prompt}{rest}\n{self.tests}\ncheck({self.entry_point})\n"


def read_problems(task: CodeTask) -> list[Problem]:
    """The problems.

    Raises:
        DataError: a file cannot be read, a column is missing or holds something else, or there is no problem.
    """
    columns = [task.tests_column, task.entry_point_column]
    own = [task.solution_column] if task.solution_column is not None else []

    def problem(row: Row) -> Problem:
        texts = [_text(row, column) for column in [*columns, *own]]
        if not texts[1].isidentifier():
            raise DataError(
                f"{row.where}: column '{task.entry_point_column}' must name a function (got {texts[1][:80]!r})."
            )
        return Problem(filled(task.prompt, row), *texts)

    return drawn(task, [problem(row) for row in rows(task, [*columns, *own])])


def _text(row: Row, column: str) -> str:
    value: Any = row.values[column]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{row.where}: column '{column}' must hold text (got {value!r}).")
    return value
