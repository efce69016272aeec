"""The page's first paragraph: what the numbers say, in words, and nothing that they do not say."""

from __future__ import annotations

from everlearn.report.comparison import Comparison
from everlearn.report.formatting import duration, fixed, listing
from everlearn.report.measures import Measure
from everlearn.report.runs import Estimate, number


def verdict(comparison: Comparison) -> list[str]:
    """All sentences of :func:`paragraphs`."""
    return [sentence for paragraph in paragraphs(comparison) for sentence in paragraph]


def paragraphs(comparison: Comparison) -> list[list[str]]:
    """For each run but the first its sentences against the first, the conclusion in front; or one run alone.

    A difference counts as clear when its confidence interval excludes zero. Where that cannot be said the sentence
    says so; a method that wins nothing is told so.
    """
    if len(comparison.runs) == 1:
        return [_alone(comparison)]
    return [_against(comparison, run) for run in range(1, len(comparison.runs))]


def _against(comparison: Comparison, run: int) -> list[str]:
    label, reference = comparison.labels[run], comparison.labels[0]
    judged = [(measure, measure.judge(run)) for measure in comparison.headline]
    better = [measure.words(run) for measure, judgement in judged if judgement == 1]
    worse = [measure.words(run) for measure, judgement in judged if judgement == -1]
    unclear = [measure.title.lower() for measure, judgement in judged if judgement == 0]
    unknown = [measure.title.lower() for measure, judgement in judged if judgement is None]
    if better and worse:
        first = f"{label} trades: compared with {reference} it clearly {listing(better)}, but {listing(worse)}."
    elif better:
        rest = ", and is clearly worse at nothing" if len(judged) > 1 else ""
        first = f"{label} clearly {listing(better)} than {reference}{rest}."
    elif worse:
        first = f"{label} did not win: it is clearly better than {reference} at nothing, and it {listing(worse)}."
    elif unclear:
        first = f"{label} did not win: no difference to {reference} is larger than its uncertainty."
    else:
        first = f"Whether {label} or {reference} is better cannot be said: there is no interval to compare by."
    sentences = [first]
    details = [_detail(measure, run) for measure, judgement in judged if judgement]
    if details:
        sentences.append(f"Differences, {label} minus {reference}: {'; '.join(details)}.")
    if unclear and (better or worse):
        sentences.append(f"No clear difference in {listing(unclear)}.")
    if unknown and len(unknown) < len(judged):
        sentences.append(f"No interval, so no judgement, for {listing(unknown)}.")
    seconds = [number(comparison.runs[position].cost.get("seconds")) for position in (run, 0)]
    if seconds[0] and seconds[1]:
        sentences.append(f"It took {fixed(seconds[0] / seconds[1], 2)} times as long ({duration(seconds[0])}).")
    return sentences


def _detail(measure: Measure, run: int) -> str:
    difference = measure.difference(run)
    parts = [measure.title.lower(), fixed(difference.value, measure.places, True), measure.unit]
    return " ".join(part for part in [*parts, _range(difference, measure.places, True)] if part)


def _alone(comparison: Comparison) -> list[str]:
    run, label = comparison.runs[0], comparison.labels[0]
    found = {measure.kind.key: measure for measure in comparison.headline}
    count = f"{run.stages_done} domain{'s' if run.stages_done != 1 else ''}"
    sentences = []
    learnt, forgotten = found.get("learnt"), found.get("forgotten")
    if learnt:
        word = {1: "improved", -1: "got worse", 0: "did not clearly change", None: "changed"}[learnt.estimates[0].sign]
        sentences.append(
            f"{label} learnt {count} one after another: right after its stage a domain {word}, "
            f"by {_value(learnt)} on average against the base model."
        )
    else:
        sentences.append(f"{label} has learnt {count}; what it learnt has not been measured yet.")
    if forgotten:
        value = forgotten.estimates[0].value
        gained = learnt.estimates[0].value if learnt else None
        share = f", {fixed(100 * value / gained, 0)} % of what it had learnt" if value and gained and value > 0 else ""
        sentences.append({
            1: f"It forgot: by the end of the stream an earlier domain had lost {_value(forgotten)}{share}.",
            -1: f"It did not forget: later domains made the earlier ones better (forgotten: {_value(forgotten)}).",
            0: f"Forgetting is within its uncertainty: {_value(forgotten)} per earlier domain.",
            None: f"By the end of the stream an earlier domain had lost {_value(forgotten)}{share}.",
        }[forgotten.estimates[0].sign])  # fmt: skip
    for measure in comparison.headline:
        if measure.kind.key == "general_drift":
            change = {1: "got worse", -1: "got better", 0: "did not clearly change", None: "changed"}
            column = next(iter(measure.columns))
            sentences.append(f"General text ({column}) {change[measure.estimates[0].sign]}: {_value(measure)}.")
    average = found.get("average")
    if average:
        sentences.append(f"End tasks score {_value(average)} on average at the end.")
    return sentences


def _value(measure: Measure) -> str:
    estimate = measure.estimates[0]
    places, signed = measure.places, measure.signed
    parts = [fixed(estimate.value, places, signed), measure.unit, _range(estimate, places, signed)]
    return " ".join(part for part in parts if part)


def _range(estimate: Estimate, places: int, signed: bool) -> str:
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f"({fixed(low, places, signed)} to {fixed(high, places, signed)})"
