"""Measure the rank of a domain's characteristic words among a checkpoint's predictions.

For each domain, the analysis chooses the n-grams with the largest TF-IDF against the other held-out sets, and finds
the places in held-out text where one of them occurs. At each place the checkpoint predicts the first token of the
n-gram from the tokens before it. The rank of that token among the vocabulary, sorted by probability, is 1 if it is the
likeliest. The result for each checkpoint and domain is the median logarithm of these ranks. Perplexity depends on every
token, down to the commas; these ranks depend on the tokens that characterise a domain.

The analysis is from the second version of the causal study (arXiv 2402.17400), which first groups text by sentence
embeddings. Using n-grams of tokens against the other sets, without another model, is our reading of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from everlearn.data.blocks import PackedBlocks
from everlearn.diagnostics.checkpoint_distance import teller
from everlearn.errors import RecipeError
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import estimate
from everlearn.evaluation.statistics import Floats, generator
from everlearn.evaluation.task import Conditions
from everlearn.model.objectives import Masked
from everlearn.predictors import Predictor
from everlearn.predictors.predictor import at_rest, models_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from everlearn.learner import ContinualLearner

TOP, LONGEST = 20, 3
"""Number of n-grams of a domain; maximum tokens of an n-gram."""
_TWICE, _CANDIDATES, _BEFORE = 2, 2000, 8
"""Minimum occurrences of an n-gram in its domain; number of most frequent ones to weigh; tokens of a context."""
_PROBABILITIES, _RESAMPLES = 2**24, 500
Ngram = tuple[int, ...]
Place = tuple[int, int, int]
"""Block, position of an n-gram's first token, tokens of the n-gram."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of characteristic words in a run's checkpoints.

    Attributes:
        words: held-out set → its n-grams as text, by TF-IDF.
        contexts: held-out set → number of contexts; fewer than requested if there are no more.
        checkpoints: labels of the rows.
        log_rank: for each row, held-out set → median natural logarithm of the rank, with a bootstrap interval.
    """

    words: Mapping[str, Sequence[str]]
    contexts: Mapping[str, int]
    checkpoints: Sequence[str]
    log_rank: Sequence[Mapping[str, Estimate]]

    def to_json(self) -> dict[str, Any]:
        """Return the ranks as JSON data."""
        rows = [{name: asdict(estimate) for name, estimate in row.items()} for row in self.log_rank]
        return {**vars(self), "log_rank": rows}


def prediction_ranks(learner: ContinualLearner, contexts: int) -> Ranks:
    """Score every checkpoint that has weights, in up to `contexts` contexts of each held-out set.

    Raises:
        RecipeError: a domain consists of answers to prompts, not of running text.
    """
    scorer = learner.scorer()
    tasks = [scorer.held_out(name) for name in scorer.names()]
    how = scorer.conditions(0)
    if answers := [task.name for task in tasks if "labels" in task.held_out.blocks.arrays]:
        raise RecipeError(f"Prediction ranks need running text, but '{answers[0]}' consists of answers to prompts.")
    own = keywords({task.name: task.held_out.blocks for task in tasks}, how.tokenizer)
    places = {task.name: occurrences(task.held_out.blocks, own[task.name], contexts) for task in tasks}
    labels, rows = [], []
    for index in range(len(learner.recipe.domains) + 1):
        if not learner.has_weights(index):
            continue
        model, medians = learner.model_after(index).to(scorer.device), dict[str, Estimate]()
        with learner.reporter.activity(f"Ranks, {scorer.label(index)}", len(tasks)) as done:
            for number, task in enumerate(tasks, 1):
                if places[task.name]:
                    predictor = teller(scorer, index, task, model)
                    ranks = ranks_of(predictor, task.held_out.blocks, places[task.name], how)
                    medians[task.name] = _median(np.log(ranks), [row for row, _, _ in places[task.name]], task.name)
                done(number)
        labels.append(scorer.label(index))
        rows.append(medians)
    return Ranks(
        {name: [str(how.tokenizer.decode(list(ids))).strip() for ids in each] for name, each in own.items()},
        {name: len(each) for name, each in places.items()},
        labels,
        rows,
    )


# -- which n-grams -------------------------------------------------------------------------------------------------


def keywords(
    sets: Mapping[str, PackedBlocks], tokenizer: PreTrainedTokenizerBase, top: int = TOP, longest: int = LONGEST
) -> dict[str, list[Ngram]]:
    """Return the n-grams of each set with the largest tf · ln((1 + D) / (1 + df)).

    tf is the number of occurrences in the set; D is the number of documents of all other sets, and df the number of
    these that contain the n-gram. An n-gram begins with a token that begins a word, and all its tokens contain letters.

    Args:
        sets: held-out blocks by name.
        tokenizer: the model's tokenizer.
        top: number of n-grams of each set.
        longest: maximum tokens of an n-gram.
    """
    size = len(tokenizer)
    begins, letters = _kinds(sets, tokenizer)
    each = {name: _all(blocks, begins, letters, size, longest) for name, blocks in sets.items()}
    frequent = {}
    for name, (keys, _) in each.items():
        known, counts = np.unique(keys, return_counts=True)
        most = np.lexsort((known, -counts))[:_CANDIDATES]
        most = most[counts[most] >= _TWICE]
        frequent[name] = (known[most], counts[most])
    candidates = np.unique(np.concatenate([np.empty(0, np.int64), *(known for known, _ in frequent.values())]))
    in_set = {name: _document_frequency(candidates, *ngrams) for name, ngrams in each.items()}
    documents = {name: len(np.unique(ngrams[1])) for name, ngrams in each.items()}
    chosen = {}
    for name, (known, counts) in frequent.items():
        at = np.searchsorted(candidates, known)
        others = sum((in_set[other][at] for other in sets if other != name), np.zeros(len(at), np.int64))
        total = sum(documents[other] for other in sets if other != name)
        weight = counts * np.log((1 + total) / (1 + others))
        best = np.lexsort((known, -weight))[:top]
        chosen[name] = [_ngram(int(key), size) for key in known[best[weight[best] > 0]]]
    return chosen


def _kinds(
    sets: Mapping[str, PackedBlocks], tokenizer: PreTrainedTokenizerBase
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for each token of the vocabulary that occurs: whether it begins a word, and whether it has a letter."""
    begins, letters = np.zeros(len(tokenizer), bool), np.zeros(len(tokenizer), bool)
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    marked = any(str(piece)[:1] in "Ġ▁" for piece in pieces if piece)
    each = [np.unique(np.asarray(blocks.arrays["input_ids"])) for blocks in sets.values()]
    for token in np.unique(np.concatenate(each)).tolist():
        piece = str(pieces[token])
        begins[token] = piece[:1] in "Ġ▁" if marked else not piece.startswith("##")
        letters[token] = token not in tokenizer.all_special_ids and any(
            letter.isalpha() for letter in str(tokenizer.decode([token]))
        )
    return begins, letters


def _all(
    blocks: PackedBlocks, begins: NDArray[np.bool_], letters: NDArray[np.bool_], size: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of all n-grams within documents, and the number of the document of each."""
    keys, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for block, start, key in _inside(blocks, begins, letters, size, longest):
        keys.append(key)
        owners.append(block * (blocks.block_tokens or 1) + start)
    return np.concatenate(keys), np.concatenate(owners)


def _inside(
    blocks: PackedBlocks, begins: NDArray[np.bool_], letters: NDArray[np.bool_], size: int, longest: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield for each length the block, segment and key of every n-gram."""
    ids = np.asarray(blocks.arrays["input_ids"]).astype(np.int64)
    segments = np.asarray(blocks.arrays["segments"])
    for length in range(1, longest + 1):
        width = ids.shape[1] - length + 1
        if width < 1:
            return
        fits, key = begins[ids[:, :width]], np.full((len(ids), width), length, np.int64)
        for place in range(length):
            part = slice(place, place + width)
            fits = fits & letters[ids[:, part]] & (segments[:, part] == segments[:, :width])
            key = key * size + ids[:, part]
        row, at = np.nonzero(fits)
        yield row, segments[row, at].astype(np.int64), key[row, at]


def _document_frequency(
    sorted_keys: NDArray[np.int64], keys: NDArray[np.int64], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of documents that contain each of the sorted keys in `sorted_keys`."""
    there = np.isin(keys, sorted_keys)
    pairs = np.unique(np.stack([np.searchsorted(sorted_keys, keys[there]), owners[there]]), axis=1)
    return np.bincount(pairs[0], minlength=len(sorted_keys))


def _ngram(key: int, size: int) -> Ngram:
    ids: list[int] = []
    while key >= size:
        key, token = divmod(key, size)
        ids.insert(0, token)
    return tuple(ids)


def occurrences(blocks: PackedBlocks, ngrams: Sequence[Ngram], count: int) -> list[Place]:
    """Return places where the n-grams occur after enough text of their document: a sorted, seeded sample.

    Where several n-grams begin at the same place, the longest one counts.
    """
    ids, segments = np.asarray(blocks.arrays["input_ids"]), np.asarray(blocks.arrays["segments"])
    longest_at: dict[tuple[int, int], int] = {}
    for ngram in sorted(ngrams, key=len):
        width = ids.shape[1] - len(ngram) + 1 - _BEFORE
        if width < 1:
            continue
        here = segments[:, :width] == segments[:, _BEFORE : _BEFORE + width]
        for place, token in enumerate(ngram):
            part = slice(_BEFORE + place, _BEFORE + place + width)
            here = here & (ids[:, part] == token) & (segments[:, part] == segments[:, :width])
        longest_at |= {(int(row), int(at) + _BEFORE): len(ngram) for row, at in zip(*np.nonzero(here), strict=True)}
    places = sorted((*place, length) for place, length in longest_at.items())
    chosen = generator("ranks", blocks.name).permutation(len(places))[:count]
    return [places[number] for number in np.sort(chosen)]


# -- ranks ---------------------------------------------------------------------------------------------------------


def ranks_of(predictor: Predictor, blocks: PackedBlocks, places: Sequence[Place], how: Conditions) -> Floats:
    """Return the rank of the token at each place, 1 for the likeliest; a masked model has the complete n-gram masked.

    Args:
        predictor: the predictor.
        blocks: the text.
        places: places of n-grams.
        how: conditions of the evaluation.
    """
    masked, ranks = isinstance(how.objective, Masked), []
    most = max(1, min(how.batch_size, _PROBABILITIES // len(how.tokenizer)))
    with at_rest(models_of(predictor), how.device, how.bf16), torch.no_grad():
        for start in range(0, len(places), most):
            chunk = places[start : start + most]
            batch = how.objective.collate(blocks.take([block for block, _, _ in chunk]), range(len(chunk)))
            ids = batch["plain_ids" if masked else "input_ids"].clone()
            at = torch.tensor([[position] for _, position, _ in chunk])
            labels = ids.gather(1, at)
            if masked:
                for row, (_, position, length) in enumerate(chunk):
                    ids[row, position : position + length] = how.tokenizer.mask_token_id
            batch |= {"input_ids": ids, "labels": labels, "positions": at if masked else at - 1}
            likely = predictor.likely({key: value.to(how.device) for key, value in batch.items()})[:, 0].cpu()
            ranks.append(1 + (likely > likely.gather(1, labels)).sum(1).double().numpy())
    return np.concatenate([np.empty(0), *ranks])


def _median(values: Floats, rows: Sequence[int], name: str) -> Estimate:
    """Return the median; its interval is of a bootstrap in which the places of one held-out row are drawn together."""
    _, owner = np.unique(np.asarray(rows), return_inverse=True)
    units, order = int(owner.max()) + 1, np.argsort(values)
    drawn = generator("ranks", "bootstrap", name).multinomial(units, np.full(units, 1 / units), _RESAMPLES)
    reached = np.cumsum(drawn[:, owner[order]], axis=1)
    middle = (reached >= reached[:, -1:] / 2).argmax(axis=1)
    return estimate(float(np.median(values)), values[order][middle])
