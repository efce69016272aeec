"""The page's first paragraph: which run to take and why, in words, and nothing that the numbers do not say."""

from __future__ import annotations

from everlearn.evaluation.estimate import Estimate
from everlearn.report.comparison import Comparison
from everlearn.report.formatting import fixed, listing, shorten
from everlearn.report.measures import Measure

_TRAINING = ("train.", "steps on", "tokens on", "order of domains")
"""Beginnings of settings that say how a model was trained, and not where it started or what it is scored on."""
_SAID = 4
"""Runs, or settings, that a sentence names; the rest is counted."""


def verdict(comparison: Comparison) -> list[str]:
    """All sentences of :func:`paragraphs`."""
    return [sentence for paragraph in paragraphs(comparison) for sentence in paragraph]


def paragraphs(comparison: Comparison) -> list[list[str]]:
    """Which run to take, and what it learnt and forgot; of two runs also in what they clearly differ.

    A difference counts as clear when its confidence interval excludes zero, and only between runs that differ in
    nothing but their methods.
    """
    if len(comparison.pools) == 1:
        return [_alone(comparison)]
    found = [_choice(comparison)]
    if len(comparison.pools) == 2:
        found.append(_against(comparison, 1, 0))
    return [sentences for sentences in found if sentences]


def recommended(comparison: Comparison) -> int | None:
    """The run to take: the one furthest above the base model at the end, if it is clearly so and on no condition."""
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or not gained.ranking or not _same_ground(comparison):
        return None
    first = gained.ranking[0]
    return first if gained.estimates[first].sign == 1 and not _dear(comparison, first) else None


def _same_ground(comparison: Comparison) -> bool:
    """Whether all runs start from the same model and are scored on the same text: how they were trained may differ."""
    return all(key.startswith(_TRAINING) for key in comparison.differing)


def _choice(comparison: Comparison) -> list[str]:
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or not gained.ranking:
        return ["Which run to take cannot be said: no run has been measured at the end against the base model."]
    first = gained.ranking[0]
    label, estimate = comparison.labels[first], gained.estimates[first]
    value = _value(gained, estimate)
    if waiting := _waiting(comparison):
        return [
            f"Which run to take cannot be said yet: {_few(waiting)}.",
            "`everlearn resume` finishes a run; without it in the report the others can be compared.",
        ]
    if not _same_ground(comparison):
        opening = (
            f"Which run to take cannot be said: they are not of one model and one text. The largest gain has {label}"
        )
        return [f"{opening} ({value} at the end of the stream).", *_unequal(comparison)]
    if estimate.sign is None:
        opening = f"Which run to take cannot be said: {label} is best at the end of the stream ({value})"
        sentences = [f"{opening}, and there is no interval that says how certain that is."]
    elif estimate.sign == 1:
        sentences = _take(comparison, gained, first)
    else:
        how = "every run is worse" if estimate.sign == -1 else "no run is clearly better"
        best = "the least bad" if estimate.sign == -1 else "the best"
        sentences = [
            f"None is worth taking: at the end of the stream {how} at its domains than the base model; {best} is "
            f"{label} ({value})."
        ]
    sentences += _tied(comparison, gained, first)
    sentences += _cost_of(comparison, first)
    return sentences + _unequal(comparison)


def _waiting(comparison: Comparison) -> list[str]:
    """The runs that are not finished, in words."""
    return [
        f"{comparison.labels[position]} is not finished ({run.stages_done} of {len(run.domains)} domains learnt)"
        for position, pool in enumerate(comparison.pools)
        for run in pool.runs
        if run.unfinished
    ]


def _take(comparison: Comparison, gained: Measure, first: int) -> list[str]:
    """Which run to take, where one is clearly above the base model; outright, or on a condition."""
    value, others = _plain(gained, gained.estimates[first]), [run for run in gained.ranking if run != first]
    clear = all(gained.judge(first, run) == 1 for run in others)
    better = (
        f"at the end of the stream its domains are {value} better than in the base model, "
        f"{'more than in any other run' if clear else 'the most of all runs'}"
    )
    label, lost = comparison.labels[first], _dear(comparison, first)
    if not lost:
        return [f"Take {label}: {better}."]
    instead = [run for run in others if gained.estimates[run].sign == 1 and not _dear(comparison, run)]
    otherwise = (
        f"Otherwise take {comparison.labels[instead[0]]}: its domains are "
        f"{_plain(gained, gained.estimates[instead[0]])} better, and general text lost less than that."
        if instead
        else "If it does, none is worth taking."
    )
    return [f"Take {label} only if general text does not matter: {better}, but {lost}.", otherwise]


def _dear(comparison: Comparison, run: int) -> str:
    """What general text clearly lost, in words, where that is more than the run's domains gained; else nothing."""
    gained = comparison.measure(comparison.lead, "gained")
    left = gained.estimates[run].value if gained is not None else None
    for measure in comparison.measures.get(comparison.lead or "", ()):
        estimate = measure.estimates[run]
        if (
            measure.quantity.key == "general_drift"
            and estimate.sign == 1
            and 0 < (left or 0.0) < (estimate.value or 0.0)
        ):
            return f"general text ({next(iter(measure.columns))}) is {_plain(measure, estimate)} worse"
    return ""


def _tied(comparison: Comparison, gained: Measure, first: int) -> list[str]:
    alike = [run for run in gained.ranking if run != first and gained.judge(first, run) == 0]
    if not alike:
        return []
    named = [comparison.labels[run] for run in alike]
    found = [f"At the end it cannot be told apart from {_few(named)}: the difference is within its uncertainty."]
    for measure in comparison.measures[gained.metric]:
        kept = [comparison.labels[run] for run in alike if measure.judge(run, first) == 1]
        if measure.quantity.key == "general_drift" and kept:
            found.append(f"Of these, {_few(kept)} clearly {measure.quantity.better}.")
    return found


def _unequal(comparison: Comparison) -> list[str]:
    if not comparison.differing:
        return []
    said = [
        f"{key} ({listing(list(dict.fromkeys(shorten(value, 40) for value in values)), 'or')})"
        for key, values in comparison.differing.items()
    ]
    return [
        f"The runs differ in more than their methods: {_few(said)}. They are not compared as equals; what of a "
        "difference is due to a method is not known."
    ]


def _few(words: list[str]) -> str:
    rest = len(words) - _SAID
    return listing(words) if rest <= 0 else listing([*words[:_SAID], f"{rest} more"])


def _cost_of(comparison: Comparison, run: int) -> list[str]:
    """What one run learnt, how much of that it forgot again, and what general text lost."""
    lead, sentences = comparison.lead, []
    learnt, forgotten = (comparison.measure(lead, key) for key in ("learnt", "forgotten"))
    if learnt is not None and learnt.estimates[run].value is not None:
        sentences.append(f"Right after its stage a domain had gained {_value(learnt, learnt.estimates[run])}.")
    if forgotten is not None and forgotten.estimates[run].value is not None:
        estimate = forgotten.estimates[run]
        value = _value(forgotten, estimate)
        share = share_forgotten(comparison, run)
        sentences.append({
            1: f"By the end an earlier domain had lost {value}{share}.",
            -1: f"Nothing was forgotten: later domains made the earlier ones better (forgotten: {value}).",
            0: f"What earlier domains lost by the end is within its uncertainty ({value}).",
            None: f"By the end an earlier domain had lost {value}{share}.",
        }[estimate.sign])  # fmt: skip
    for measure in comparison.measures.get(lead or "", ()):
        if measure.quantity.key != "general_drift" or measure.estimates[run].value is None:
            continue
        estimate, column = measure.estimates[run], next(iter(measure.columns))
        change = {1: "got worse", -1: "got better", 0: "did not clearly change", None: "changed"}[estimate.sign]
        what = "General text" if lead == comparison.text_metric else "What belongs to no domain"
        sentences.append(f"{what} ({column}) {change}: {_value(measure, estimate)}.")
    return sentences


def share_forgotten(comparison: Comparison, run: int) -> str:
    """How much the earlier domains lost of what these same domains had learnt: like divided by like."""
    learnt, forgotten = (comparison.measure(comparison.lead, key) for key in ("learnt", "forgotten"))
    if learnt is None or forgotten is None:
        return ""
    both = [column for column in forgotten.columns if column in learnt.columns]
    had, lost = (sum(m.columns[column][run].value or 0.0 for column in both) for m in (learnt, forgotten))
    if not both or len(both) < len(forgotten.columns) or lost <= 0:
        return ""
    had, places = had / len(both), learnt.places
    if had <= 0:
        return f", though these domains had learnt nothing ({fixed(had, places, True)})"
    return f", {fixed(100 * lost / len(both) / had, 0)} % of the {fixed(had, places)} that these domains had learnt"


def _against(comparison: Comparison, run: int, reference: int) -> list[str]:
    if not comparison.headline:
        return []
    if (run, reference) in comparison.headline[0].unequal or (reference, run) in comparison.headline[0].unequal:
        return []
    label, other = comparison.labels[run], comparison.labels[reference]
    judged = [(measure, measure.judge(run, reference)) for measure in comparison.headline]
    better = [measure.words(run, reference) for measure, judgement in judged if judgement == 1]
    worse = [measure.words(run, reference) for measure, judgement in judged if judgement == -1]
    unclear = [measure.title.lower() for measure, judgement in judged if judgement == 0]
    unknown = [measure.title.lower() for measure, judgement in judged if judgement is None]
    if better and worse:
        first = f"{label} trades: compared with {other} it clearly {listing(better)}, but {listing(worse)}."
    elif better:
        rest = ", and is clearly worse at nothing" if len(judged) > 1 else ""
        first = f"{label} clearly {listing(better)} than {other}{rest}."
    elif worse:
        first = f"{label} did not win: it is clearly better than {other} at nothing, and it {listing(worse)}."
    elif unclear:
        first = f"{label} did not win: no difference to {other} is larger than its uncertainty."
    else:
        first = f"Whether {label} or {other} is better cannot be said: there is no interval to compare by."
    sentences = [first]
    details = [_detail(measure, run, reference) for measure, judgement in judged if judgement]
    if details:
        sentences.append(f"Differences, {label} minus {other}: {'; '.join(details)}.")
    if unclear and (better or worse):
        sentences.append(f"No clear difference in {listing(unclear)}.")
    if unknown and len(unknown) < len(judged):
        sentences.append(f"No interval, so no judgement, for {listing(unknown)}.")
    return sentences


def _detail(measure: Measure, run: int, reference: int) -> str:
    return f"{measure.title.lower()} {_value(measure, measure.difference(run, reference), True)}"


def _alone(comparison: Comparison) -> list[str]:
    run, label = comparison.pools[0].runs[0], comparison.labels[0]
    if not run.domains and run.matrices:
        models = max(len(matrix.rows) for matrix in run.matrices.values())
        count = f"{models} models that were measured; they are" if models != 1 else "1 model that was measured; it is"
        return [f"{label} holds {count} no stream, so nothing was learnt in turn."]
    count = f"{run.stages_done} domain{'s' if run.stages_done != 1 else ''}"
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or gained.estimates[0].value is None:
        return [f"{label} has learnt {count}; what it learnt has not been measured yet.", *_cost_of(comparison, 0)]
    estimate = gained.estimates[0]
    value, lost = _value(gained, estimate), _dear(comparison, 0)
    they = f"at the end of the stream its {count} {'are' if run.stages_done != 1 else 'is'}"
    if run.unfinished:
        first = (
            f"{label} is not finished: {run.stages_done} of {len(run.domains)} domains are learnt. So far the "
            f"difference to the base model is {value}; above 0 is better."
        )
        return [first, *_cost_of(comparison, 0)]
    first = {
        1: f"{label} is worth taking{' only if general text does not matter' if lost else ''}: {they} "
        f"{_plain(gained, estimate)} better than in the base model{f', but {lost}' if lost else ''}.",
        0: f"{label} is not worth taking: {they} not clearly better than in the base model ({value}).",
        -1: f"{label} is not worth taking: {they} worse than in the base model ({value}).",
        None: f"Whether {label} is worth taking cannot be said: at the end of {count} the difference to the base model "
        f"is {value}, and there is no interval that says how certain that is.",
    }[estimate.sign]
    average = next((m for m in comparison.headline if m.quantity.key == "average"), None)
    tasks = [f"End tasks score {_value(average, average.estimates[0])} on average at the end."] if average else []
    return [first, *_cost_of(comparison, 0), *tasks]


def _value(measure: Measure, estimate: Estimate, signed: bool | None = None) -> str:
    places, signed = measure.places, measure.signed if signed is None else signed
    parts = [fixed(estimate.value, places, signed), measure.unit, _range(estimate, places, signed)]
    return " ".join(part for part in parts if part)


def _plain(measure: Measure, estimate: Estimate) -> str:
    return _value(measure, estimate, signed=False)


def _range(estimate: Estimate, places: int, signed: bool) -> str:
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f"({fixed(low, places, signed)} to {fixed(high, places, signed)})"
