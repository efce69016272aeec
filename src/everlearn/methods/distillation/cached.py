"""The predictions of a teacher, stored in a file so that no second model is in memory during training."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.files import writing
from everlearn.methods.distillation.comparisons import Distance
from everlearn.methods.stage import Batch, Stage
from everlearn.model.objectives import IGNORE, View
from everlearn.model.training_mode import evaluating
from everlearn.model.vocabulary_head import LOGITS_PER_CHUNK, logits_of


class CachedAnswers:
    """The k most likely tokens of a model at each label of the training rows of a domain, computed before training.

    All other tokens are combined: probabilities p_1 … p_k and p_rest = 1 − Σ p_i are compared with those of the student
    for the same tokens and the rest. A divergence of combined distributions is at most that of the full ones (by the
    log sum inequality), equals it if k is all tokens but one, and is 0 if the student equals its teacher. A softmax
    over the k tokens alone would teach the student that all others are impossible.

    The model is evaluated in float32 and without dropout, once for each distinct row that the stage will train on, in
    training order; the source is then reset. The predictions are in an unnamed file in the temporary folder of the
    system (``TMPDIR``), 8 k + 4 bytes per label, and are read through memory maps. A row is found by its content, so
    passes, shuffles and mixtures do not matter; rows that another method adds, such as replayed ones, are not found.
    Every process writes its own file.

    Args:
        stage: the stage that begins, with its model at the starting weights.
        top_k: k.
        temperature: T, by which logits are divided.

    Raises:
        MethodError: no row has a label.

    Attributes:
        rows: number of rows with stored predictions.
        looked_up: number of rows that training has looked up.
        found: number of those that were found.
    """

    def __init__(self, stage: Stage, top_k: int, temperature: float) -> None:
        self.temperature = temperature
        self.looked_up = self.hits = 0
        known: dict[int, int] = {}
        lengths: list[int] = []
        with writing(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as file, ExitStack() as phases:
            model, source, start = stage.answering, stage.source, stage.source.state_dict()
            total = stage.steps * stage.rows_per_step
            layout: np.dtype[Any] = np.dtype(np.uint8)
            if not source.in_training_order and source.size is not None:
                total = source.size
            try:
                done = phases.enter_context(stage.phase(f"Storing predictions before {stage.domain}", total))
                for first in range(0, total, stage.batch_size):
                    blocks = list(islice(source, min(stage.batch_size, total - first)))
                    batch = stage.objective.collate(blocks, list(range(first, first + len(blocks))))
                    new = []
                    for row, key in enumerate(_keys(batch)):
                        if key not in known:
                            known[key] = len(known)
                            new.append(row)
                    if new:
                        new_rows = {name: value[new] for name, value in batch.items()}
                        answers, counts = _predictions(stage, model, new_rows, top_k, temperature)
                        layout = answers.dtype
                        lengths += counts
                        file.write(answers.tobytes())
                    done(first + len(blocks))
            finally:
                source.load_state_dict(start)
            if not any(lengths):
                raise MethodError(
                    f"The {total:,} rows that '{stage.domain}' trains on have no labels, so there are no predictions "
                    "to store. Set `top_k: null`, or look at the domain's text."
                )
            file.flush()
            offsets = np.cumsum([0, *lengths], dtype=np.int64)
            self._answers = np.memmap(file, layout, mode="r", shape=(int(offsets[-1]),))
            self.rows = len(known)
            keys, places = np.array(list(known), np.uint64), np.array(list(known.values()), np.int64)
            order = np.argsort(keys)
            self._offsets, self._keys, self._places = _mapped(offsets), _mapped(keys[order]), _mapped(places[order])

    def beside(self, batch: Batch, of: Distance, host: Batch | None = None) -> View:
        """Return a view of the batch's own rows with a loss against the stored predictions (see `answers_beside`).

        Args:
            batch: locates the labels. The losses of rows that are not stored are 0.
            of: distance between [n, k + 1] log-probabilities of teacher and student, the last those of all other
                tokens.
            host: the same batch on the CPU: rows are looked up there, as reading `batch` would wait for its device.
        """
        labels, host = batch["labels"], batch if host is None else host
        at = (host["labels"] != IGNORE).cpu().numpy()
        known = np.zeros(at.shape, bool)
        parts = []
        for row, place in enumerate(self._find(_keys(host))):
            if place is not None:
                known[row] = at[row]
                parts.append(self._answers[self._offsets[place] : self._offsets[place + 1]])
        self.looked_up, self.hits = self.looked_up + len(labels), self.hits + len(parts)
        answers = np.concatenate(parts) if parts else self._answers[:0]
        width, flat = answers["nats"].shape[1], known.flatten()
        likeliest, nats = np.zeros((flat.size, width - 1), np.int64), np.zeros((flat.size, width), np.float32)
        likeliest[flat], nats[flat] = answers["words"], answers["nats"]
        stored, words, old = (_to_device(values, labels.device) for values in (flat, likeliest, nats))

        def distance(logits: Tensor, labels: Tensor, at: slice) -> Tensor:
            new = with_rest(F.log_softmax(logits / self.temperature, -1), words[at])
            return of(old[at], new).masked_fill(~stored[at], 0)

        return View(None, labels=labels, positions=batch.get("positions"), loss=distance)

    def _find(self, keys: list[int]) -> list[int | None]:
        """Return the places of rows by their keys; None for unknown rows."""
        array = np.array(keys, np.uint64)
        at = np.searchsorted(self._keys, array).clip(max=len(self._keys) - 1)
        pairs = zip(self._keys[at] == array, self._places[at], strict=True)
        return [int(place) if same else None for same, place in pairs]


def with_rest(likely: Tensor, words: Tensor) -> Tensor:
    """Return the log-probabilities of some tokens, [n, k], and of all others combined: [n, k + 1] from [n, V]."""
    others = likely.scatter(1, words, float("-inf")).logsumexp(1, keepdim=True)
    return torch.cat([likely.gather(1, words), others], 1)


def _to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device asynchronously, from pinned memory for a GPU."""
    tensor = torch.from_numpy(values)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _mapped(values: np.ndarray) -> np.ndarray:
    """Return the array as a memory map of an unnamed file, which disappears with the map or the process."""
    with tempfile.TemporaryFile() as file:
        file.write(values.tobytes())
        file.flush()
        return np.memmap(file, values.dtype, mode="r", shape=values.shape)


def _predictions(
    stage: Stage, model: nn.Module, batch: Batch, top_k: int, temperature: float
) -> tuple[np.ndarray, list[int]]:
    """Return the predictions of the model at all labels of a batch, row after row, and the number of labels per row."""
    batch = {name: value.to(next(model.parameters()).device) for name, value in batch.items()}
    labelled = batch["labels"] != IGNORE
    parts = []
    with torch.no_grad(), evaluating(model):
        features = stage.objective.label_features(model, batch)[labelled.flatten()]
        vocabulary = logits_of(model, features[:1]).shape[-1]
        k = min(top_k, vocabulary - 1)
        dtype = np.dtype([("words", "<i4", (k,)), ("nats", "<f4", (k + 1,))])
        for part in features.split(max(1, LOGITS_PER_CHUNK // vocabulary)):
            likely = F.log_softmax(logits_of(model, part) / temperature, -1)
            words = likely.topk(k).indices
            answers = np.empty(len(part), dtype)
            answers["words"], answers["nats"] = words.cpu().numpy(), with_rest(likely, words).cpu().numpy()
            parts.append(answers)
    return np.concatenate(parts), labelled.sum(1).tolist()


def _keys(batch: Batch) -> list[int]:
    """Return a 64-bit key for each row of a batch, computed from its inputs and labels without padding."""
    ids, labels = batch["input_ids"], batch["labels"].cpu().numpy()
    mask = batch.get("attention_mask")
    real = (mask == 1 if mask is not None and mask.shape == ids.shape else torch.ones_like(ids) == 1).cpu().numpy()
    read = [batch[name].cpu().numpy() for name in ("input_ids", "position_ids") if name in batch]
    targets = [batch["positions"].cpu().numpy(), labels] if "positions" in batch else [labels]
    keys = []
    for row, labelled in enumerate(labels != IGNORE):
        width = int(np.flatnonzero(labelled)[-1]) + 1 if labelled.any() else 0
        content = hashlib.blake2b(digest_size=8)
        for part in (*(values[row][real[row]] for values in read), *(values[row][:width] for values in targets)):
            content.update(len(part).to_bytes(8, "little") + part.tobytes())
        keys.append(int.from_bytes(content.digest(), "little"))
    return keys
