"""Benchmarks of chat models and preferences: what they train on, and that their pages say what was measured."""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tiny
from cli_project import Project
from everlearn import files
from everlearn.commands.recommendation import METHOD
from everlearn.config.recipe import load

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
TEMPLATE = "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("dpo", monkeypatch)


def test_chosen_is_what_the_label_says_and_rejected_the_other_answer(script: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "tasks" / script.TASK
    place.mkdir(parents=True)
    rows = [
        {"text": "good", "label": "positive"},
        {"text": "x" * 999, "label": "positive"},
        {"text": "bad", "label": "negative"},
    ]
    with gzip.open(place / "train.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    found = [
        [row[name][0]["content"] for name in ("prompt", "chosen", "rejected")]
        for row in script.pairs(tmp_path, "train", 9)
    ]
    assert found == [
        [f"{script.QUESTION}\n\ngood", "Positive.", "Negative."],
        [f"{script.QUESTION}\n\nbad", "Negative.", "Positive."],
    ]


def test_the_protected_arm_is_what_is_recommended_but_for_its_rows(script: ModuleType) -> None:
    (method,) = script.METHODS["recommended"]
    assert {**method, "samples": METHOD[0]["samples"]} == METHOD[0]
    assert script.METHODS["plain"] == ["sequential"]


def test_the_table_says_what_was_measured(script: ModuleType) -> None:
    def lost(value: float) -> list[dict[str, object]]:
        estimate = {"value": value, "low": value - 0.01, "high": value + 0.01}
        return [{"name": name, "forgotten": estimate} for name in ("general text", "papers")]

    plain = {
        "method": "plain",
        "learning_rate": 5e-5,
        "forgetting": lost(0.1234),
        "reward_accuracy": 0.75,
        "reward_margin": 1.5,
        "pairs": 64,
    }
    table = script.page({"earlier": {"forgetting": lost(-0.05)}, "trainings": [plain]}).splitlines()
    assert table[0].startswith("| training | rate | general text lost")
    assert table[2:] == [
        f"| SFT on {script.EARLIER}, recommended | 1e-04{' | -0.050 (-0.060 to -0.040)' * 2} |  |  |",
        "| DPO, plain | 5e-05 | +0.123 (+0.113 to +0.133) | +0.123 (+0.113 to +0.133) | 75% of 64 | 1.50 |",
    ]


@pytest.mark.parametrize(
    ("name", "result"), [("dpo", "dpo"), ("chat_adapter", "chat-adapter"), ("chat_remedies", "chat-remedies")]
)
def test_the_page_has_the_tables_of_the_result(name: str, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = imported(name, monkeypatch).page(files.read_json(RESULTS / f"{result}.json"))
    assert tables in (RESULTS / f"{result}.md").read_text(encoding="utf-8")


def test_what_is_said_of_preferences_is_what_was_measured() -> None:
    result = files.read_json(RESULTS / "dpo.json")
    lost = {
        (each["method"], each["learning_rate"]): [f"{text['forgotten']['value']:.3f}" for text in each["forgetting"]]
        for each in result["trainings"]
    }
    said = " ".join((RESULTS / "dpo.md").read_text(encoding="utf-8").split())
    plain, protected = lost["plain", 2e-4], lost["recommended", 2e-4]
    assert f"plain DPO costs {plain[0]} bits per byte of general text and {plain[1]} of the abstracts" in said
    assert f"with protection {protected[0]} and {protected[1]}." in said
    learnt = -result["earlier"]["forgetting"][1]["forgotten"]["value"]
    assert f"Of the {learnt:.3f} that had been learnt" in said
    assert float(plain[1]) / learnt == pytest.approx(0.75, abs=0.03)
    assert float(protected[1]) / learnt == pytest.approx(0.125, abs=0.01)
    gentle = lost["plain", 5e-5]
    assert f"plain DPO costs {gentle[0]} and {gentle[1]}." in said
    ranked = [each["reward_accuracy"] for each in result["trainings"]]
    assert f"{min(ranked):.0%} to {max(ranked):.0%} of 64".replace("%", " %").replace(" % to", " to") in said
    seconds = {(each["method"], each["learning_rate"]): each["seconds"] for each in result["trainings"]}
    more = sorted(seconds["recommended", rate] / seconds["plain", rate] - 1 for rate in (5e-5, 2e-4))
    assert f"took {more[0] * 100:.0f} to {more[1] * 100:.0f} % more time" in said


def test_what_is_said_of_the_chat_run_is_what_was_measured() -> None:
    result = files.read_json(RESULTS / "chat-adapter.json")
    said = " ".join((RESULTS / "chat-adapter.md").read_text(encoding="utf-8").split())
    protected, plain, lowered = (each["summary"]["bits_per_byte"] for each in result["runs"].values())
    (note,) = [note for note in result["runs"]["LoRA, MAS, stop"]["notes"] if "`stop.earlier` allows (0.02)" in note]
    assert "'german', step 20 of 60: 'word_problems' is predicted 0.0314 (+0.0252 to +0.0376)" in note
    assert "word problems were 0.031 bits per byte worse (0.025 to 0.038)" in said
    lost, german = plain["forgotten"]["word_problems"]["value"], plain["learnt"]["german"]["value"]
    assert f"it had lost {lost:.3f} of word problems and learnt {german:.3f} of German" in said
    at_end = lowered["forgotten"]["word_problems"]
    assert (
        f"learnt {lowered['learnt']['german']['value']:.3f}. At the end {at_end['value']:.3f} of word problems" in said
    )
    assert f"were lost ({at_end['low']:.3f} to {at_end['high']:.3f})" in said
    rates = [
        note for note in result["runs"]["LoRA, MAS, stop that lowers the rate"]["notes"] if "learning rate" in note
    ]
    assert [rate in note for rate, note in zip(("0.5 of", "0.25 of"), rates, strict=True)] == [True, True]
    learnt = [each["learnt"]["word_problems"]["value"] for each in (protected, plain)]
    assert f"({learnt[0]:.3f} against {learnt[1]:.3f})" in said
    chats = [
        [round(24 * value) for _, task, value, *_ in each["matrices"]["chats"]["cells"] if task == "chat"]
        for each in result["runs"].values()
    ]
    assert f"Of 24 short questions, {chats[0][0]} were answered as a chat before, {chats[0][-1]} after the" in said
    assert f"{chats[1][-1]} after LoRA alone and {chats[2][-1]} after the run that lowers the rate" in said
    loaded, size = result["loaded"], result["loaded"]["bytes"]
    assert not loaded["everlearn_imported"]
    assert loaded["merged"]["answer"] == loaded["adapter"]["answer"]
    assert f"({size['adapter'] / 1e6:.1f} MB)" in said
    assert f"({size['merged'] / 1e6:.0f} MB)" in said


def test_word_problems_become_chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = imported("chat_adapter", monkeypatch)
    place = tmp_path / script.PROBLEMS
    place.parent.mkdir(parents=True)
    with gzip.open(place, "wt") as file:
        file.write(json.dumps({"question": "1 + 1?", "answer": "2"}))
    script.write_chats(tmp_path, tmp_path / "chats.jsonl")
    (row,) = (tmp_path / "chats.jsonl").read_text().splitlines()
    assert json.loads(row) == {
        "messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    }


def test_the_runs_differ_in_the_penalty_and_the_stop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    script = imported("chat_adapter", monkeypatch)
    protected, plain, lowered = (load(script.RECIPE, changes) for changes in script.WAYS.values())
    assert [method["name"] for method in protected.method] == ["lora", "mas"]
    assert plain.method == protected.method[:1]
    assert plain.stop is None
    assert plain.changed(method=list(protected.method), stop=protected.stop) == protected
    assert lowered.stop is not None
    assert lowered.stop.then == "lower"
    assert lowered.changed(stop=protected.stop) == protected
    ((recommended,), own) = METHOD, yaml.safe_load(script.RECIPE.read_text())["method"][1]
    assert {**own, "samples": recommended["samples"]} == recommended


@pytest.mark.usefixtures("no_report")
def test_the_row_that_lowers_the_rate_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, everlearn: Project, models: Path
) -> None:
    """On a tiny model, with bounds that its second domain exceeds at every rate."""
    script = imported("chat_adapter", monkeypatch)

    def call(*arguments: str) -> None:
        assert everlearn.call(*arguments).code == 0

    monkeypatch.setattr(script, "everlearn", call)
    model, data, chats = (
        shutil.copytree(models / "llama", tmp_path / "tiny"),
        tmp_path / "data",
        tmp_path / "chats.jsonl",
    )
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    recipe = yaml.safe_load(script.RECIPE.read_text())
    texts, numbers = tiny.texts(120, words=30), [f"{seed:060}" for seed in range(120)]
    for place, lines in ((recipe["domains"][1], numbers), (recipe["general"], texts)):
        for part, some in (("path", lines[:80]), ("validation", lines[80:])):
            path = data / place[part]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in some).encode()))
    said = [[{"role": "user", "content": text[:9]}, {"role": "assistant", "content": text[:40]}] for text in texts]
    files.write_text(chats, "".join(json.dumps({"messages": chat}) + "\n" for chat in said))
    small = ["data.block_size=64", "train.max_steps=4", "train.bf16=false", "stop.every=2", "stop.earlier=0"]
    small += ["train.learning_rate=1e-2"]
    changes = [*script.overrides(script.RECIPE, model, data, chats), *small, "evaluation.chat=false"]
    way = "LoRA, MAS, stop that lowers the rate"
    results = script.run(script.RECIPE, tmp_path / "run", [*changes, *script.WAYS[way]])
    assert [stage["domain"] for stage in results["cost"]["stages"]] == ["word_problems", "german"]
    lowered = "Training continues from its beginning, since no measured step was within the bounds, with 0.5 of the"
    assert any("'german', step 2 of 4" in note and lowered in note for note in results["notes"]), results["notes"]


def test_remedies_differ_in_the_method_or_the_rate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    script = imported("chat_remedies", monkeypatch)
    rows = {row: load(script.RECIPE, changes) for row, changes in script.ROWS.items()}
    plain = rows["plain training at 3e-4"]
    for row, recipe in rows.items():
        assert (recipe.method == plain.method) == row.startswith("plain"), row
        same = recipe.changed(method=list(plain.method))
        assert same.changed(train={**plain.train}) == plain, row
        assert (recipe.train == plain.train) == (row not in ("plain training at 3e-5", "plain training at 1e-4")), row


def test_questions_are_asked_without_their_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = imported("chat_remedies", monkeypatch)
    place = tmp_path / script.QUESTIONS
    place.parent.mkdir(parents=True)
    with gzip.open(place, "wt") as file:
        file.write("\n".join(json.dumps({"query": f"Question: {n}?", "choices": ["a", "b"]}) for n in range(200)))
    script.write_questions(tmp_path, tmp_path / "questions.jsonl")
    asked = [json.loads(row) for row in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert asked == [{"text": f"{n}?"} for n in range(96)]


def test_what_is_said_of_plain_training_of_chats_is_what_was_measured() -> None:
    result = files.read_json(RESULTS / "chat-remedies.json")
    said = " ".join((RESULTS / "chat-remedies.md").read_text(encoding="utf-8").split())
    chats = [
        [
            f"{value:.0%}".replace("%", " %")
            for _, task, value, *_ in run["matrices"]["chats"]["cells"]
            if task == "chat"
        ]
        for run in result["runs"].values()
    ]
    low, middle, high = chats[:3]
    assert f"in the end {low[-1]} and {middle[-1]} of the questions" in said
    assert f"more than by the model itself ({low[0]})" in said
    assert f"and {high[-1]} of the questions are answered as a chat" in said
    assert f"{middle[1]} of the questions are answered as a chat at 1e-4, and none at 3e-4" in said
    assert high[1] == "0 %"
    lost = result["runs"]["plain training at 3e-4"]["summary"]["bits_per_byte"]
    assert f"general text by {lost['general_drift']['general']['value']:.3f} bits per byte" in said
    assert f"word problems by {lost['forgotten']['word_problems']['value']:.3f}" in said


def test_what_is_said_of_the_remedies_is_what_was_measured() -> None:
    result = files.read_json(RESULTS / "chat-remedies.json")
    said = " ".join((RESULTS / "chat-remedies.md").read_text(encoding="utf-8").split())
    numbers = {row: run["summary"]["bits_per_byte"] for row, run in result["runs"].items()}
    chats = {
        row: [value for _, task, value, *_ in run["matrices"]["chats"]["cells"] if task == "chat"][-1]
        for row, run in result["runs"].items()
    }

    def number(row: str, quantity: str, text: str) -> str:
        return f"{abs(numbers[row][quantity][text]['value']):.3f}"

    def share(value: float) -> str:
        return f"{value:.0%}".replace("%", " %")

    plain, budget = "plain training at 3e-4", "budget"
    drift = ("general_drift", "general")
    assert f"general text is predicted {number(budget, *drift)} better than before" in said
    assert numbers[budget]["general_drift"]["general"]["high"] < 0
    assert (
        numbers[budget]["forgotten"]["word_problems"]["low"] < 0 < numbers[budget]["forgotten"]["word_problems"]["high"]
    )
    learnt = [number(row, "learnt", text) for text in ("word_problems", "german") for row in (budget, plain)]
    assert f"({learnt[0]} against {learnt[1]}) and less of German ({learnt[2]} against {learnt[3]})" in said
    assert f"{share(chats[budget])} of the questions are answered as a chat. It learnt more" in said
    assert numbers["self-distillation"]["learnt"]["word_problems"]["value"] < 0
    assert f"less likely, by {number('self-distillation', 'learnt', 'word_problems')} bits per byte" in said
    assert f"answers {share(chats['self-distillation'])} of the questions as a chat in the end" in said
    assert f"with the same loss of general text ({number('self-distillation', *drift)})" in said
    own = "chats of its own"
    assert f"did not keep general text ({number(own, *drift)} lost)" in said
    lost = [number(row, "forgotten", "word_problems") for row in (own, plain)]
    assert f"({lost[0]} lost against {lost[1]}" in said
    assert f"only {share(chats[own])} of the questions are answered as a chat" in said
    gentle = numbers["plain training at 1e-4"]
    assert all(
        gentle["learnt"][text]["value"] > numbers[row]["learnt"][text]["value"]
        for row in (budget, own, "self-distillation")
        for text in ("word_problems", "german")
    )
    assert gentle["general_drift"]["general"]["value"] < numbers[budget]["general_drift"]["general"]["value"]
    ended = [share(result["with_room"][row]) for row in (own, plain)]
    assert f"with room for 160 tokens it is {ended[0]}, against {ended[1]} after plain training" in said
