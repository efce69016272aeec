"""Read programming problems: a function's head, its tests and a solution, as in HumanEval (arXiv 2107.03374)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from everlearn.data.readers import Row
from everlearn.errors import DataError
from everlearn.tasks.prompts import Asked, drawn, filled, rows


class CodeTask(Asked):
    """Programming problems: the model completes a function, which is run on the problem's tests (pass@k)."""

    kind: Literal["code"] = "code"
    """The model completes a function, which is run on tests in a sandbox; nothing is fine-tuned."""
    prompt: str = "{prompt}"
    """What the model reads, and the beginning of its program; `{column}` stands for a column's value."""
    tests_column: str = "test"
    """Column with the tests: the source of a function `check(candidate)`."""
    entry_point_column: str = "entry_point"
    """Column with the name of the function to test."""
    solution_column: str | None = "canonical_solution"
    """Column with a reference solution, whose bits per byte after the prompt are measured; null for none."""
    run_code: bool | None = None
    """Whether to run the model's programs in a sandbox. Required. If false, only the reference solutions are scored."""
    samples: int = Field(default=1, ge=1)
    """Number of programs per problem; pass@10 and pass@100 need at least 10 and 100."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 for greedy decoding. Codex: 0.2 for pass@1, 0.8 for pass@100."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Maximum number of generated tokens."""
    stop: tuple[str, ...] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    """Texts that end a program. Default: those of Codex, section 2.3, which begin what follows the function."""
    seconds: int = Field(default=3, ge=1)
    """Limit on the CPU time of each program."""
    megabytes: int = Field(default=512, ge=128)
    """Limit on the memory of each program."""

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty text ends every program before it begins")
        return value

    @model_validator(mode="after")
    def _runs_or_measures(self) -> CodeTask:
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
    """A programming problem.

    Attributes:
        prompt: the head of the function.
        tests: source that defines ``check``.
        entry_point: name of the function.
        solution: reference completion of the function; None if there is none.
    """

    prompt: str
    tests: str
    entry_point: str
    solution: str | None = None

    def program(self, rest: str) -> str:
        """Return the source to run: the prompt, a completion of the function, and the tests."""
        return f"{self.prompt}{rest}\n{self.tests}\ncheck({self.entry_point})\n"


def read_problems(task: CodeTask) -> list[Problem]:
    """Read the problems.

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
