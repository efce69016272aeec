"""``everlearn merge``: merge existing models into one, without training."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everlearn.commands.evaluate import Named, named
from everlearn.errors import RecipeError
from everlearn.evaluation.build import BASE
from everlearn.learner import ContinualLearner
from everlearn.merging import MergedModel, make_merge_method, measure, open_checkpoints, write_merged
from everlearn.run.progress import Reporter
from everlearn.run.writable import check_new, is_run


def merge(
    checkpoints: Sequence[str | Path],
    folder: Path | str,
    method: str = "mean",
    options: Mapping[str, Any] | None = None,
    *,
    base: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    blocks: int = 64,
    reporter: Reporter | None = None,
) -> MergedModel:
    """Merge models into a folder that loads with plain transformers.

    ```python
    everlearn.merge(["runs/first"], "merged", "ties", {"keep": 0.2})
    ```

    Args:
        checkpoints: hub ids, folders, ``LABEL=PATH``, or runs, which stand for their stages; adapters are added to
            their base model first.
        folder: the new folder; it must not exist, or be empty.
        method: name of the merging method (``everlearn.merging.MERGE_METHODS``).
        options: options of the merging method.
        base: the common base model, for merging methods that use it. Default: for stages of one run, its base
            model.
        texts: for merging methods that evaluate the checkpoints on text: one for all, or one for each.
        blocks: rows that are read of a text.
        reporter: shows progress; None for no output.

    Raises:
        RecipeError: the merging method, an option or the number of checkpoints is wrong.
        ModelError: a checkpoint cannot be read, or they do not fit together.
        RunError: the folder is taken, or cannot be written.
    """
    folder, chosen = Path(folder), make_merge_method(method, options or {})
    listed = named([str(each) for each in checkpoints])
    chosen.check(len(listed))
    if base is not None and not chosen.needs_base:
        raise RecipeError(
            f"`--base` is for merging methods that begin at a base model; `{method}` does not. List it as a checkpoint."
        )
    check_new(folder)
    reporter = reporter or Reporter()
    with tempfile.TemporaryDirectory() as thrown_away:
        scratch = Path(thrown_away)
        if chosen.needs_base:
            listed = [_base(base, listed, method, scratch), *listed]
        reporter.say("Opening the checkpoints")
        pairs = [(each.label, each.path) for each in listed]
        opened = open_checkpoints(pairs, scratch, as_loaded=chosen.reads == "fisher")  # it is known by these names
        began, models = (opened[0], opened[1:]) if chosen.needs_base else (None, opened)
        reading = (
            reporter.activity("Reading the text", len(models)) if texts else contextlib.nullcontext(lambda _: None)
        )
        with reading as done:
            measurements = measure(chosen, models, [str(text) for text in texts], blocks, scratch, done)
        with reporter.activity("Merging", len(models[-1].weights.shapes())) as done:
            return write_merged(folder, chosen, models, began, measurements, progress=done)


def _base(path: str | Path | None, listed: Sequence[Named], method: str, scratch: Path) -> Named:
    """Return the model of `--base`; without it, the base model of the run to which all checkpoints belong."""
    if path is not None:
        if is_run(Path(path)):
            raise RecipeError(f"`--base` is '{path}', which is a run. Name one model: one of its stages, or its base.")
        (base,) = named([str(path)])
        return replace(base, label=BASE if any(each.label == base.label for each in listed) else base.label)
    runs = {Path(each.path).resolve().parent for each in listed}
    if len(runs) != 1 or not is_run(run := next(iter(runs))):
        raise RecipeError(f"`--method {method}` begins at the base model of the checkpoints: name it (`--base`).")
    return Named(BASE, ContinualLearner.open(run).saved_after(0, scratch / BASE))


def options_of(settings: Sequence[str]) -> Mapping[str, Any]:
    """Parse the options of a merging method from the command line: ``keep=0.2``.

    Raises:
        RecipeError: one is no setting, or is given twice.
    """
    from everlearn.config.reading import read_value

    options: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise RecipeError(f"`--set` is '{text[:80]}': write key=value, for example keep=0.2.")
        if key in options:
            raise RecipeError(f"`--set` has `{key}` more than once. Remove one of them.")
        options[key] = read_value(value, key)
    return options
