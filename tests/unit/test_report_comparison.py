import copy
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import report_fixture
from report_fixture import DOMAINS, results
from rich.console import Console

from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.recipe_differences import Differences, unlike
from everlearn.comparison.runs import from_results
from everlearn.errors import RunError
from everlearn.evaluation import Cell, RunFacts, build_results, classification_cell, set_path, task_path, text_cell
from everlearn.evaluation.quantities import TOLERATED_DRIFT
from everlearn.evaluation.results import MethodUsed
from everlearn.report import compare, page, verdict
from everlearn.report.tables import difference_table, markdown, terminal
from everlearn.report.tables import json as as_json
from everlearn.report.verdict import recommended


def printed(comparison):
    file = io.StringIO()
    Console(file=file, width=140).print(terminal(comparison))
    return file.getvalue()


def of(*found, tolerate=1.0, **changes):
    """A comparison; the runs of the fixture lose more general text than a user would tolerate."""
    return compare_runs([from_results({**entry, **changes}) for entry in found], tolerate)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return compare(report_fixture.write_runs(tmp_path_factory.mktemp("runs")))


def test_the_headline(both):
    titles = ["Gain at the end", "Learnt", "Forgotten", "General drift", "End-task accuracy"]
    assert [m.title for m in both.headline] == titles
    assert [m.judge(1) for m in both.headline] == [1, -1, 1, 1, 0]
    assert [m.best for m in both.headline] == [1, 0, 1, 1, None]
    assert both.ranking == (1, 0)
    assert both.labels == ("Sequential", "DAS")
    assert both.metrics[0] == "bits_per_byte"


def test_the_verdict_names_what_was_won_and_what_it_cost(both):
    sentences = verdict(both)
    assert sentences[0] == (
        "Take DAS: at the end of the stream it is 0.488 bits/byte (0.480 to 0.497) better at its domains than the base "
        "model, clearly more than any other run."
    )
    assert (
        "DAS trades: compared with Sequential it clearly ended better, forgot less and kept more general knowledge, "
        "but learnt less."
    ) in sentences
    assert "No clear difference in end-task accuracy." in sentences


def test_a_verdict_says_nothing_of_wall_time(both):
    assert not [sentence for sentence in verdict(both) if "as long" in sentence or "min" in sentence.split()]


def test_a_verdict_names_the_compute_of_what_leads_and_of_what_is_clearly_best():
    def row(name, forgotten, extra, learning):
        facts = {
            "suite": "own",
            "row": name,
            "title": name,
            "order": 0,
            "seed": 0,
            "settings": {},
            "extra_tokens": extra,
        }
        return results(name, name, forgotten, learning=learning) | {"grid": facts}

    plain = row("Sequential", 0.3, 0, 0.6)
    tokens = from_results(plain).tokens

    def said(*rows):
        return [sentence for sentence in verdict(of(plain, *rows)) if "compute" in sentence]

    assert said(row("EWC", 0.1, 4.2 * tokens, 0.6)) == [
        "EWC took 5.2 times the compute of Sequential, which took the least."
    ]
    assert said(row("EWC", 0.1, 0.4 * tokens, 0.6)) == []
    assert said(row("EWC", 0.1, None, 0.6)) == [], "outside of grids it is unknown"
    assert said(row("EWC", 0.1, 4.2 * tokens, 0.6), row("MAS", 0.05, 0, 0.6)) == [], "neither first nor best"


def test_what_was_forgotten_is_divided_by_what_the_same_domains_had_learnt():
    """The last domain learns a lot and cannot have been forgotten yet: it has no place under the fraction."""
    found = results("das", "DAS", 0.0, domains=["finance", "legal", "code"])
    score = {
        "base": [2.0, 2.0, 2.0],
        "finance": [1.959, 2.0, 2.0],
        "legal": [2.05, 1.959, 2.0],
        "code": [2.077, 2.076, 0.7],
    }
    raw = report_fixture.matrix(np.array([*score.values()]), 0.001, "bits/byte", False, [*score], [*score][1:])
    found["matrices"], found["summary"] = {"bits_per_byte": raw}, {}
    sentences = " ".join(verdict(of(found)))
    # Finance and legal: learnt 0.041 each; lost 0.118 and 0.117. All three learnt 0.455 on average.
    assert "287 % of the 0.041 that these domains had learnt" in sentences
    assert "26 %" not in sentences


def test_domains_that_learnt_nothing_have_no_share():
    sentences = " ".join(verdict(of(results("das", "DAS", 0.1, learning=-0.2))))
    assert "though these domains had learnt nothing" in sentences
    assert not re.search(r"\d % of", sentences)


def test_domains_at_which_a_run_is_no_better_than_the_base_model_are_named():
    found = results("das", "DAS", 0.1)
    assert not [sentence for sentence in verdict(of(found)) if sentence.startswith("At ")]
    for domain, value in {"sympy": -0.1, "networkx": 0.001, "pandas": -0.2}.items():
        found["summary"]["bits_per_byte"]["gained"][domain] = report_fixture.estimate(value, 0.01)
    assert [sentence for sentence in verdict(of(found)) if sentence.startswith("At ")] == [
        "At sympy (−0.100 bits/byte (−0.110 to −0.089)) and pandas (−0.200 bits/byte (−0.210 to −0.189)) DAS is worse "
        "than the base model.",
        "At networkx (+0.001 bits/byte (−0.009 to +0.012)) DAS is not clearly better than the base model.",
    ]


def test_none_is_worth_taking_where_the_base_model_is_better():
    comparison = of(results("plain", "Sequential", 0.3, learning=-0.1), results("das", "DAS", 0.2, learning=-0.1))
    assert verdict(comparison)[0].startswith("None is worth taking: at the end of the stream every run is worse")
    assert recommended(comparison) is None


# The bound on general drift.


def drifting(*drifts, learning=(0.9, 0.4, 0.3)):
    """Runs of which the first gain the most, with these general drifts: the value, and half its interval."""
    made = []
    for number, (value, half) in enumerate(drifts):
        found = results(f"m{number}", f"Method {number}", 0.06, learning=learning[number])
        drift = {"value": value, "low": value - half, "high": value + half}
        found["summary"]["bits_per_byte"]["general_drift"]["general"] = drift
        made.append(found)
    return made


@pytest.mark.parametrize(
    ("drift", "side", "words"),
    [
        ((0.010, 0.005), "within", "Method 0 is worth taking: at the end of the stream it is "),
        ((0.074, 0.010), "beyond", "Method 0 is worth taking only if general text does not matter: at the end"),
        ((0.022, 0.005), "undecided", "Whether Method 0 is worth taking is undecided: at the end of the stream"),
    ],
)
def test_a_run_is_worth_taking_if_general_text_keeps_within_the_tolerance(drift, side, words):
    comparison = of(*drifting(drift), tolerate=None)
    assert comparison.tolerance == 0.02
    said = verdict(comparison)
    assert said[0].startswith(words)
    assert (recommended(comparison) == 0) == (side == "within")
    rule = " ".join(said)
    assert "The rule: a run is worth taking if, at the end of the stream, it is better" in rule
    assert "general text lost no more than 0.02 bits/byte (`report.tolerate`)" in rule
    assert rule.count(f"{drift[0]:+.3f} bits/byte") == 1, "the drift is told once"
    for written in (page(comparison), markdown(comparison), printed(comparison)):
        assert "The rule: a run is worth taking" in " ".join(written.split())
    assert json.loads(as_json(comparison))["tolerate"] == {
        "general_drift": 0.02, "unit": "bits/byte", "runs": {"Method 0": side},
    }  # fmt: skip


def test_each_run_is_judged_by_the_general_text_that_it_measured():
    """A run without general text takes nothing from what is known of the others, and its own is said to be unknown."""
    first, second, third = drifting((0.92, 0.01), (0.01, 0.001), (0.5, 0.01))
    second["general"] = []
    third["general"] = ["wiki"]
    third["summary"]["bits_per_byte"]["general_drift"] = {"wiki": {"value": 0.5, "low": 0.49, "high": 0.51}}
    comparison = of(first, second, third, tolerate=0.02)
    assert [comparison.side(run) for run in range(3)] == ["beyond", "not measured", "beyond"]
    assert recommended(comparison) == 1
    said = " ".join(verdict(comparison))
    assert "The gain of Method 0" in said
    assert "general text lost more than 0.02 bits/byte: take it only if that does not matter" in said
    assert "General drift not measured: Method 1." in said
    assert "General drift beyond the tolerance: Method 0 +0.920 bits/byte (+0.910 to +0.930); Method 2 +0.500" in said


def test_a_difference_that_the_page_does_not_show_is_none():
    """Two kernels, or two number formats, differ by rounding, and paired intervals of that leave 0 out."""
    plain, other = results("plain", "Sequential", 0.1), results("other", "Other", 0.1)
    for key in ("learnt", "gained"):
        for name, estimate in other["summary"]["bits_per_byte"][key].items():
            base = plain["summary"]["bits_per_byte"][key][name]
            for found, shift in ((base, 0.0), (estimate, 1e-5)):
                found["value"] = (found["value"] or 0.0) + shift
                found["low"], found["high"] = found["value"] - 1e-6, found["value"] + 1e-6
    comparison = of(plain, other)
    assert comparison.measure("bits_per_byte", "learnt").difference(1, 0).sign == 1
    assert comparison.measure("bits_per_byte", "learnt").judge(1, 0) == 0


def test_of_single_runs_it_is_said_that_seeds_are_not_in_the_intervals():
    plain, das = results("plain", "Sequential", 0.1), results("das", "DAS", 0.2)
    assert "There is one run of each: the intervals show what other text" in " ".join(verdict(of(plain, das)))
    das["seed"] = 3
    assert "one run of each, and their seeds differ (7 and 3)" in " ".join(verdict(of(plain, das)))
    assert "one run of each" not in " ".join(verdict(of(plain)))


def test_of_several_runs_the_best_that_keeps_general_text_is_taken():
    comparison = of(*drifting((0.5, 0.01), (0.021, 0.01), (0.01, 0.001)), tolerate=0.02)
    assert comparison.ranking == (0, 1, 2)
    said = verdict(comparison)
    assert said[0].startswith("Take Method 2: at the end of the stream it is 0.2")
    assert said[0].endswith("the largest gain of the runs whose general text is within the tolerance.")
    assert said[1].startswith("The gain of Method 0 (+0.")
    assert said[1].endswith("general text lost more than 0.02 bits/byte: take it only if that does not matter.")
    assert said[2].endswith("whether general text lost more than 0.02 bits/byte is undecided.")
    assert recommended(comparison) == 2
    rule = next(sentence for sentence in said if sentence.startswith("General drift within"))
    assert rule.startswith("General drift within the tolerance: Method 2 +0.010 bits/byte")


def test_where_no_run_keeps_general_text_none_is_taken():
    comparison = of(*drifting((0.5, 0.01), (0.4, 0.01)), tolerate=0.02)
    assert recommended(comparison) is None
    assert verdict(comparison)[0].startswith(
        "None is worth taking unless general text may lose more than 0.02 bits/byte: Method 0 has the largest gain"
    )
    undecided = of(*drifting((0.5, 0.01), (0.021, 0.01)), tolerate=0.02)
    said = verdict(undecided)
    assert said[0].startswith("Which run to take is undecided: Method 1 has the largest gain (+0.")
    assert said[0].endswith(") of those that may be within the tolerance.")
    assert said[1].startswith("The gain of Method 0 (+0.")
    assert said[1].endswith("general text lost more than 0.02 bits/byte: take it only if that does not matter.")
    assert said[2] == (
        "Whether general text of Method 1 lost more than 0.02 bits/byte cannot be told: more held-out general text "
        "(`evaluation.blocks`) narrows the interval."
    )
    assert recommended(of(*drifting((0.5, 0.01), (0.4, 0.01)), tolerate=0.6)) == 0


def test_more_text_is_not_advised_where_the_intervals_are_over_seeds(tmp_path):
    folders = []
    for seed, drift in ((1, 0.019), (2, 0.023)):
        for found in drifting((drift, 0.01), (drift, 0.01)):
            folders.append(report_fixture.write_run(tmp_path / f"{found['run']}-{seed}", found | {"seed": seed}))
    said = " ".join(verdict(compare(folders, tolerate=0.02)))
    assert "Method 1 lost more than 0.02 bits/byte cannot be told: more seeds narrow the interval." in said
    assert "evaluation.blocks" not in said


def test_a_drift_without_an_interval_is_undecided():
    found = drifting((0.01, 0.001))
    found[0]["summary"]["bits_per_byte"]["general_drift"]["general"] = 0.01
    assert of(*found, tolerate=0.02).side(0) == "undecided"


def test_the_reason_of_the_default_tolerance_is_computed():
    """What docs/evaluation.md says that halving a model costs, by the law of Hoffmann et al."""
    text = " ".join((Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8").split())
    parameters, bytes_per_token = (135e6, 1e9, 7e9), 4.3
    costs = [406.4 * ((n / 2) ** -0.34 - n**-0.34) / np.log(2) / bytes_per_token for n in parameters]
    halving = "costs {:.3f} bits per byte at 135 million parameters, {:.3f} at 1 billion and {:.3f} at 7 billion"
    assert halving.format(*costs) in text
    nats = TOLERATED_DRIFT * np.log(2) * bytes_per_token
    assert f"{TOLERATED_DRIFT} bits per byte: at 4.3 bytes per token that is {nats:.2f} nats" in text
    assert f"a perplexity {100 * (np.exp(nats) - 1):.0f} % higher" in text


def test_the_first_of_runs_that_end_alike_is_not_said_to_end_better():
    first, *_ = verdict(of(results("plain", "Sequential", 0.1), results("das", "DAS", 0.1, seed=0)))
    assert first.startswith("Take Sequential or DAS: ")
    assert "more than in any other run" not in first


def cut(matrix, count):
    matrix["rows"] = matrix["rows"][:count]
    matrix["cells"] = [cell for cell in matrix["cells"] if cell[0] in matrix["rows"]]


def unfinished(found, stages):
    found = copy.deepcopy(found) | {"status": "running"}
    for matrix in found["matrices"].values():
        cut(matrix, stages + 1)
    for summary in found["summary"]["bits_per_byte"].values():
        for domain in DOMAINS[stages:]:
            summary.pop(domain, None)
    return found


def test_an_unfinished_run_is_not_recommended_over_a_finished_one():
    """It has had no time to forget: after two of six domains it is ahead of the other's end."""
    comparison = of(results("plain", "Sequential", 0.2), unfinished(results("das", "DAS", 0.2), 2))
    assert recommended(comparison) is None
    assert comparison.differing["domains learnt"] == ("6 of 6", "2 of 6")
    assert all(measure.judge(1, 0) is None for measure in comparison.headline)
    assert verdict(comparison)[0] == ("No run can be recommended yet: DAS is not finished (2 of 6 domains learnt).")
    assert "clearly" not in " ".join(verdict(comparison)).partition("The rule:")[0]
    assert not of(unfinished(results("das", "DAS", 0.2), 2)).differing, "alone, it differs from nothing"


def test_an_unfinished_run_alone_says_how_far_it_is():
    (first, *_) = verdict(of(unfinished(results("das", "DAS", 0.2), 2)))
    assert first.startswith(
        "DAS is not finished: 2 of 6 domains are learnt. So far the difference to the base model is +0"
    )


# Runs that differ in more than their methods.


def test_what_only_one_run_has_is_named_once():
    """A domain or task that another run has not is no setting of that run, which would be called its default."""
    one = "domains: [{name: a, path: x, split: train}]\nend_tasks: []\ngeneral: null\n"
    two = (
        "domains: [{name: a, path: y, split: train}, {name: b, path: z, split: train}]\n"
        "end_tasks: [{name: t, train: u}]\n"
    )
    runs = [
        replace(from_results(results("x", "X", 0.1, domains=list(names)), names), recipe=text)
        for names, text in (("a", one), ("ab", two))
    ]
    assert unlike(runs) == Differences({"path of a": ("x", "y")}, {"order of domains": ("a", "a, b")})


# What was effective, and not how the recipe says it.


def test_without_recipes_the_tokens_tell(tmp_path):
    plain, das = results("plain", "Sequential", 0.12), results("das", "DAS", 0.06)
    assert of(plain, das).differing == {}
    for stage in das["cost"]["stages"]:
        stage["tokens"] *= 2
    assert of(plain, das).differing == {"tokens on each domain": ("245,760", "491,520")}


# Several seeds of one recipe.


def test_of_runs_that_end_alike_the_one_that_keeps_general_text_is_named():
    plain, das = results("plain", "Sequential", 0.3), results("das", "DAS", 0.3)
    das["summary"]["bits_per_byte"]["general_drift"]["general"] = report_fixture.estimate(0.05, 0.01)
    said = " ".join(verdict(of(plain, das)))
    assert said.startswith("Take Sequential or DAS: at the end of the stream Sequential is 0.")
    assert "better at its domains than the base model, and the gain of the other is not clearly different." in said
    assert "With Sequential, a domain had gained" in said
    assert re.search(r"Of these, DAS \(by 0\.\d+ bits/byte \(.*\)\) clearly kept more general knowledge\.", said)


def test_a_quantity_that_an_older_file_lacks_comes_from_its_scores():
    found = results("das", "DAS", 0.1)
    kept = found["summary"]["bits_per_byte"].pop("gained")
    gained = of(found).measure("bits_per_byte", "gained").estimates[0]
    assert gained.value == pytest.approx(kept["mean"]["value"])
    assert gained.interval is None


def test_a_method_that_wins_nothing_is_told_so():
    plain = results("plain", "Sequential", 0.1)
    same = of(plain, results("das", "DAS", 0.1))
    assert "No difference between DAS and Sequential is larger than its uncertainty." in verdict(same)
    assert verdict(same)[0].startswith("Take Sequential or DAS: ")
    worse = " ".join(verdict(of(plain, results("das", "DAS", 0.2))))
    assert "Compared with Sequential, DAS ended worse, forgot" in worse
    assert "and is clearly better at nothing." in worse
    assert worse.startswith("Take Sequential")


def test_runs_that_gained_are_not_said_to_have_forgotten():
    comparison = of(results("plain", "Sequential", -0.12), results("das", "DAS", -0.06))
    against = next(sentence for sentence in verdict(comparison) if sentence.startswith("Compared with Sequential"))
    assert "gained less from later domains and gained less on general text, and is clearly" in against
    assert "forgot" not in against
    assert "Nothing was forgotten: later domains made the earlier ones better" in " ".join(verdict(comparison))


def test_without_intervals_nothing_is_claimed():
    plain, das = results("plain", "Sequential", 0.1), results("das", "DAS", 0.01)
    for found in (plain, das):
        for summary in found["summary"].values():
            for estimates in summary.values():
                for estimate in estimates.values():
                    estimate["low"] = None
    comparison = of(plain, das)
    assert all(measure.best is None for measure in comparison.headline)
    assert verdict(comparison)[0].startswith("No run can be recommended: DAS is best at the end")
    assert recommended(comparison) is None


def test_one_run_is_told_alone():
    sentences = " ".join(verdict(of(results("das", "DAS", 0.1))))
    assert sentences.startswith("DAS is worth taking: at the end of the stream it is 0.479 bits/byte (")
    assert "By the end, earlier domains had lost" in sentences


def test_runs_with_other_domains_and_metrics_compare_on_what_they_share():
    small = results("das", "DAS", 0.06, domains=["networkx", "sympy", "extra"])
    del small["matrices"]["macro_f1"]
    comparison = of(results("plain", "Sequential", 0.12), small)
    assert comparison.domains == ("sympy", "networkx")
    assert "macro_f1" not in comparison.metrics
    learnt, forgotten = comparison.headline[1:3]
    assert set(learnt.columns) == {"sympy", "networkx"}
    own = results("plain", "Sequential", 0.12)["summary"]["bits_per_byte"]["learnt"]
    assert learnt.estimates[0].value == pytest.approx((own["sympy"]["value"] + own["networkx"]["value"]) / 2)
    assert set(forgotten.columns) == {"networkx", "sympy"}
    text = " ".join(comparison.notes)
    assert "pandas" in text
    assert "extra (DAS)" in text
    assert "macro_f1" in text
    assert "different orders" in text


def test_means_that_the_file_has_no_columns_for_are_taken_again():
    comparison = of(results("plain", "A", 0.12), results("das", "B", 0.06, domains=["sympy", "extra"]))
    rate = comparison.measure("bits_per_byte", "forgetting_rate")
    forgotten = comparison.measure("bits_per_byte", "forgotten")
    assert rate.estimates == forgotten.estimates
    average = comparison.measure("accuracy", "average")
    assert average.estimates[0].value == comparison.matrices("accuracy", 0)[0].cell(-1, "sympy-subpackage").value


def test_runs_that_share_nothing_still_compare():
    comparison = of(results("plain", "A", 0.1, domains=["x"]), results("das", "B", 0.1, domains=["y"]))
    assert comparison.domains == ()
    assert [measure.quantity.key for measure in comparison.headline] == ["general_drift"]
    verdict(comparison)


def test_an_unfinished_run_says_so():
    found = results("das", "DAS", 0.1)
    for matrix in found["matrices"].values():
        cut(matrix, 3)
    found["status"] = "running"
    assert "2 of 6 stages" in of(found).notes[0]


def test_a_run_before_its_first_measurement():
    found = {"matrices": {}, "domains": ["a"], "status": "running", "summary": {}}
    assert "has not been measured yet" in " ".join(verdict(of(found)))


def test_labels_are_unique():
    found = results("das", "DAS", 0.1)
    assert of(found, found | {"run": "other"}, found).labels == ("DAS · das (1)", "DAS · other", "DAS · das (2)")


def test_a_note_of_every_run_is_said_once():
    plain, das = results("plain", "Sequential", 0.1), results("das", "DAS", 0.1)
    das["notes"] = [*plain["notes"], "Its own."]
    assert of(plain, das).notes == (*plain["notes"], "DAS: Its own.")


def test_no_run_is_an_error():
    with pytest.raises(RunError, match="at least one run"):
        compare([])


# Paired comparisons: runs that kept the cells they were scored on.


def measured_run(folder, shift, blocks=40, seed=0):
    """A run of two domains whose blocks differ wildly; `shift` is what it forgets of the first, in nats per label."""
    hard = np.random.default_rng(seed).uniform(20, 200, blocks)
    items = np.full(blocks, 50)
    change = {"a": [0, -0.8, -0.8 + shift], "b": [0, 0.0, -0.5], "general": [0, 0.1, 0.2 + shift]}
    losses = {
        (row, name): text_cell(hard + 50 * steps[row], items, 4.0, mark=name)
        for name, steps in change.items()
        for row in range(3)
    }
    truth = np.arange(blocks) % 2
    random = np.random.default_rng(seed + 1)
    tasks = {}
    for row in range(3):
        wrong = random.random(blocks) < 0.3
        tasks[row, "task"] = classification_cell(truth, np.where(wrong, 1 - truth, truth)[None], np.array([0, 1]), (0,))
    facts = RunFacts(
        run=folder.name, methods=[MethodUsed(name="m", title=folder.name)], objective="causal", model="x", seed=seed
    )
    found = build_results(facts, ["a", "b"], ["general"], losses, tasks, {"task": "a"})
    folder.mkdir()
    found.save(folder / "results.json")
    for (row, name), cell in losses.items():
        cell.save(set_path(folder / "evaluation", row, name))
    for (row, name), task in tasks.items():
        task.save(task_path(folder / "evaluation", row, name))
    return folder


def test_differences_are_paired_where_the_cells_are_kept(tmp_path):
    comparison = compare([measured_run(tmp_path / "plain", 0.3), measured_run(tmp_path / "das", 0.2)])
    forgotten = comparison.measure("bits_per_byte", "forgotten")
    assert forgotten.paired
    difference = forgotten.difference(1)
    # Every block differs by exactly the same amount, so the paired interval is a point while each own score's is wide.
    expected = -0.1 / np.log(2) / 4.0
    assert difference.value == pytest.approx(expected, rel=1e-9)
    assert difference.interval == pytest.approx((expected, expected), rel=1e-9)
    assert forgotten.judge(1) == 1
    assert forgotten.column("a").difference(1).interval == pytest.approx((expected, expected), rel=1e-9)
    average = comparison.measure("accuracy", "average")
    assert average.paired
    assert "resampled in pairs" in difference_table(comparison).caption
    assert average.difference(1).interval == (0.0, 0.0)


def test_runs_on_other_text_are_not_paired(tmp_path):
    runs = [measured_run(tmp_path / "plain", 0.3), measured_run(tmp_path / "das", 0.2)]
    for row in range(3):
        path = set_path(runs[1] / "evaluation", row, "a")
        replace(Cell.load(path), fingerprint="of other blocks").save(path)
    comparison = compare(runs)
    assert not comparison.measure("bits_per_byte", "forgotten").paired
    assert comparison.measure("bits_per_byte", "general_drift").paired


def test_a_damaged_cell_costs_the_pairing_and_not_the_report(tmp_path):
    runs = [measured_run(tmp_path / "plain", 0.3), measured_run(tmp_path / "das", 0.2)]
    set_path(runs[0] / "evaluation", 1, "a").write_bytes(b"broken")
    task_path(runs[0] / "evaluation", 2, "task").unlink()
    comparison = compare(runs)
    assert not comparison.measure("bits_per_byte", "learnt").paired
    assert comparison.measure("bits_per_byte", "general_drift").paired
    assert not comparison.measure("accuracy", "average").paired


def test_the_input_is_not_changed():
    found = results("das", "DAS", 0.1)
    before = copy.deepcopy(found)
    of(found)
    assert found == before
    assert found["domains"] == DOMAINS


def test_a_leak_of_one_run_names_the_run():
    plain, das = results("plain", "Plain", 0.3), results("das", "DAS", 0.1)
    plain["leaked"] = {"a": 1.0}
    assert "(100 % of 'a' in Plain)" in " ".join(verdict(of(plain, das)))
    das["leaked"] = {"a": 0.5}
    assert "(100 % of 'a')" in " ".join(verdict(of(plain, das)))


@pytest.mark.parametrize("wrong", [[], "text", 3, ["a"], {"a": "much"}, {"a": {}}])
def test_what_is_no_table_of_shares_or_values_is_passed_over(wrong):
    run = from_results({**results("x", "X", 0.1), "leaked": wrong, "effective": wrong})
    assert run.leaked == {}
    assert unlike([run, run]) == Differences()
