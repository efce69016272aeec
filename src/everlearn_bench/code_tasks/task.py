"""Evaluate generated programs by running them: pass@k (arXiv 2107.03374, section 2.1).

With c right programs of n for a problem, pass@k is the mean over problems of 1 − C(n−c, k) / C(n, k), the unbiased
estimate (eq. 1) of the probability that at least one of k programs is right. A small model solves no problem, so its
pass@1 stays 0. The bits per byte of reference solutions after their prompts also show small changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import comb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from everlearn.data.blocks import hash_of
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Floats, Metric, register_mean, register_metric
from everlearn.evaluation.task import BYTES_PER_TOKEN, Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.predictors.decoding import Ending
from everlearn.predictors.predictor import Predictor
from everlearn.seeding import seed_for
from everlearn.tasks.likelihood import Pair, rows_of, scored
from everlearn.tasks.prompted import Asking, check_writes, padded
from everlearn_bench.code_tasks.problems import CodeTask, Problem, read_problems
from everlearn_bench.code_tasks.sandbox import Allowance, Verdict, check_available, run_programs

AT = (1, 10, 100)
"""The k of pass@k."""
PAD_TO = 8


def pass_at(k: int, programs: int, right: int) -> float:
    """Return 1 − C(n−c, k) / C(n, k): the chance that one of k programs is right, drawn from n with c right ones."""
    return 1.0 - comb(programs - right, k) / comb(programs, k)


@register_kind(CodeTask)
class Programs(Task):
    """Generate the rest of each function and run it; score the reference solutions."""

    kind = "code"
    config: CodeTask

    @cached_property
    def problems(self) -> list[Problem]:
        """Return the problems; raise ``DataError`` if they cannot be read."""
        return read_problems(self.config)

    def check(self) -> str:
        if self.config.run_code:
            check_available()
        return f"{len(self.problems):,} programming problems"

    def notes(self) -> list[str]:
        if self.config.run_code:
            return []
        return [f"The programs of '{self.name}' were not run (`run_code: false`): there is no pass@1."]

    def check_model(self, kind: Kind) -> None:
        check_writes(self.config, kind)

    def fingerprint(self) -> str:
        options = self.config.model_dump_json(exclude={"name", "domain", "test"})
        return hash_of(self.kind, options, [(p.prompt, p.tests, p.entry_point, p.solution) for p in self.problems])

    def texts(self) -> Sequence[str]:
        return [problem.prompt for problem in self.problems]

    def work(self, seeds: int) -> Work:
        config, count = self.config, len(self.problems)
        prompts = sum(len(problem.prompt.encode()) for problem in self.problems) // (BYTES_PER_TOKEN * count)
        written = count * config.samples if config.run_code else 0
        solutions = count if config.solution_column is not None else 0
        return Work(units=2 * written + solutions, rows=written + solutions, tokens=prompts + config.max_new_tokens)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        asking = Asking(self.config, predictor, conditions)
        outcomes: dict[str, NDArray[Any]] = {}
        properties: dict[str, NDArray[Any]] = {}
        texts: list[str] = []
        progress = Progress(conditions.progress)
        if self.config.run_code:
            written = self.written(asking, predictor, progress)
            texts = written[0]
            outcomes |= self.verdicts(written, progress)
        if self.config.solution_column is not None:
            pairs = [_solution(problem) for problem in self.problems]
            nats, sizes = np.zeros(len(pairs)), np.zeros(len(pairs), np.int64)
            # A solution longer than the model's longest input has no bytes and no nats, so it does not count.
            for option, loss in scored(
                asking, predictor, rows_of(asking, [[pair] for pair in pairs], "", leave_out=True)
            ):
                nats[option.question], sizes[option.question] = loss, len(pairs[option.question][1].encode())
                progress.more()
            outcomes["solution_nats"], properties["solution_bytes"] = nats, sizes
        facts = {
            "verdicts": [verdict.name.lower() for verdict in Verdict],
            "entry_points": [problem.entry_point for problem in self.problems],
        }
        mark = self.fingerprint()
        return Cell(
            self.kind, self.name, conditions.row, outcomes, properties, facts, texts=tuple(texts), fingerprint=mark
        )

    def verdicts(self, written: Sequence[Sequence[str]], progress: Progress | None = None) -> dict[str, NDArray[Any]]:
        """Run the completions and count: ``verdicts`` [samples, problems], ``pass_at_<k>`` [problems].

        Args:
            written: for each sample, a completion of each problem's function.
            progress: called with the number of finished programs; None for no progress.
        """
        programs = [p.program(rest) for rests in written for p, rest in zip(self.problems, rests, strict=True)]
        limits = Allowance(self.config.seconds, self.config.megabytes)
        ended = run_programs(programs, limits, None if progress is None else progress.more)
        outcomes = np.array(ended, np.int64).reshape(len(written), len(self.problems))
        right, count = (outcomes == Verdict.PASSED).sum(0), len(written)
        passed = {
            f"pass_at_{k}": np.array([pass_at(k, count, int(c)) for c in right], np.float64) for k in AT if k <= count
        }
        return {"verdicts": outcomes, **passed}

    def written(self, asking: Asking, predictor: Predictor, progress: Progress) -> list[list[str]]:
        """Generate completions of each problem's function, up to the first text of `stop`: a list for each sample."""
        config, encoder = self.config, asking.encoder
        most = config.max_new_tokens + (len(encoder.prefix) if asking.kind == "encoder-decoder" else 0)
        room = asking.room(most, f"Lower its `max_new_tokens` (now {config.max_new_tokens}).")
        prompts = [asking.prompt(ids, room) for ids in encoder([problem.prompt for problem in self.problems])]
        rows = [(sample, i) for sample in range(config.samples) for i in range(len(prompts))]
        rows.sort(key=lambda row: -len(prompts[row[1]]))  # rows of similar length share a batch
        written = [[""] * len(prompts) for _ in range(config.samples)]
        how, left = asking.conditions, asking.kind == "decoder"
        end = [] if encoder.end is None else [encoder.end]
        ends_with_stop = _stops_at(how.tokenizer, config.stop) if config.stop else None
        with asking():
            for start in range(0, len(rows), how.batch_size):
                chunk = rows[start : start + how.batch_size]
                batch = [prompts[i] for _, i in chunk]
                inputs = {
                    "input_ids": padded(batch, encoder.pad, PAD_TO, left=left),
                    "attention_mask": padded([[1] * len(row) for row in batch], 0, PAD_TO, left=left),
                }
                inputs = {key: value.to(torch.device(how.device)) for key, value in inputs.items()}
                ending = Ending(most, end, ends_with_stop, config.temperature, self._draws(chunk, most))
                for (sample, i), ids in zip(chunk, predictor.write(inputs, ending), strict=True):
                    text = _rest(how.tokenizer, prompts[i] if left else [], ids)
                    written[sample][i] = text[
                        : min((at for s in config.stop if (at := text.find(s)) >= 0), default=None)
                    ]
                    progress.more()
        return written

    def _draws(self, chunk: Sequence[tuple[int, int]], most: int) -> torch.Tensor | None:
        """Return random numbers for each problem's sample; they do not depend on the other rows of the batch."""
        if self.config.temperature == 0:
            return None
        seeds = (seed_for("programs", self.name, sample, problem) for sample, problem in chunk)
        return torch.tensor(np.stack([np.random.Generator(np.random.PCG64(seed)).random(most) for seed in seeds]))


class Progress:
    """Count finished units of work, and report the total to a progress callback after each one.

    Args:
        progress: called with the number of units finished so far; None if nobody wants to know.
    """

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self.progress, self.done = progress, 0

    def more(self, _: int = 0) -> None:
        """Count one more unit."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done)


def _solution(problem: Problem) -> Pair:
    """Return the prompt and the solution; white space between them belongs to the solution."""
    prompt = problem.prompt.rstrip()
    return prompt, f"{problem.prompt[len(prompt) :]}{problem.solution}"


def _stops_at(tokenizer: Any, stop: Sequence[str]) -> Callable[[Sequence[int]], bool]:
    """Return a predicate for rows that end with one of the texts; it decodes only the row's last tokens."""
    most = max(len(text.encode()) for text in stop) + 8

    def stops(ids: Sequence[int]) -> bool:
        tail = tokenizer.decode(list(ids[-most:]), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return any(text in tail for text in stop)

    return stops


def _rest(tokenizer: Any, prompt: list[int], ids: list[int]) -> str:
    """Return the generated text with its leading white space, which some tokenizers drop from a text's first word."""
    before, complete = (
        str(tokenizer.decode(part, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        for part in (prompt, prompt + ids)
    )
    return complete[len(before) :]


for _k in AT:
    register_mean(f"pass_at_{_k}", f"pass@{_k}", f"pass_at_{_k}")


def _solutions(cell: Cell) -> NDArray[Any]:
    return np.stack([cell["solution_nats"], cell["solution_bytes"].astype(np.float64)])[None]


def _bits(sums: Floats, cell: Cell) -> Floats:
    return np.asarray(sums[..., 0] / (np.log(2) * sums[..., 1]))


register_metric(
    Metric(
        "solution_bits_per_byte",
        "Bits per byte of solutions",
        "bits/byte",
        False,
        ("solution_nats", "solution_bytes"),
        _solutions,
        _bits,
    )
)
