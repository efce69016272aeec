"""Look for the held-out text and test examples of a run in its training text."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from everlearn.data.corpus import Domain
from everlearn.data.leaks import LeakCheck, check_leaks, examples_of, held_out_of, kept_rows_of
from everlearn.errors import RunError
from everlearn.evaluation import make_task
from everlearn.evaluation.task import TaskConfig
from everlearn.run.open_run import OpenRun
from everlearn.tasks.held_out import HeldOut


def check_run_leaks(run: OpenRun, corpora: Sequence[Domain], tasks: Sequence[TaskConfig]) -> LeakCheck:
    """Look for held-out text and test examples in training text (:mod:`everlearn.data.leaks`).

    Args:
        corpora: the corpora that are read. For the others, the held-out rows in the run folder are looked for.
        tasks: the end tasks whose examples are looked for.
    """
    tests = {examples_of(task.name): make_task(task).examples() for task in tasks}
    for corpus in run.corpora:
        path = run.folder.sets / f"{corpus.name}.safetensors"
        if corpus not in corpora and path.is_file():
            with contextlib.suppress(RunError):  # damaged: it is drawn again, or refused, when it is scored
                tests[kept_rows_of(corpus.name)] = _texts(run, HeldOut.load(path))
    with run.processes.main_process_first():
        outcome = check_leaks(corpora, tests, run.recipe.data.cache, run.reporter.activity)
    called = {words(corpus.name): corpus.name for corpus in run.corpora for words in (held_out_of, kept_rows_of)}
    run.leaked |= outcome.leaked(called | {examples_of(task.name): task.name for task in tasks})
    return outcome


def _texts(run: OpenRun, held_out: HeldOut) -> list[str]:
    """Decode held-out rows to texts; for an encoder-decoder, the prompt and the answer."""
    decode = functools.partial(run.setting().tokenizer.decode, skip_special_tokens=True)
    parts = ("input_ids", "labels") if run.setting().kind == "encoder-decoder" else ("input_ids",)
    rows = held_out.blocks.take(range(len(held_out.blocks)))
    return [" ".join(decode(row[part]) for part in parts) for row in rows]
