"""Commands that look at checkpoints: evaluate, analyse, diff."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import glue_files
import tiny
from cli_project import Project
from everlearn.commands.evaluate import named
from everlearn.comparison.runs import read_run
from everlearn.evaluation import Cell, Results, set_path, task_path
from everlearn_bench.transfer_study.tables import stream_of

# -- ``everlearn evaluate`` and what ``plan`` says about evaluation ----------------------------------------------------


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
        (["{model}", "nowhere/at-all"], "'nowhere/at-all' (`model.path`) is no local folder"),
        (["{model}", "evaluation.blocks=4"], "no keys of the recipe (got 'evaluation.blocks=4')"),
        (["{model}", "general=null"], "no keys of the recipe (got 'general=null')"),
    ],
)
def test_what_cannot_be_evaluated_is_a_sentence(asked, arguments, sentence):
    asked.recipe.pop("end_tasks")
    given = [argument.format(model=asked.models / "roberta") for argument in arguments]
    found = asked("evaluate", *given, "--on", "recipe.yaml")
    assert found.code == 2
    assert sentence in found.err
    assert len(found.err.splitlines()) == 1, "nothing was measured before"


def test_a_path_may_have_an_equals_sign(asked):
    (asked.folder / "rate=1").symlink_to(asked.models / "roberta")
    assert [(each.label, each.path) for each in named(["rate=1", "x=rate=1"])] == [
        ("rate=1", "rate=1"),
        ("x", "rate=1"),
    ]


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


# -- ``everlearn analyse`` as a user types it, on one stage and between two --------------------------------------------


def test_a_run_from_its_start_to_its_page(everlearn: Project) -> None:
    everlearn.recipe |= {"method": {"name": "dga", "samples": 8}, "run": {"name": "first"}}
    everlearn.recipe["train"] |= {"max_steps": 2}
    everlearn.fails("analyse", "runs/first", says=("runs/first is not a run folder",))
    (everlearn.run_folder).mkdir(parents=True)
    everlearn("validate", "recipe.yaml")
    (everlearn.run_folder / "recipe.yaml").write_text((everlearn.folder / "recipe.yaml").read_text())
    everlearn.fails("analyse", "runs/first", says=("has not learnt a domain yet", "everlearn resume runs/first"))
    (everlearn.run_folder / "recipe.yaml").unlink()
    everlearn.run_folder.rmdir()
    assert everlearn("run", "recipe.yaml").code == 0
    shown = everlearn("analyse", "importance", "runs/first", "--blocks", "4", "-o", "page.html", "--json")
    assert shown.code == 0, shown.err
    value = json.loads(shown.out)
    assert value["occupied_share"]["stages"] == ["a", "b"]
    assert value["occupied_share"]["kinds"] == ["heads"]
    assert not value["occupied_share"]["grows"]
    assert value["similarity"]["domains"] == ["a", "b"]
    assert "held while it was learnt" in (everlearn.folder / "page.html").read_text(encoding="utf-8")
    assert everlearn.folder.name not in (everlearn.folder / "page.html").read_text(encoding="utf-8")
    (everlearn.folder / "a.jsonl").unlink()
    assert everlearn("analyse", "runs/first").code == 0
    assert "<h1>first: codelength, importance, movement</h1>" in (everlearn.run_folder / "analysis.html").read_text()


def test_a_run_without_importance_has_layers_that_moved(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 1}
    assert everlearn("run", "recipe.yaml", "method=kd").code == 0
    shown = everlearn("analyse", "runs/first")
    assert (shown.code, "since the base" in shown.out) == (0, True), shown.err
    assert "has no importance of units" in shown.out
    assert "<h2>How far each layer moved</h2>" in (everlearn.run_folder / "analysis.html").read_text()
    assert "`das`" in shown.out
    value = json.loads(everlearn("analyse", "runs/first", "--json").out)
    assert value["occupied_share"] is None
    (first, second) = value["moved"].values()
    assert first["since_base"] == first["since_before"]
    assert all(part["change"] > 0 for part in second["since_before"])
    without = ("has no importance of units", "Leave out --blocks")
    everlearn.fails("analyse", "importance", "runs/first", "--blocks", "4", says=without)
    without = ("has no importance of units", "Leave out --output")
    everlearn.fails("analyse", "importance", "runs/first", "-o", "page.html", says=without)
    everlearn.fails(
        "analyse", "importanec", "runs/first", says=("no analysis 'importanec'", "Did you mean 'importance'")
    )
    everlearn.fails("analyse", "ranks", "runs/first", "--context", "9", says=("Did you mean '--contexts'?",))
    everlearn.fails("analyse", "runs/none", says=("runs/none is not a run folder",))


def test_where_only_one_layer_was_trained_it_returns_everything(everlearn: Project) -> None:
    """Everything but the last layer is frozen, so that nothing else can have forgotten."""
    frozen = ["embeddings", "layers.0", "head"]
    everlearn.recipe["model"] = {"path": everlearn.recipe["model"], "frozen": frozen}
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.2}
    everlearn.recipe["train"] |= {"max_steps": 3, "learning_rate": 0.01}
    assert everlearn("run", "recipe.yaml").code == 0
    value = {}
    for kind, blocks in (("distance", "4"), ("layers", "8"), ("line", "8")):
        shown = everlearn("analyse", kind, "runs/first", "--blocks", blocks, "--json")
        assert shown.code == 0, shown.err
        value[kind] = json.loads(shown.out)
    everlearn("analyse", "codelength", "runs/first", "-o", "page.html")
    assert "Codelength" in (everlearn.folder / "page.html").read_text(encoding="utf-8")
    online = json.loads(everlearn("analyse", "codelength", "runs/first", "--json").out)["online_codelength"]
    online = {each["domain"]: each for each in online}
    assert online.keys() == {"a", "b"}
    assert all(each["once"] and each["steps"] == 3 and each["bits_per_byte"] > 0 for each in online.values())
    pairs = {(each["since"], each["until"]): each for each in value["distance"]["distances"]}
    assert list(pairs) == [("base", "a"), ("base", "b"), ("a", "b")]
    for each in pairs.values():
        by_layer = {layer["layer"]: layer for layer in each["layers"]}
        assert {name for name, layer in by_layer.items() if layer["change"] > 0} == {"layers.1", "all"}
        assert by_layer["all"]["cosine"] < 1 <= by_layer["layers.1"]["stable_rank"]
        assert all(drift["value"] > 0 for drift in each["drift"].values())
        assert each["drift"].keys() == {"a", "b", "general"}
    (restored,), (line,) = (value[kind]["going_back"] for kind in ("layers", "line"))
    assert (restored["since"], restored["until"]) == ("a", "b")
    assert restored["roles"] == {"a": "known before", "b": "learnt in between", "general": "general"}
    for name, column in restored["found"].items():
        back = dict(zip(restored["blends"], column, strict=True))
        earlier, later = (end["value"] for end in restored["ends"][name])
        assert back["layers.1"]["back"]["value"] == pytest.approx(later - earlier, rel=1e-12)
        assert back["layers.1"]["way"]["value"] in (None, 1)
        assert all(each["back"]["value"] == 0 for layer, each in back.items() if layer != "layers.1")
        assert (line["found"][name][0], line["found"][name][-1]["back"]["value"]) == (back["layers.1"], 0)
    for kind, title in (("distance", "Distances"), ("layers", "Layers put back"), ("line", "On the line between them")):
        page = (everlearn.run_folder / f"analysis-{kind}.html").read_text(encoding="utf-8")
        assert title in page
        assert ("<svg" in page) == (kind == "line")

    shown = everlearn("analyse", "layers", "runs/first", "--blocks", "8", "--from", "base", "--to", "a")
    assert shown.code == 0, shown.err
    assert "Layers put back: base and a" in shown.out
    for arguments, says in (
        (("distance", "--from", "bse", "--blocks", "4"), ("`--from` is 'bse'", "Did you mean 'base'?")),
        (("layers", "--from", "b", "--to", "a", "--blocks", "4"), ("`--from` is 'b'", "earlier")),
    ):
        everlearn.fails("analyse", arguments[0], "runs/first", *arguments[1:], says=says)


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["embedings"], ("`model.frozen` names 'embedings'", "Did you mean 'embeddings'?")),
        (["*.wieght"], ("`model.frozen` names '*.wieght'", "Known: embeddings")),
        (["*"], ("`model.frozen` leaves nothing to train",)),
    ],
)
def test_what_is_frozen_must_be_there(everlearn: Project, patterns: list[str], says: tuple[str, ...]) -> None:
    everlearn.recipe["model"] = {"path": everlearn.recipe["model"], "frozen": patterns}
    everlearn.fails("run", "recipe.yaml", says=says)


def test_knowledge_beside_the_weights_is_not_put_back(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 1}
    assert everlearn("run", "recipe.yaml", "method=dap_adapter").code == 0
    everlearn.fails("analyse", "layers", "runs/first", "--blocks", "4", says=("'dap_adapter'", "analyse distance"))
    value = json.loads(everlearn("analyse", "distance", "runs/first", "--blocks", "4", "--to", "b", "--json").out)
    (pair,) = value["distances"]
    assert next(each["change"] for each in pair["layers"] if each["layer"] == "all") == 0, "the base stands still"
    assert pair["drift"]["b"]["value"] > 0, "what it says does not"


def test_ranks_of_the_words_that_are_a_domains_own(everlearn: Project) -> None:
    everlearn.fails("run", "recipe.yaml", "evaluation.stride=4", says=("`evaluation.stride` is 4", "'masked'"))
    assert everlearn("run", "recipe.yaml", "evaluation.content=2").code == 0
    results = json.loads((everlearn.folder / "runs/first/results.json").read_text(encoding="utf-8"))
    run = read_run(everlearn.folder / "runs/first")
    assert "content_loss" in results["matrices"]
    assert results["alone"] == {}, "no domain was learnt alone"
    spreads = {metric: stream_of(run, metric).spread() for metric in ("bits_per_byte", "loss", "content_loss")}
    assert {metric: own["fg"]["all"].domains for metric, own in spreads.items()} == dict.fromkeys(spreads, 1)
    shown = everlearn("analyse", "ranks", "runs/first", "--contexts", "9", "-o", "page.html", "--json")
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)["prediction_ranks"]
    assert found["checkpoints"] == ["base", "a", "b"]
    assert all(0 <= count <= 9 for count in found["contexts"].values())
    for row in found["log_rank"]:
        assert {name for name, count in found["contexts"].items() if count} == row.keys()
        assert all(each["low"] <= each["value"] <= each["high"] for each in row.values())
    page = (everlearn.folder / "page.html").read_text(encoding="utf-8")
    assert "Prediction ranks" in page
    assert "The words of each domain" in page


# -- ``everlearn diff``: its table, sentence, JSON, page and mistakes --------------------------------------------------


@pytest.fixture
def text(everlearn):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in tiny.texts(60))
    (everlearn.folder / "words.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return everlearn


HOW = ("--block-size", "32", "--blocks", "8")


def test_two_models_are_compared_in_a_table_a_sentence_and_a_page(text):
    old, new = (str(text.models / name) for name in ("llama", "llama"))
    found = text("diff", f"first={old}", f"second={new}", "--text", "words.jsonl.gz", *HOW, "-o", "diff.html")
    assert found.code == 0, found.err
    assert "no difference" in found.out
    assert "On words (0.000 [0.000, 0.000] bits per byte) no difference can be shown." in found.out
    assert "Page: diff.html" in found.out
    page = (text.folder / "diff.html").read_text(encoding="utf-8")
    assert "second, compared with first" in page
    assert str(text.folder) not in page


def test_one_document_is_told_in_the_singular(text):
    (text.folder / "one.txt").write_text(" ".join(tiny.texts(2)), encoding="utf-8")
    model = str(text.models / "llama")
    found = text("diff", model, model, "--text", "one.txt", "--block-size", "32", "--blocks", "1")
    assert found.code == 0, found.err
    shown = " ".join(found.out.replace("│", " ").split())
    assert "1 document " in shown
    assert "1 passages" not in shown


def test_json_is_one_object_and_nothing_else(text):
    model = str(text.models / "roberta")
    found = text("diff", model, model, "--text", "mine=words.jsonl.gz", *HOW, "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert [each["name"] for each in data["texts"]] == ["mine"]
    assert data["kind"] == "masked"
    assert data["texts"][0]["verdict"] == "no difference"


def test_the_text_of_a_recipe_is_its_held_out_documents(text):
    text.recipe["end_tasks"] = [{"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}]
    model = str(text.models / "roberta")
    found = text("diff", model, model, "--on", "recipe.yaml", *HOW, "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert [each["name"] for each in data["texts"]] == ["a", "b"]
    assert any("topics" in note and "fine-tune" in note for note in data["notes"])
    assert all(each["documents"] <= 45 for each in data["texts"]), "of 150 documents a fifth is held out"


@pytest.mark.parametrize("columns", [("content",), ("id", "Body"), ("headline", "story")])
def test_the_column_of_text_is_found_as_init_finds_it(text, columns):
    rows = [dict.fromkeys(columns[:-1], "short") | {columns[-1]: words} for words in tiny.texts(60)]
    (text.folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = str(text.models / "llama")
    read = [
        text("diff", model, model, "--text", f"news={path}", *HOW, "--json")
        for path in ("words.jsonl.gz", "news.jsonl")
    ]
    assert [each.code for each in read] == [0, 0], read[1].err
    one, other = (json.loads(each.out) for each in read)
    assert one["texts"] == other["texts"]
    assert other["notes"] == [*one["notes"], f"The text of 'news' is its column '{columns[-1]}'."]


def test_the_column_of_text_may_be_named(text):
    rows = [{"prompt": "Who?" * 9, "answer": words} for words in tiny.texts(60)]
    (text.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = str(text.models / "llama")
    named = text("diff", model, model, "--text", "t=rows.jsonl", "--text-column", "answer", *HOW, "--json")
    plain = text("diff", model, model, "--text", "t=words.jsonl.gz", *HOW, "--json")
    assert json.loads(named.out)["texts"] == json.loads(plain.out)["texts"]
    missing = text("diff", model, model, "--text", "t=rows.jsonl", "--text-column", "body", *HOW)
    assert missing.code == 2
    assert "'body'" in missing.err


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "Who?", "answer": "I."}, "name the column that is to be read with `--text-column`"),
        ({"messages": [{"role": "user", "content": "Who?"}]}, "Name another file, or write what is to be read into"),
        ({"doc": {"body": "Who?"}}, "To read a text inside a column, give `--text-column '{doc.body}'`"),
        ({"text": None}, "its row is null or blank"),
        ({"number": 3}, "has no column of text: its columns are 'number'"),
    ],
)
def test_rows_without_plain_text_are_refused_with_a_remedy(text, row, says):
    (text.folder / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    model = str(text.models / "llama")
    found = text("diff", model, model, "--text", "rows.jsonl", *HOW)
    assert found.code == 2
    assert says in " ".join(found.err.split())


def test_the_advice_on_rows_without_plain_text_works(text):
    """A column inside a column is named, and beside a chat a column 'text' is read."""
    model = str(text.models / "llama")
    chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    for name, of, option in (
        ("nested", lambda words: {"doc": {"body": words}}, ("--text-column", "{doc.body}")),
        ("chats", lambda words: {"messages": chat, "text": words}, ()),
    ):
        rows = "".join(json.dumps(of(words)) + "\n" for words in tiny.texts(60))
        (text.folder / f"{name}.jsonl").write_text(rows, encoding="utf-8")
        found = text("diff", model, model, "--text", f"{name}.jsonl", *option, *HOW)
        assert found.code == 0, found.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("llama", "nowhere/at/all", "--text", "words.jsonl.gz"), "AFTER is "),
        (("llama", "llama", "--text", "nothing.txt"), "nothing.txt"),
        (("llama", "llama", "--text", "empty.txt"), "is empty"),
        (("llama", "llama", "--text", "short.txt"), "fewer than a row"),
        (("llama", "roberta", "--text", "words.jsonl.gz"), "Compare two models of one kind"),
        (("llama", "llama", "--text", "words.jsonl.gz", "--text", "words.jsonl.gz"), "NAME=PATH"),
        (("llama", "llama"), "nothing to compare on"),
    ],
)
def test_a_mistake_is_one_sentence(text, arguments, says):
    (text.folder / "empty.txt").write_text("", encoding="utf-8")
    (text.folder / "short.txt").write_text("the model", encoding="utf-8")
    words = [str(text.models / word) if word in ("llama", "roberta") else word for word in arguments]
    found = text("diff", *words)
    assert found.code == 2
    assert says in found.err
    assert found.err.count("\n") == 1 or "Traceback" not in found.err


def test_a_run_is_no_model(text):
    run = Path(text.folder / "runs" / "first")
    (run / "stage-01-a").mkdir(parents=True)
    (run / "recipe.yaml").write_text("{}", encoding="utf-8")
    found = text("diff", str(text.models / "llama"), str(run), "--text", "words.jsonl.gz")
    assert found.code == 2
    assert "Name one of its stages" in found.err


# -- gLUE's tasks from the command line: run, resume, evaluate ---------------------------------------------------------


@pytest.fixture
def of_glue(everlearn: Project) -> Project:
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["evaluation"] |= {"blocks": 4, "end_task_seeds": 2}
    everlearn.recipe["train"]["max_steps"] = 2
    options = {"kind": "glue", "path": "GLUE", "epochs": 1, "max_length": 32, "learning_rate": 1e-3, "batch_size": 8}
    everlearn.recipe["end_tasks"] = [{"name": task, "task": task, **options} for task in ("cola", "sts-b")]
    for task in ("cola", "sts-b"):
        glue_files.learnable(everlearn.folder / "GLUE", task)
    return everlearn


def test_a_run_is_scored_saved_and_resumed(of_glue: Project) -> None:
    said = of_glue("validate", "recipe.yaml")
    assert said.code == 0, said.err
    assert "24 to learn from, 12 to test, 2 labels" in said.out
    assert "24 to learn from, 12 to test, values from 0 to 5" in said.out
    assert of_glue("run", "recipe.yaml").code == 0
    first = Results.load(of_glue.run_folder)
    assert first.matrices["glue_score"].columns == ["cola", "sts-b"]
    assert first.matrices["matthews"].columns == ["cola"]
    assert first.matrices["pearson"].columns == first.matrices["spearman"].columns == ["sts-b"]
    (cola, score), (_, after) = first.matrices["glue_score"].values
    parts = [first.matrices[name].cell(0, "sts-b").value for name in ("pearson", "spearman")]
    assert score == pytest.approx(sum(parts) / 2)  # type: ignore[arg-type]
    assert after is not None
    matthews = first.matrices["matthews"].cell(0, "cola").value
    assert cola == matthews
    mean = (cola + score) / 2  # type: ignore[operator]
    assert f"GLUE score at 'base', mean of 2 end tasks: {mean:.4f}." in first.notes
    cell = task_path(of_glue.run_folder / "evaluation", 1, "sts-b")
    values = Cell.load(cell)["values"]
    assert values.shape == (2, 12)
    shutil.rmtree(cell.parent)
    (of_glue.run_folder / "results.json").unlink()
    assert of_glue("resume", "runs/first").code == 0
    assert Cell.load(cell)["values"].tolist() == values.tolist()
    assert Results.load(of_glue.run_folder).matrices == first.matrices
    shown = of_glue("report", "runs/first", "--format", "markdown")
    assert shown.code == 0, shown.err


def test_existing_models_are_evaluated(of_glue: Project) -> None:
    found = of_glue("evaluate", f"base={of_glue.models / 'roberta'}", "--on", "recipe.yaml", "-o", "measured", "--json")
    assert found.code == 0, found.err
    tables = json.loads(found.out)["matrices"]
    assert [cell[:2] for cell in tables["glue_score"]["cells"]] == [["base", "cola"], ["base", "sts-b"]]


def test_a_missing_file_is_named_before_the_run(of_glue: Project) -> None:
    (of_glue.folder / "GLUE" / "CoLA" / "dev.tsv").unlink()
    of_glue.fails("run", "recipe.yaml", says=("dev.tsv", "CoLA"))
