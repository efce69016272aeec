"""Fine-tune a copy of a checkpoint on labelled data and predict a test set.

As in DAS (arXiv 2302.03241, and its released code): AdamW with weight decay 0.01 on all parameters, a learning rate
that falls linearly to 0 without warm-up, a fresh head, no gradient clipping, the last epoch (nothing is selected on
held-out data), several seeds. Texts of similar length share a batch, which is padded to its longest text.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
from transformers.utils import logging as transformers_logging

from everlearn.errors import DataError, ModelError, TrainingDiverged, first_line
from everlearn.evaluation.cell import Cell, classification_cell
from everlearn.evaluation.statistics import generator
from everlearn.evaluation.task import Conditions
from everlearn.model.loading import config_of
from everlearn.predictors.predictor import Checkpoint, Predictor, Prepare, models_of
from everlearn.seeding import seeded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from everlearn.tasks.glue_formats import GlueTask
    from everlearn.tasks.labelled import CodelengthTask, EndTask, LabelledSet

    Fitted = EndTask | CodelengthTask | GlueTask

WEIGHT_DECAY = 0.01
MEGA_BATCHES = 50
"""Batches that are sorted by length together. More of them pad less, fewer keep the order more random."""
PAD_TO = 8
_LOOK_EVERY = 50
_EVALUATION_BATCHES = 4
"""Factor of the batch size in prediction, which has no backward pass."""

Encoded = list[dict[str, list[int]]]


def steps_of(task: EndTask | GlueTask, train: LabelledSet) -> int:
    """Return the optimizer steps of one fine-tuning."""
    return max(1, round(task.epochs * -(-len(train.texts) // task.batch_size)))


class TuningOptions(TypedDict, total=False):
    """Options of a fine-tuning."""

    prepare: Prepare | None
    """Takes the classifier before training and returns the one to train. Methods that evaluate with adapters, gates or
    prompts add them here. Frozen parameters are not trained."""
    device: torch.device | str
    bf16: bool
    """Compute in bfloat16 (autocast); weights stay float32."""
    progress: Callable[[int], None] | None
    """Called with the number of optimizer steps done, out of :func:`steps_of`, times the seeds if there are several."""


def options_of(conditions: Conditions, done: int = 0) -> TuningOptions:
    """Return the options under which a task is measured, after so many steps."""
    return TuningOptions(device=conditions.device, bf16=conditions.bf16, progress=_further(conditions.progress, done))


def _further(progress: Callable[[int], None] | None, done: int) -> Callable[[int], None] | None:
    """Return a progress function that counts on from `done`."""
    return None if progress is None else lambda more: progress(done + more)


def evaluate_task(
    model: str | Path | nn.Module | Predictor,
    tokenizer: PreTrainedTokenizerBase,
    task: EndTask,
    train: LabelledSet,
    test: LabelledSet,
    seeds: Sequence[int],
    **options: Unpack[TuningOptions],
) -> Cell:
    """Fine-tune once per seed; arguments as of :func:`fine_tune`."""
    predictions = by_seed(model, tokenizer, task, train, test, seeds, **options).argmax(-1)
    classes = np.unique(np.asarray(train.labels, np.int64))
    return classification_cell(test.labels, predictions, classes, tuple(seeds), task.f1, task=task.name)


def by_seed(
    model: str | Path | nn.Module | Predictor,
    tokenizer: PreTrainedTokenizerBase,
    task: EndTask | GlueTask,
    train: LabelledSet,
    test: LabelledSet,
    seeds: Sequence[int],
    **options: Unpack[TuningOptions],
) -> NDArray[np.float64]:
    """Return what :func:`probabilities_after` does, for each seed, [seeds, len(test.texts), classes]."""
    steps, progress, probabilities = steps_of(task, train), options.get("progress"), []
    for number, seed in enumerate(seeds):
        own = options | TuningOptions(progress=_further(progress, number * steps))
        probabilities.append(probabilities_after(model, tokenizer, task, train, test, steps, seed=seed, **own))
    return np.stack(probabilities)


def fine_tune(
    model: str | Path | nn.Module | Predictor,
    tokenizer: PreTrainedTokenizerBase,
    task: EndTask,
    train: LabelledSet,
    test: LabelledSet,
    *,
    seed: int,
    **options: Unpack[TuningOptions],
) -> NDArray[np.int64]:
    """Fine-tune a copy with a fresh classification head and predict the test set.

    The head, the order and dropout depend on `seed` only, so a lost cell can be measured again, on CPU with identical
    bits. Texts are cut to the smallest of ``task.max_length`` and the longest inputs of tokenizer and model.

    Args:
        model: folder or hub id of a checkpoint, a model (which is not changed), or a predictor, whose models are all
            fine-tuned.
        tokenizer: the model's tokenizer.
        task: epochs, learning_rate, batch_size, max_length.
        train: labelled texts to learn from.
        test: labelled texts to predict; their labels are not read.
        seed: seed of head, order and dropout.
        options: see :class:`TuningOptions`.

    Returns:
        Predicted label numbers, int64 [len(test.texts)].

    Raises:
        ModelError: transformers has no classification head for the architecture, or there is no token to pad with.
        TrainingDiverged: the loss is not finite.
    """
    steps = steps_of(task, train)
    return probabilities_after(model, tokenizer, task, train, test, steps, seed=seed, **options).argmax(-1)


def probabilities_after(
    model: str | Path | nn.Module | Predictor,
    tokenizer: PreTrainedTokenizerBase,
    task: Fitted,
    train: LabelledSet,
    test: LabelledSet,
    steps: int,
    *,
    seed: int,
    **options: Unpack[TuningOptions],
) -> NDArray[np.float64]:
    """Return the class probabilities, [len(test.texts), classes], after `steps` steps of :func:`fine_tune`.

    If the labels of `train` are values, so that it has no label names, the model has one output, learns with the mean
    squared error, and its outputs are returned, [len(test.texts), 1].
    """
    place, bf16 = torch.device(options.get("device", "cpu")), options.get("bf16", False)

    def tune(checkpoint: Any, prepare: Prepare | None) -> nn.Module:
        with seeded("end task", seed):
            classifier: Any = _classifier(checkpoint, tokenizer, len(train.label_names), task.name)
            classifier.to(place)
            if prepare is not None:
                classifier = prepare(classifier)
            encode = _Encoder(tokenizer, _limit([classifier], tokenizer, task), classifier.config, task.name)
            _train(classifier, encode, task, train, steps, seed, place, bf16, options.get("progress"))
            trained: nn.Module = classifier.eval()
            return trained

    predictor = model if isinstance(model, Predictor) else Checkpoint(model, None, prepare=options.get("prepare"))  # type: ignore[arg-type]
    tuned = predictor.fine_tuned(tune)
    classifiers = models_of(tuned)
    encode = _Encoder(tokenizer, _limit(classifiers, tokenizer, task), classifiers[0].config, task.name)
    size, regression = _EVALUATION_BATCHES * task.batch_size, not train.label_names
    return _predict(tuned, encode, encode(test, "test"), size, place, bf16, regression)


def _limit(models: Sequence[nn.Module], tokenizer: PreTrainedTokenizerBase, task: Fitted) -> int:
    """Return the number of tokens to which a text is cut."""
    return min(task.max_length, tokenizer.model_max_length, *(_positions(model) for model in models))


def _train(
    model: nn.Module,
    encode: _Encoder,
    task: Fitted,
    train: LabelledSet,
    total: int,
    seed: int,
    device: torch.device,
    bf16: bool,
    progress: Callable[[int], None] | None,
) -> None:
    regression = not train.label_names
    rows, labels = (
        encode(train, "train"),
        torch.as_tensor(train.labels, dtype=torch.float32 if regression else torch.int64),
    )
    lengths = [len(row["input_ids"]) for row in rows]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=task.learning_rate, weight_decay=WEIGHT_DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    epochs = (grouped_batches(lengths, task.batch_size, seed, epoch) for epoch in itertools.count())
    summed = torch.zeros((), device=device)
    model.train()
    for step, chosen in enumerate(itertools.islice(itertools.chain.from_iterable(epochs), total), start=1):
        batch = encode.pad([rows[i] for i in chosen], device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = model(**batch).logits
        right = labels[chosen].to(device)
        loss = F.mse_loss(logits.float()[:, 0], right) if regression else F.cross_entropy(logits.float(), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        summed += loss.detach()
        # Checked only now and then, since reading the loss synchronises a GPU.
        if (step % _LOOK_EVERY == 0 or step == total) and not torch.isfinite(summed):
            raise TrainingDiverged(
                f"Fine-tuning end task '{task.name}' (seed {seed}) has a loss that is not finite by step {step} of "
                f"{total}. Lower its `learning_rate` (now {task.learning_rate})."
            )
        if progress is not None:
            progress(step)


def grouped_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return the batches of one epoch in random order, each of rows of similar length.

    Rows are shuffled, sorted by length within groups of :data:`MEGA_BATCHES` batches, cut into batches, and the batches
    are shuffled. Every row is in exactly one batch.
    """
    rng = generator("end task", seed, epoch)
    order, size = rng.permutation(len(lengths)), np.asarray(lengths)
    group = MEGA_BATCHES * batch_size
    parts = [order[start : start + group] for start in range(0, len(order), group)]
    batches: list[NDArray[np.int64]] = []
    for part in parts:
        by_length = part[np.argsort(size[part], kind="stable")]
        batches += [by_length[start : start + batch_size] for start in range(0, len(part), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


class _Encoder:
    """Turn texts into token rows, and token rows into padded batches."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int, config: Any, task: str) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self.config = config
        self.task = task
        # Other columns of a tokenizer (token types) are padded with 0.
        self.padding = {"input_ids": config.pad_token_id}

    def __call__(self, data: LabelledSet, part: str) -> Encoded:
        """Return token rows, cut to the limit."""
        raw = self.tokenizer(list(data.texts), data.pairs, truncation=True, max_length=self.limit, padding=False)
        keys = [key for key in raw if key != "attention_mask"]
        rows = [{key: raw[key][i] for key in keys} for i in range(len(data.texts))]
        if self.config.is_encoder_decoder:
            self._check_ends(rows, part)
        for row in rows:
            if not row["input_ids"]:  # an empty text under a tokenizer without special tokens has nothing to attend to
                row.update({key: [self.padding.get(key, 0)] for key in keys})
        return rows

    def _check_ends(self, rows: Encoded, part: str) -> None:
        """Check that every text has the same number of end tokens.

        Encoder-decoder classifiers read the last end token, and need the same number in every text of a batch.
        """
        end = self.config.eos_token_id
        counts = [row["input_ids"].count(end) for row in rows]
        usual = counts[0] if counts else 0
        if usual == 0:
            raise ModelError(
                f"End task '{self.task}' cannot be fine-tuned: the tokenizer adds no end-of-text token, which an "
                "encoder-decoder classifier reads its answer from. Use the tokenizer that belongs to the model."
            )
        if (odd := next((i for i, count in enumerate(counts) if count != usual), None)) is not None:
            raise DataError(
                f"Example {odd + 1} of the {part} set of end task '{self.task}' contains the end-of-text token "
                f"'{self.tokenizer.eos_token}' as text, which an encoder-decoder classifier cannot tell from the end. "
                "Remove it, or put the two parts into two columns (`text_pair_column`)."
            )

    def pad(self, rows: Encoded, device: torch.device) -> dict[str, Tensor]:
        """Return a batch, padded on the right to its longest row, rounded up to a multiple of :data:`PAD_TO`."""
        width = -(-max(len(row["input_ids"]) for row in rows) // PAD_TO) * PAD_TO
        batch = {}
        for key in rows[0]:
            value = self.padding.get(key, 0)
            batch[key] = torch.tensor([row[key] + [value] * (width - len(row[key])) for row in rows])
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
        return {key: tensor.to(device) for key, tensor in batch.items()}


def _predict(
    predictor: Predictor,
    encode: _Encoder,
    rows: Encoded,
    batch_size: int,
    device: torch.device,
    bf16: bool,
    regression: bool,
) -> NDArray[np.float64]:
    order = np.argsort([len(row["input_ids"]) for row in rows], kind="stable")
    answer = predictor.values if regression else predictor.class_probabilities
    parts = []
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            parts.append(answer(encode.pad([rows[i] for i in chosen], device)).cpu().numpy())
    return np.concatenate(parts)[np.argsort(order, kind="stable")]


def _classifier(
    model: str | Path | nn.Module, tokenizer: PreTrainedTokenizerBase, labels: int, task: str
) -> PreTrainedModel:
    """Load a float32 copy with a fresh head of `labels` outputs (0: one output, for values) and a padding token."""
    if isinstance(model, nn.Module):
        with tempfile.TemporaryDirectory() as folder:
            with _without_notices():
                model.save_pretrained(folder)  # type: ignore[operator]
            return _classifier(folder, tokenizer, labels, task)
    pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), None)
    if pad is None:
        raise ModelError(
            f"End task '{task}' needs a tokenizer with a padding or end-of-text token; '{tokenizer.name_or_path}' has "
            "neither. Set `model.tokenizer` to one that does."
        )
    with _without_notices():
        try:
            config = config_of(str(model))
            if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
                raise ModelError(
                    f"End task '{task}' cannot be fine-tuned on a model of type '{config.model_type}': transformers "
                    "has no classification head for it. Remove the task from `end_tasks`."
                )
            config.num_labels = max(1, labels)
            config.pad_token_id = pad
            return AutoModelForSequenceClassification.from_pretrained(model, config=config, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The checkpoint '{model}' cannot be loaded for end task '{task}': {first_line(error)}"
            ) from error


def _positions(model: nn.Module) -> int:
    """Return the model's longest input, a multiple of :data:`PAD_TO`.

    Positions that a method uses before the text (``taken_positions``) are subtracted.
    """
    config: Any = model.config
    longest: int = getattr(config, "max_position_embeddings", None) or sys.maxsize
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            longest -= padding + 1  # RoBERTa numbers positions from padding_idx + 1
        longest -= getattr(module, "taken_positions", 0)
    return longest // PAD_TO * PAD_TO


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Silence transformers' warning about the fresh head, which is intended."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
