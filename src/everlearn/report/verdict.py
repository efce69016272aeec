"""Write the first paragraphs of a report: which run to take and why, by a rule that is stated with them.

The rule: a run is worth taking if, at the end of the stream, it is better at its domains than the base model, and
general text lost no more than the tolerance (`report.tolerate`). Of several such runs the one with the largest gain is
taken, or any whose gain is not clearly different from it.
Both conditions are judged by 95 % intervals.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from everlearn import wording
from everlearn.comparison.comparison import Comparison, Side, worth_taking
from everlearn.comparison.formatting import decimals, fixed, listing, named, shorten
from everlearn.comparison.measures import Measure
from everlearn.comparison.recipe_differences import Values
from everlearn.evaluation.estimate import Estimate

_SAID = 4
"""Maximum number of runs or settings that a sentence names; the rest is counted."""

MUCH = 1.5
"""The compute of a run is named if it is more than this many times the least."""


def verdict(comparison: Comparison) -> list[str]:
    """Return all sentences of :func:`paragraphs`."""
    return [sentence for paragraph in paragraphs(comparison) for sentence in paragraph]


def paragraphs(comparison: Comparison) -> list[list[str]]:
    """Return which run to take, what it learnt and forgot, the rule, and for two runs their clear differences.

    A difference is clear if its confidence interval excludes zero, and only between runs with the same data, steps and
    tokens.
    """
    alone = len(comparison.pools) == 1
    judged = _alone(comparison) if alone else [*_choice(comparison), *_dear(comparison)]
    parts = [[*judged, *_leaked(comparison)]]
    if len(comparison.pools) == 2:
        parts.append(_against(comparison, 1, 0))
    parts.append([*_one_run_each(comparison), *_rule(comparison)])
    return [sentences for sentences in parts if sentences]


def _dear(comparison: Comparison) -> list[str]:
    """Say how much more compute the runs took that lead or are clearly best in something, where it is much more."""
    compute = [statistics.median(run.compute or 0.0 for run in pool.runs) for pool in comparison.pools]
    least = min(compute)
    if not least or _waiting(comparison):
        return []
    best = {measure.best for measure in comparison.headline} | {recommended(comparison), *comparison.ranking[:1]}
    dear = [run for run in comparison.ranking if run in best and compute[run] > MUCH * least]
    words = [f"{comparison.labels[run]} took {compute[run] / least:.1f} times" for run in dear]
    other = comparison.labels[compute.index(least)]
    return [f"{_few(words)} the compute of {other}, which took the least."] if words else []


def _leaked(comparison: Comparison) -> list[str]:
    """Name the held-out texts of this verdict that occur in training text, and of which runs if not of all."""
    worst = sorted(comparison.leaked.items(), key=lambda each: -each[1])
    if not worst:
        return []
    shares = []
    for name, share in worst:
        labels = [pool.label for pool in comparison.pools if any(name in run.leaked for run in pool.runs)]
        where = f" in {_few(labels)}" if len(labels) < len(comparison.pools) else ""
        shares.append(f"{100 * share:.0f} % of '{name}'{where}")
    return [
        f"Some held-out text also occurs in training text ({_few(shares)}), where scores show what was memorised. "
        "Remove it from one of the two, and measure again before you rely on the result."
    ]


def _one_run_each(comparison: Comparison) -> list[str]:
    """Say what is unknown about differences between single runs."""
    if len(comparison.pools) < 2 or not comparison.streams or any(len(pool.runs) > 1 for pool in comparison.pools):
        return []
    seeds = list(dict.fromkeys(seed for pool in comparison.pools for seed in pool.seeds))
    differ = f", and their seeds differ ({listing(seeds[:_SAID])}{', …' if len(seeds) > _SAID else ''})"
    return [
        f"There is one run of each{differ if len(seeds) > 1 else ''}: the intervals show what other text would change, "
        "not what another seed would change. Run several seeds (`everlearn sweep --seeds 1,2,3`) to tell a method from "
        "chance."
    ]


def recommended(comparison: Comparison) -> int | None:
    """Return the run to take by the rule; None if runs have different models or texts, or if nothing is clear."""
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or comparison.unlike.ground or _waiting(comparison):
        return None
    return next(iter(_candidates(comparison, gained)), None)


def _candidates(comparison: Comparison, gained: Measure) -> list[int]:
    """Return the runs that are worth taking, the largest gain first."""
    return [run for run in gained.ranking if worth_taking(gained.estimates[run], comparison.side(run))]


def _rule(comparison: Comparison) -> list[str]:
    """Return the rule, and which of several runs are within the tolerance; empty without a stream to judge."""
    if comparison.measure(comparison.lead, "gained") is None or not comparison.streams:
        return []
    bound = _bound(comparison)
    sentences = [
        "The rule: a run is worth taking if, at the end of the stream, it is better at its domains than the base "
        f"model, and general text lost no more than {bound} (`report.tolerate`), if it was measured. Both are judged "
        "by 95 % intervals. Of several such runs, take the one with the largest gain, or any whose gain is not clearly "
        "different from it."
    ]
    if not any(map(comparison.drifts, range(len(comparison.pools)))):
        return [*sentences, "General text was not measured, so it is unknown how much of it was forgotten."]
    if len(comparison.pools) == 1 and comparison.lead == comparison.text_metric:
        return sentences  # the drift of a single run was stated with what it learnt
    for place, words in {
        Side.WITHIN: "within the tolerance",
        Side.BEYOND: "beyond the tolerance",
        Side.UNDECIDED: "undecided, as its interval includes the tolerance or is not known",
        Side.NOT_MEASURED: "not measured",
    }.items():
        runs = [run for run in comparison.ranking if comparison.side(run) is place]
        if runs:
            few = len(runs) <= _SAID  # of more the numbers are in the table
            each = [f"{comparison.labels[run]} {_drifts(comparison, run) if few else ''}".strip() for run in runs]
            sentences.append(f"General drift {words}: {'; '.join(each)}.")
    return sentences


def _drifts(comparison: Comparison, run: int) -> str:
    """Return the general drift of a run on each general set."""
    drifts = comparison.drifts(run)
    places = decimals(estimate.value for estimate in drifts.values())
    values = []
    for name, estimate in drifts.items():
        parts = [fixed(estimate.value, places, True), "bits/byte", _range(estimate, places, True)]
        parts += [f"of {name}"] if len(drifts) > 1 else []
        values.append(" ".join(part for part in parts if part))
    return listing(values)


def _bound(comparison: Comparison) -> str:
    return f"{comparison.tolerance:g} bits/byte"


def _choice(comparison: Comparison) -> list[str]:
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or not gained.ranking:
        apart = comparison.streams and not comparison.domains
        why = "the runs have no domain in common" if apart else "none was measured at the end against the base model"
        return [f"No run can be recommended: {why}."]
    candidates = _candidates(comparison, gained)
    first = (candidates or _undecided(comparison, gained) or gained.ranking)[0]
    label, estimate = comparison.labels[first], gained.estimates[first]
    value = _value(gained, estimate)
    if waiting := _waiting(comparison):
        return [
            f"No run can be recommended yet: {_few(waiting)}.",
            "`everlearn resume` finishes a run; without it in the report the others can be compared.",
        ]
    if comparison.unlike.ground:
        top = gained.ranking[0]
        return [
            "No run can be recommended: their scores are not of the same model and text. "
            f"{comparison.labels[top]} has the largest gain ({_value(gained, gained.estimates[top])} at the end of the "
            "stream).",
            *_unequal(comparison),
        ]
    alike = [run for run in gained.ranking if run != first and gained.judge(first, run) == 0]
    taken = [run for run in alike if run in candidates]
    if estimate.sign is None:
        opening = f"No run can be recommended: {label} is best at the end of the stream ({value})"
        sentences = [f"{opening}, but there is no interval that shows how certain that is."]
    elif candidates:
        sentences = _take(comparison, gained, first, taken)
    elif estimate.sign == 1:
        sentences = _none_within(comparison, gained, first)
    else:
        how = "every run is worse" if estimate.sign == -1 else "no run is clearly better"
        best = "the least bad" if estimate.sign == -1 else "the best"
        sentences = [
            f"None is worth taking: at the end of the stream {how} at its domains than the base model; {best} is "
            f"{label} ({value})."
        ]
    sentences += _tied(comparison, gained, first, alike, taken)
    sentences += _cost_of(comparison, first)
    return sentences + _unequal(comparison)


def _waiting(comparison: Comparison) -> list[str]:
    """Return the runs that are not finished, in words."""
    return [
        f"{comparison.labels[position]} is not finished ({run.stages_done} of "
        f"{wording.count(len(run.domains), 'domain')} learnt)"
        for position, pool in enumerate(comparison.pools)
        for run in pool.runs
        if run.unfinished
    ]


def _take(comparison: Comparison, gained: Measure, chosen: int, alike: list[int]) -> list[str]:
    """Return the runs that the rule takes, and those that gained more but lost more general text."""
    value = _plain(gained, gained.estimates[chosen])
    place = gained.ranking.index(chosen)
    before, after = gained.ranking[:place], gained.ranking[place + 1 :]
    it = comparison.labels[chosen] if alike else "it"
    better = f"at the end of the stream {it} is {value} better at its domains than the base model"
    if alike:
        better += f", and the gain of the other{'s' * (len(alike) > 1)} is not clearly different"
    elif before:
        better += ", the largest gain of the runs whose general text is within the tolerance"
    elif after:
        clear = all(gained.judge(chosen, run) == 1 for run in after)
        better += f", {'clearly more than any other run' if clear else 'the largest gain of all runs'}"
    taken = _few([comparison.labels[run] for run in (chosen, *alike)], "or")
    return [f"Take {taken}: {better}.", *_larger(comparison, gained, before)]


def _larger(comparison: Comparison, gained: Measure, before: Sequence[int]) -> list[str]:
    """Name those of the runs before the chosen one in the ranking that gained clearly, and what rules them out."""
    sentences, dear = [], [run for run in before if gained.estimates[run].sign == 1]
    for where, words in {
        Side.BEYOND: f"general text lost more than {_bound(comparison)}: take it only if that does not matter",
        Side.UNDECIDED: f"whether general text lost more than {_bound(comparison)} is undecided",
    }.items():
        runs = [run for run in dear if comparison.side(run) is where]
        if runs:
            named = _few([f"{comparison.labels[run]} ({_value(gained, gained.estimates[run])})" for run in runs])
            sentences.append(f"The gain of {named} is larger, but {words}.")
    return sentences


def _undecided(comparison: Comparison, gained: Measure) -> list[int]:
    """Return the runs that are better than the base model, and may keep general text or not."""
    return [run for run in gained.ranking if gained.estimates[run].sign == 1 and comparison.side(run) is Side.UNDECIDED]


def _none_within(comparison: Comparison, gained: Measure, first: int) -> list[str]:
    """Say which runs are better than the base model if none is known to keep general text."""
    undecided, bound = _undecided(comparison, gained), _bound(comparison)
    largest = f"{comparison.labels[first]} has the largest gain ({_value(gained, gained.estimates[first])})"
    if not undecided:
        return [
            f"None is worth taking unless general text may lose more than {bound}: {largest}, but its general text "
            "lost more.",
            "If that does not matter, take it; a higher `report.tolerate` says so.",
        ]
    before = gained.ranking[: gained.ranking.index(first)]
    over_seeds = all(len(comparison.pools[run].runs) > 1 for run in undecided)
    more = "more seeds narrow" if over_seeds else "more held-out general text (`evaluation.blocks`) narrows"
    labels = _few([comparison.labels[run] for run in undecided])
    return [
        f"Which run to take is undecided: {largest}{' of those that may be within the tolerance' if before else ''}.",
        *_larger(comparison, gained, before),
        f"Whether general text of {labels} lost more than {bound} cannot be told: {more} the interval.",
    ]


def _tied(comparison: Comparison, gained: Measure, first: int, alike: Sequence[int], taken: Sequence[int]) -> list[str]:
    """Say which runs, besides those that are taken, are as good as the first, and which of all kept more."""
    sentences = []
    if others := [comparison.labels[run] for run in alike if run not in taken]:
        which = "the" if len(others) == 1 else "each"
        sentences.append(
            f"Its gain is not clearly different from that of {_few(others)}: {which} difference is within its "
            "uncertainty."
        )
    for measure in comparison.measures[gained.metric]:
        if measure.quantity.key != "general_drift":
            continue
        kept = [
            f"{comparison.labels[run]} (by {_plain(measure, measure.difference(first, run))})"
            for run in alike
            if measure.judge(run, first) == 1
        ]
        if kept:
            sentences.append(f"Of these, {_few(kept)} clearly {measure.quantity.better}.")
    return sentences


def _unequal(comparison: Comparison) -> list[str]:
    sentences = []
    if comparison.differing:
        sentences.append(
            f"The runs differ in data, steps or tokens: {_few(_settings(comparison.differing))}. They are not compared "
            "as equals, since it is unknown how much of a difference is due to the method."
        )
    if comparison.unlike.configuration:
        sentences.append(
            f"Besides their methods the runs differ in {_few(_settings(comparison.unlike.configuration))}, which is a "
            "part of what is compared."
        )
    return sentences


def _settings(values: Values) -> list[str]:
    return [
        f"{key} ({listing(list(dict.fromkeys(shorten(value, 40) for value in own)), 'or')})"
        for key, own in values.items()
    ]


def _few(words: list[str], conjunction: str = "and") -> str:
    rest = len(words) - _SAID
    return listing(words if rest <= 0 else [*words[:_SAID], f"{rest} more"], conjunction)


def _cost_of(comparison: Comparison, run: int) -> list[str]:
    """Say what one run learnt, how much of that it forgot again, and what general text lost."""
    lead, sentences = comparison.lead, []
    learnt, forgotten = (comparison.measure(lead, key) for key in ("learnt", "forgotten"))
    if learnt is not None and learnt.estimates[run].value is not None:
        value = _value(learnt, learnt.estimates[run])
        what = f"With {comparison.labels[run]}, a domain" if len(comparison.pools) > 1 else "A domain"
        sentences.append(f"{what} had gained {value} on average right after its own training.")
    if forgotten is not None and forgotten.estimates[run].value is not None:
        estimate = forgotten.estimates[run]
        value, share = _value(forgotten, estimate), share_forgotten(comparison, run)
        lost = f"By the end, earlier domains had lost {_plain(forgotten, estimate)} on average{share}."
        sentences.append({
            1: lost,
            -1: f"Nothing was forgotten: later domains made the earlier ones better (forgotten: {value}).",
            0: f"It is not clear whether earlier domains lost anything by the end ({value}).",
            None: lost,
        }[estimate.sign])  # fmt: skip
    sentences += _exceptions(comparison, run)
    for measure in comparison.measures.get(lead or "", ()):
        if measure.quantity.key != "general_drift" or measure.estimates[run].value is None:
            continue
        estimate, column = measure.estimates[run], next(iter(measure.columns))
        change = {1: "got worse", -1: "got better", 0: "did not clearly change", None: "changed"}[estimate.sign]
        what = "General text" if lead == comparison.text_metric else "What belongs to no domain"
        sentences.append(f"{named(what, column)} {change}: {_value(measure, estimate)}.")
    return sentences


def _exceptions(comparison: Comparison, run: int) -> list[str]:
    """Name the domains at which a run that is better on average is not clearly better than the base model."""
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or gained.estimates[run].sign != 1:
        return []
    domains: dict[int | None, list[str]] = {}
    for column, estimates in gained.columns.items():
        domains.setdefault(estimates[run].sign, []).append(f"{column} ({_value(gained, estimates[run])})")
    words, label = {-1: "worse", 0: "not clearly better"}, comparison.labels[run]
    return [
        f"At {_few(domains[sign])} {label} is {how} than the base model."
        for sign, how in words.items()
        if sign in domains
    ]


def share_forgotten(comparison: Comparison, run: int) -> str:
    """Return the share of what the earlier domains had learnt that they lost, over the same domains."""
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
        first = f"Compared with {other}, {label} {listing(worse)}, and is clearly better at nothing."
    elif unclear:
        first = f"No difference between {label} and {other} is larger than its uncertainty."
    else:
        first = f"It is unknown whether {label} or {other} is better: there is no interval for a comparison."
    sentences = [first]
    details = [
        f"{measure.title.lower()} {_value(measure, measure.difference(run, reference), True)}"
        for measure, judgement in judged
        if judgement
    ]
    if details:
        sentences.append(f"Differences, {label} minus {other}: {'; '.join(details)}.")
    if unclear and (better or worse):
        sentences.append(f"No clear difference in {listing(unclear)}.")
    if unknown and len(unknown) < len(judged):
        sentences.append(f"No interval, so no judgement, for {listing(unknown)}.")
    return sentences


def _alone(comparison: Comparison) -> list[str]:
    run, label = comparison.pools[0].runs[0], comparison.labels[0]
    if not run.domains and run.matrices:
        models = max(len(matrix.rows) for matrix in run.matrices.values())
        count = f"{models} models that were measured; they are" if models != 1 else "1 model that was measured; it is"
        return [
            f"{label} holds {count} no stream, so nothing was learnt in turn.",
            "`everlearn diff BEFORE AFTER` shows what one model forgot and learnt compared with another.",
        ]
    # A domain that is learnt again, or has no held-out text, has no column.
    measured = [name for name in run.domains if any(name in matrix.columns for matrix in run.matrices.values())]
    done = sum(name in measured or not measured for name in run.domains[: run.stages_done])
    count = wording.count(done, "domain")
    gained = comparison.measure(comparison.lead, "gained")
    if gained is None or gained.estimates[0].value is None:
        return [f"{label} has learnt {count}; what it learnt has not been measured yet.", *_cost_of(comparison, 0)]
    estimate = gained.estimates[0]
    value = _value(gained, estimate)
    end = "at the end of the stream it is"
    if run.unfinished:
        first = (
            f"{label} is not finished: {run.stages_done} of {wording.count(len(run.domains), 'domain')} "
            f"{wording.be(len(run.domains))} learnt. So far the difference to the base model is {value}; above 0 is "
            "better."
        )
        return [first, *_cost_of(comparison, 0)]
    if estimate.sign == 1:
        where = f"on average at its {count}" if done != 1 else "at its domain"
        better = f"{end} {_plain(gained, estimate)} better {where} than the base model"
        first = _alone_better(comparison, label, better)
    elif estimate.sign is None:
        first = (
            f"It is unknown whether {label} is worth taking: at the end of {count} the difference to the base model is "
            f"{value}, but there is no interval that shows how certain that is."
        )
    else:
        how = "worse" if estimate.sign == -1 else "not clearly better"
        first = f"{label} is not worth taking: {end} {how} at its {count} than the base model ({value})."
    average = next((m for m in comparison.headline if m.quantity.key == "average"), None)
    tasks = [f"End tasks score {_value(average, average.estimates[0])} on average at the end."] if average else []
    return [first, *_cost_of(comparison, 0), *tasks]


def _alone_better(comparison: Comparison, label: str, better: str) -> str:
    bound = _bound(comparison)
    return {
        Side.WITHIN: f"{label} is worth taking: {better}, and general text lost no more than {bound}.",
        Side.NOT_MEASURED: f"{label} is worth taking: {better}.",
        Side.BEYOND: f"{label} is worth taking only if general text does not matter: {better}, but general text lost "
        f"more than {bound}.",
        Side.UNDECIDED: f"Whether {label} is worth taking is undecided: {better}, but general text may have lost more "
        f"than {bound}: {_uncertain(comparison)}.",
    }[comparison.side(0)]


def _uncertain(comparison: Comparison) -> str:
    """Say why it is undecided whether a single run keeps general text."""
    if any(estimate.interval is None for estimate in comparison.drifts(0).values()):
        return "there is no interval that shows how certain its drift is"
    return "the interval of its drift includes that"


def _value(measure: Measure, estimate: Estimate, signed: bool | None = None) -> str:
    places, signed = measure.places, measure.quantity.signed if signed is None else signed
    parts = [fixed(estimate.value, places, signed), measure.unit, _range(estimate, places, signed)]
    return " ".join(part for part in parts if part)


def _plain(measure: Measure, estimate: Estimate) -> str:
    return _value(measure, estimate, signed=False)


def _range(estimate: Estimate, places: int, signed: bool) -> str:
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f"({fixed(low, places, signed)} to {fixed(high, places, signed)})"
