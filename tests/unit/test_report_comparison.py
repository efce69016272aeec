import copy
from dataclasses import replace

import numpy as np
import pytest
import report_fixture
from report_fixture import DOMAINS, results

from everlearn.errors import RunError
from everlearn.evaluation import Cell, RunFacts, build_results, classification_cell, set_path, task_path, text_cell
from everlearn.evaluation.results import MethodUsed
from everlearn.report import compare, verdict
from everlearn.report.comparison import compare_runs
from everlearn.report.runs import from_results
from everlearn.report.tables import headline_table


def of(*found, **changes):
    return compare_runs([from_results({**entry, **changes}) for entry in found])


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return compare(report_fixture.write_runs(tmp_path_factory.mktemp("runs")))


def test_the_headline(both):
    assert [m.title for m in both.headline] == ["Learnt", "Forgotten", "General drift", "End-task accuracy"]
    assert [m.judge(1) for m in both.headline] == [-1, 1, 1, 0]
    assert [m.best for m in both.headline] == [0, 1, 1, None]
    assert both.labels == ("Sequential", "DAS")
    assert both.metrics[0] == "bits_per_byte"


def test_the_verdict_names_what_was_won_and_what_it_cost(both):
    sentences = verdict(both)
    assert sentences[0] == (
        "DAS trades: compared with Sequential it clearly forgot less and kept more general knowledge, but learnt less."
    )
    assert "No clear difference in end-task accuracy." in sentences
    assert "It took 1.32 times as long (2 min 51 s)." in sentences


def test_a_method_that_wins_nothing_is_told_so():
    plain = results("plain", "Sequential", 0.1)
    same = of(plain, results("das", "DAS", 0.1))
    assert verdict(same)[0] == "DAS did not win: no difference to Sequential is larger than its uncertainty."
    worse = of(plain, results("das", "DAS", 0.2))
    assert verdict(worse)[0].startswith(
        "DAS did not win: it is clearly better than Sequential at nothing, and it forgot"
    )


def test_runs_that_gained_are_not_said_to_have_forgotten():
    comparison = of(results("plain", "Sequential", -0.12), results("das", "DAS", -0.06))
    assert verdict(comparison)[0].endswith("gained less from later domains and gained less on general text.")
    assert "forgot" not in verdict(comparison)[0]


def test_without_intervals_nothing_is_claimed():
    plain, das = results("plain", "Sequential", 0.1), results("das", "DAS", 0.01)
    for found in (plain, das):
        for summary in found["summary"].values():
            for estimates in summary.values():
                for estimate in estimates.values():
                    estimate["low"] = None
    comparison = of(plain, das)
    assert all(measure.best is None for measure in comparison.headline)
    assert "cannot be said" in verdict(comparison)[0]


def test_one_run_is_told_alone():
    sentences = " ".join(verdict(of(results("das", "DAS", 0.1))))
    assert "DAS learnt 6 domains one after another" in sentences
    assert "It forgot" in sentences


def test_runs_with_other_domains_and_metrics_compare_on_what_they_share():
    small = results("das", "DAS", 0.06, domains=["networkx", "sympy", "extra"])
    del small["matrices"]["macro_f1"]
    comparison = of(results("plain", "Sequential", 0.12), small)
    assert comparison.domains == ("sympy", "networkx")
    assert "macro_f1" not in comparison.metrics
    learnt, forgotten = comparison.headline[:2]
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
    assert average.estimates[0].value == comparison.matrix(0, "accuracy").cell(-1, "sympy-subpackage").value


def test_runs_that_share_nothing_still_compare():
    comparison = of(results("plain", "A", 0.1, domains=["x"]), results("das", "B", 0.1, domains=["y"]))
    assert comparison.domains == ()
    assert [measure.kind.key for measure in comparison.headline] == ["general_drift"]
    verdict(comparison)


def test_an_unfinished_run_says_so():
    found = results("das", "DAS", 0.1)
    for matrix in found["matrices"].values():
        for key in ("rows", "values", "low", "high"):
            matrix[key] = matrix[key][:3]
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
    assert "resampled in pairs" in headline_table(comparison).caption
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
