"""``everlearn evaluate`` and what ``plan`` says about evaluation."""

from __future__ import annotations

import json

import pytest

from everlearn.evaluation import Cell, Results, set_path


@pytest.fixture
def asked(everlearn):
    everlearn.recipe["evaluation"] |= {"blocks": 4}
    everlearn.recipe["end_tasks"] = [
        {"name": "topics", "domain": "a", "train": "train.jsonl", "test": "test.jsonl", "epochs": 1, "max_length": 32}
    ]
    return everlearn


def test_models_that_exist_get_a_row_each(asked):
    assert asked("run", "recipe.yaml", "train.max_steps=2").code == 0
    stage = next(asked.run_folder.glob("stage-02-b"))
    found = asked(
        "evaluate", f"base={asked.models / 'roberta'}", str(stage), "--on", "recipe.yaml", "-o", "measured", "--json"
    )
    assert found.code == 0, found.err
    scores = json.loads(found.out)["matrices"]["bits_per_byte"]
    assert scores["rows"] == ["base", "stage-02-b"]
    assert {tuple(cell[:2]) for cell in scores["cells"]} == {(row, c) for row in scores["rows"] for c in ("a", "b")}
    # The same text, blocks and masks as in the run: the same scores.
    run = Results.load(asked.run_folder).matrices
    for metric in ("bits_per_byte", "loss", "accuracy"):
        mine, theirs = Results.load(asked.folder / "measured").matrices[metric].estimates(), run[metric].estimates()
        for column in run[metric].columns:
            assert mine["base", column].value == pytest.approx(theirs["base", column].value, rel=1e-6)
            assert mine["stage-02-b", column].value == pytest.approx(theirs["b", column].value, rel=1e-6)
    compared = {(each["metric"], each["column"]): each for each in json.loads(found.out)["differences"]}
    for column in ("a", "b"):
        change = compared["bits_per_byte", column]
        before, after = (mine_in[column] for mine_in in _levels(scores))
        assert change["row"] == "stage-02-b"
        assert change["difference"]["value"] == pytest.approx(after["value"] - before["value"], abs=1e-9)
        width = change["difference"]["high"] - change["difference"]["low"]
        assert width < 0.5 * (after["high"] - before["low"]), "paired: narrower than two levels side by side"
    cell = Cell.load(set_path(asked.folder / "measured" / "evaluation", 1, "a"))
    assert (cell.row, cell.task) == ("stage-02-b", "a")
    assert cell.same_examples(Cell.load(set_path(asked.run_folder / "evaluation", 2, "a")))
    shown = asked("report", "measured", "--format", "markdown")
    assert shown.code == 0, shown.err
    page = asked("report", "measured", "-o", "measured.html")
    assert page.code == 0, page.err
    assert "stage-02-b" in (asked.folder / "measured.html").read_text()


def _levels(scores):
    """Of each row: column → value, low, high."""
    cells = [
        (row, column, dict(zip(("value", "low", "high"), rest, strict=True))) for row, column, *rest in scores["cells"]
    ]
    return [{column: level for own, column, level in cells if own == row} for row in scores["rows"]]


def test_a_run_stands_for_its_stages_and_people_get_a_table(asked):
    assert asked("run", "recipe.yaml", "train.max_steps=2", "evaluation.end_tasks=final").code == 0
    found = asked("evaluate", str(asked.run_folder), "--on", "recipe.yaml", "--no-end-tasks")
    assert found.code == 0, found.err
    assert "first stage-01-a" in found.out
    assert "first stage-02-b" in found.out
    assert "Bits per byte ↓" in found.out
    assert "Bits per byte, difference to first stage-01-a" in found.out
    assert "Accuracy" not in found.out


def test_a_folder_that_was_used_before_measures_the_text_of_today(asked):
    asked.recipe.pop("end_tasks")
    model, other = str(asked.models / "roberta"), str(asked.folder / "other.jsonl")
    domains = json.loads(json.dumps(asked.recipe["domains"]))
    assert asked("evaluate", model, "--on", "recipe.yaml", "-o", "measured").code == 0
    texts = [json.dumps({"text": f"{number} is what this says. " * 9}) for number in range(60)]
    (asked.folder / "other.jsonl").write_text("\n".join(texts), encoding="utf-8")
    asked.recipe["domains"] = [{"name": domains[0]["name"], "path": other, "validation": 0.2}]
    found = [asked("evaluate", model, "--on", "recipe.yaml", "-o", place, "--json") for place in ("measured", "new")]
    assert [each.code for each in found] == [0, 0], found[0].err
    used, fresh = (json.loads(each.out)["matrices"]["bits_per_byte"]["cells"] for each in found)
    assert used == fresh
    resumed = asked("resume", "measured")
    assert resumed.code == 2
    assert "is not a run folder: it has the scores of models" in resumed.err
    assert not list((asked.folder / "measured").glob("stage-*"))


def test_a_run_is_not_overwritten(asked):
    asked.recipe.pop("end_tasks")
    assert asked("run", "recipe.yaml", "train.max_steps=2").code == 0
    before = {path.name: path.read_bytes() for path in asked.run_folder.iterdir() if path.is_file()}
    found = asked("evaluate", str(asked.models / "roberta"), "--on", "recipe.yaml", "-o", str(asked.run_folder))
    assert found.code == 2
    assert "is a run: its recipe and results would be lost" in found.err
    assert {path.name: path.read_bytes() for path in asked.run_folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{model}", "{model}"], "Two checkpoints would be called 'roberta'"),
        (["nowhere/at-all"], "'nowhere/at-all' (`model.path`) is no local folder"),
    ],
)
def test_what_cannot_be_evaluated_is_a_sentence(asked, arguments, sentence):
    asked.recipe.pop("end_tasks")
    given = [argument.format(model=asked.models / "roberta") for argument in arguments]
    found = asked("evaluate", *given, "--on", "recipe.yaml")
    assert found.code == 2
    assert sentence in found.err
    assert "Traceback" not in found.err


def test_the_plan_counts_what_is_measured(asked):
    def plan(*changes):
        found = asked("plan", "recipe.yaml", "--no-measure", "--json", *changes)
        assert found.code == 0, found.err
        return json.loads(found.out)["evaluation"]

    every, own = plan(), plan("evaluation.columns=own")
    assert (every["scores"], own["scores"]) == (6, 5)  # base, after a (and b), after b
    assert every["scored_tokens"] == 6 * 4 * 32
    assert every["tasks"] == 3
    # 32 examples in batches of 16 for one epoch: 2 steps forward and backward; 16 test examples forward.
    assert every["task_tokens"] == 3 * (3 * 32 + 16) * 32
    assert plan("evaluation.every=3")["scores"] == 6 + 2 * 2 * 2  # steps 3 and 4 of each stage, both sets
    shown = asked("plan", "recipe.yaml", "--no-measure")
    assert "scores of held-out text" in shown.out


def test_a_kind_of_end_task_that_there_is_not(asked):
    asked.recipe["end_tasks"][0]["kind"] = "clasification"
    found = asked("validate", "recipe.yaml")
    assert found.code == 2
    assert "`end_tasks.0.kind`: there is no kind of end task 'clasification'" in found.err + found.out
    assert "Did you mean 'classification'?" in found.err + found.out
    del asked.recipe["end_tasks"][0]["kind"]
    asked.recipe["end_tasks"][0]["epoch"] = 3
    found = asked("validate", "recipe.yaml")
    assert "Unknown key `end_tasks.0.epoch` (an end task of kind classification)." in found.err + found.out
    assert "'epochs'" in found.err + found.out
