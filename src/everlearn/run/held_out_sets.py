"""Draw the held-out blocks of a run once, and keep them in the run folder.

So a domain can be added months later, and forgetting of the earlier domains measured, without their text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everlearn import files
from everlearn.data.blocks import PackedBlocks
from everlearn.data.tokenize import Encoder
from everlearn.data.windows import Windows
from everlearn.errors import DataError, EverlearnError, RunError
from everlearn.evaluation.held_out_rows import facts_of_rows
from everlearn.run.measurement_plan import held_out_names
from everlearn.run.open_run import OpenRun
from everlearn.seeding import seed_for
from everlearn.tasks.held_out import HeldOut, HeldOutText


class HeldOutSets:
    """The held-out blocks on which a run is scored.

    Args:
        run: the open run.
    """

    def __init__(self, run: OpenRun) -> None:
        self.run, self.recipe, self.folder = run, run.recipe, run.folder
        self.domains = [domain.name for domain in self.recipe.domains]

    def names(self) -> list[str]:
        """Return the columns of held-out text: domains with held-out text, then the general text."""
        return held_out_names(self.recipe)

    def held_out(self, name: str) -> HeldOutText:
        """Return the held-out blocks of a domain: those in the run folder, or else a seeded sample, which is saved."""
        path = self._path(name)
        if not path.is_file():
            self._draw(name)
        return HeldOutText(path, name if name in self.domains else None, content=self.recipe.evaluation.content)

    def _draw(self, name: str) -> None:
        """Save a seeded sample of a domain's held-out blocks."""
        prepared = self.run.prepared(name)
        if prepared.validation is None:
            raise DataError(f"'{name}' holds out no text to measure on (`validation`).")
        blocks: PackedBlocks | Windows = prepared.validation
        format_ = self.run.setting()
        encoder = Encoder(format_.tokenizer, format_.kind)
        stride = self.recipe.evaluation.stride
        if stride is not None and "labels" not in prepared.validation.arrays:  # answers are scored in their rows
            blocks = Windows(prepared.validation, stride, encoder.end or 0)
        order = np.random.Generator(np.random.PCG64(seed_for("held out", name))).permutation(len(blocks))
        chosen = np.sort(order[: self.recipe.evaluation.blocks])
        sample = PackedBlocks.from_blocks(blocks.take(chosen), seed=0, name=name)
        one_source = not next(corpus for corpus in self.run.corpora if corpus.name == name).sources
        rows = facts_of_rows(blocks, chosen, encoder, prepared.bytes_per_token, in_order=one_source)
        HeldOut(sample, prepared.bytes_per_token, rows).save(self._path(name))

    def prepare(self) -> None:
        """Read on every process the texts whose held-out blocks are not drawn yet, and replace damaged blocks.

        Reading a text waits for all processes, and a missing sample is drawn where it is scored, in one process only.
        So the texts must be read before.

        Raises:
            RunError: held-out blocks are damaged, and their text is gone or has changed.
        """
        wrong = {name: files.fault(self._path(name)) for name in self.names()}
        missing = [name for name in self.names() if not self._path(name).is_file()]
        self.run.processes.wait_for_everyone()  # every process must have looked before one of them writes
        for name in self.names():
            if name in missing:
                self.run.prepared(name)
            elif (fault := wrong[name]) is not None:
                self._draw_again(name, fault)
        self.run.processes.wait_for_everyone()

    def _draw_again(self, name: str, wrong: str) -> None:
        path = self._path(name)
        sealed_digest = files.listed(path.parent)[path.name]
        try:
            self.run.prepared(name)
        except EverlearnError as error:
            raise RunError(
                f"{wrong}, and the text that it was drawn from can no longer be read: {error} Restore one of them "
                "from a copy: without it later models cannot be compared with earlier ones."
            ) from None
        if self.run.processes.is_main_process:
            self.run.reporter.say(f"{wrong}. It is drawn again.")
            self._draw(name)
            if files.digest(path) != sealed_digest:
                files.write_json(path.parent / files.SEAL, {**files.listed(path.parent), path.name: sealed_digest})
                raise RunError(
                    f"{wrong}, and the text of '{name}' is not what it was drawn from. Restore one of them from a "
                    "copy: without it later models cannot be compared with earlier ones."
                )

    def _path(self, name: str) -> Path:
        return self.folder.sets / f"{name}.safetensors"
