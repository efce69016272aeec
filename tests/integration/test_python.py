"""At home in Python: mappings, texts in memory, data sets, models as objects; results as tables, frames and figures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from peft import LoraConfig, get_peft_model
from small_runs import labelled

import tiny
from everlearn import DAS, ContinualLearner, Domain, EndTask, RunResults, files
from everlearn.config.recipe import load
from everlearn.data.documents import read_documents
from everlearn.errors import DataError, EverlearnError, ModelError, RecipeError, RunError
from everlearn.report import compare
from everlearn.report.plots import PLOTS, plotted
from everlearn.run.folder import RunFolder

KEYS: dict[str, Any] = {
    "train": {"max_steps": 2, "per_device_train_batch_size": 2, "save_steps": 1, "logging_steps": 1},
    "evaluation": {"blocks": 4, "batch_size": 4, "end_task_seeds": 1},
}


def texts(seed: int) -> list[str]:
    return tiny.texts(40, seed, words=30)


def learner(folder: Path, **groups: Any) -> ContinualLearner:
    given = {
        "model": tiny.model("roberta", dropout=0.1),
        "tokenizer": tiny.tokenizer(),
        "domains": {"first": texts(1), "second": Dataset.from_dict({"text": texts(2), "other": texts(3)})},
        "general": texts(9),
        "folder": folder / "run",
        "data": {"block_size": 32, "cache": str(folder / "cache")},
        **KEYS,
    }
    return ContinualLearner(**(given | groups))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    folder = tmp_path_factory.mktemp("python")
    task = EndTask(
        name="words",
        domain="first",
        train=str(labelled(folder, "train", 16)),
        test=str(labelled(folder, "test", 8)),
        epochs=1,
    )
    return learner(folder, methods={"name": "migu"}, end_tasks=[task.model_dump()]).run()


def test_a_run_of_objects_is_a_run_of_its_folder(finished: RunResults, tmp_path: Path) -> None:
    """The folder has its base; moved elsewhere, without cache and program, it learns one more domain."""
    assert finished._folder is not None
    run = tmp_path / "moved"
    shutil.copytree(finished._folder, run)
    recipe = load(finished._folder / "recipe.yaml")
    assert recipe.model.path == recipe.model.tokenizer == str(finished._folder.resolve() / "base")
    assert [Path(domain.path).parent.name for domain in recipe.domains] == ["from-python"] * 2
    texts_of = [document.text for document, _ in read_documents(recipe.domains[1])]
    assert texts_of == texts(2)
    opened = ContinualLearner.open(run)
    assert opened.recipe.model.path == str(run.resolve() / "base")
    cache = Path(str(recipe.data.cache))
    hidden = cache.rename(cache.with_name("hidden"))
    base = (finished._folder / "base").rename(finished._folder.parent / "base-hidden")
    try:
        more = opened.learn({"name": "third", "data": texts(3), "train": {"max_steps": 1}})
    finally:
        shutil.rmtree(cache, ignore_errors=True)
        hidden.rename(cache)
        base.rename(finished._folder / "base")
    assert more.domains == ["first", "second", "third"]
    assert load(run / "recipe.yaml").domains[2].train == {"max_steps": 1}
    with pytest.raises(RunError, match="learnt a domain 'third' already"):
        opened.learn(Domain(name="third", path="x"))
    with pytest.raises(RecipeError, match=r"`domains.3.txt_column`.*text_column"):
        ContinualLearner.open(run).learn({"name": "fourth", "data": texts(3), "txt_column": "x"})


def test_a_domain_that_was_refused_can_be_corrected(finished: RunResults) -> None:
    """What is wrong with a domain that is to be learnt is said each time, and the run stays as it was."""
    assert finished._folder is not None
    again = ContinualLearner.open(finished._folder)
    before = again.recipe
    for path in ("nothing.jsonl", "nobody.jsonl"):
        with pytest.raises(DataError, match=path):
            again.learn({"name": "third", "path": path})
    assert again.recipe == before
    assert [domain.name for domain in RunFolder(finished._folder).recipe().domains] == ["first", "second"]


def test_results_are_printed_as_a_table(finished: RunResults) -> None:
    text = str(finished)
    assert "MIGU" in text
    assert "Forgotten" in text
    assert "bits/byte" in text
    assert max(map(len, text.splitlines())) <= 110
    page = finished._repr_html_()
    assert page.count("<table") == 1
    assert "<html" not in page
    assert "MIGU" in page
    assert str(RunResults.model_validate(finished.model_dump())) == text  # also without a folder


def test_results_are_frames(finished: RunResults) -> None:
    scores = finished.to_pandas()
    bits = finished.matrices["bits_per_byte"]
    mine = scores[(scores.metric == "bits_per_byte") & (scores.column == "second")].set_index("after")["value"]
    assert mine.to_dict() == {row: value for row, column, value, *_ in bits.cells if column == "second"}
    summary = finished.to_pandas("summary")
    found = summary[(summary.metric == "loss") & (summary.quantity == "learnt") & (summary.column == "first")]
    assert found["value"].item() == finished.summary["loss"].learnt["first"].value


@pytest.mark.parametrize("name", list(PLOTS))
def test_figures_are_matplotlib_s(finished: RunResults, name: str, tmp_path: Path) -> None:
    with matplotlib.rc_context({"font.size": 7}):
        figure = finished.figure(name)
    assert isinstance(figure, matplotlib.figure.Figure)
    axes = figure.axes[0]
    assert axes.xaxis.label.get_fontsize() == 7
    axes.set_title("mine")
    figure.savefig(tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_what_a_figure_shows(finished: RunResults) -> None:
    assert finished._folder is not None
    summary = finished.summary["bits_per_byte"]
    point = finished.figure("tradeoff").axes[0].get_lines()[0]
    assert (point.get_xdata()[0], point.get_ydata()[0]) == pytest.approx(
        (summary.forgotten["mean"].value, summary.learnt["mean"].value)
    )  # as on the page: learnt upwards
    bars = [bar.get_width() for bar in finished.figure("domains").axes[0].patches]
    expected = [quantity[name].value for quantity in (summary.learnt, summary.gained) for name in ("first", "second")]
    assert bars == pytest.approx(expected)
    line = finished.figure("general").axes[0].get_lines()[0]
    assert list(line.get_ydata()) == [row[-1] for row in finished.matrices["bits_per_byte"].values]
    several = plotted("training", compare([finished._folder, finished._folder]))
    assert len(several.axes[0].get_legend().get_texts()) == 2
    with pytest.raises(RunError, match=r"no plot 'tradeof'.*'tradeoff'"):
        finished.figure("tradeof")


def test_texts_in_memory_are_their_content(tmp_path: Path) -> None:
    """A list, a data set and a stream of the same texts are one file, and so one entry of the cache."""
    rows = {"body": texts(1)}
    ways: list[Any] = [
        {"name": "a", "data": Dataset.from_dict(rows), "text_column": "body"},
        {"name": "a", "data": Dataset.from_dict(rows).to_iterable_dataset(), "text_column": "body"},
        {"name": "a", "data": texts(1), "text_column": "body", "validation": texts(4)},
        {"name": "a", "data": [*texts(1), "more"], "text_column": "body"},
        {"name": "a", "data": Dataset.from_dict(rows), "text_column": "body", "max_documents": 3},
    ]
    made = [learner(tmp_path / str(number), domains=[way], data={"cache": str(tmp_path / "cache")})
            for number, way in enumerate(ways)]  # fmt: skip
    paths = [each.recipe.domains[0].path for each in made]
    assert paths[0] == paths[1] == paths[2]
    assert len(set(paths)) == 3
    assert [document.text for document, _ in read_documents(made[4].recipe.domains[0])] == texts(1)[:3]
    held_out = made[2].recipe.domains[0].held_out_corpus
    assert held_out is not None
    assert [document.text for document, _ in read_documents(held_out)] == texts(4)
    assert not list((tmp_path / "cache/from-python").glob(".partial*"))


def test_texts_that_are_gone_must_be_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def dying(*_: object) -> None:
        raise Killed

    stopped = learner(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ContinualLearner, "train_stage", dying)
        with pytest.raises(Killed):
            stopped.run()
    files_ = list((tmp_path / "cache/from-python").glob("second-*.jsonl"))
    assert len(files_) == 1
    files_[0].unlink()
    with pytest.raises(RunError, match=r"texts of 'second' were passed in Python.*same texts and folder"):
        ContinualLearner.open(tmp_path / "run").resume()
    assert learner(tmp_path).resume().status == "finished"


def test_a_folder_has_one_base(tmp_path: Path) -> None:
    made = learner(tmp_path)
    before = files.digest(tmp_path / "run/base/model.safetensors")
    learner(tmp_path)
    other = tiny.model("roberta", dropout=0.1)
    torch.nn.init.zeros_(other.get_input_embeddings().weight)
    with pytest.raises(RunError, match=r"different model or tokenizer.*`folder`"):
        learner(tmp_path, model=other)
    assert files.digest(tmp_path / "run/base/model.safetensors") == before
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["base"]
    made.folder.check_free(made.recipe)
    with pytest.raises(RecipeError, match=r"evaluation\.bloks"):
        learner(tmp_path / "wrong", evaluation={"bloks": 1})
    assert not (tmp_path / "wrong/run").exists()


def test_one_method_needs_no_list(tmp_path: Path) -> None:
    for given in ("das", {"name": "das"}, DAS(), ["das"], [DAS()]):
        assert [method["name"] for method in learner(tmp_path, methods=given).recipe.method] == ["das"]


class Odd:
    peft_config = "yes"

    def __repr__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("groups", "error", "says"),
    [
        ({"domains": [texts(1)]}, RecipeError, r"A domain is a `Domain`, or a mapping.*list"),
        ({"domains": {"a": 3}}, DataError, "texts of 'a' must be a list of texts or a data set; got int 3"),
        (
            {"domains": {"a": ["x", None]}},
            DataError,
            "Item 2 of 'a' must be a text or a mapping of columns; it is NoneType",
        ),
        ({"domains": {"a": DatasetDict({"train": Dataset.from_dict({})})}}, DataError, r"all splits.*data\['train'\]"),
        (
            {"domains": {"a": {"data": Dataset.from_dict({"txt": ["x"]})}}},
            DataError,
            "Row 1 of 'a' has no column 'text'.*'txt'",
        ),
        ({"domains": [{"name": "a", "data": ["x"], "path": "y"}]}, RecipeError, "`data` and `path`"),
        ({"domains": {"a": {"data": ["x"], "target_column": "y"}}}, DataError, "rows must be mappings of these"),
        ({"domains": {"a b": ["x"]}}, RecipeError, "letters, digits"),
        ({"general": DatasetDict({"test": Dataset.from_dict({})})}, DataError, "all splits.*test"),
        ({"end_tasks": [{"name": "t", "train": "x", "test": "y", "txt": "z"}]}, RecipeError, "txt"),
        ({"end_tasks": ["t"]}, RecipeError, r"An end task is an `EndTask`, or a mapping.*str 't'"),
        ({"methods": "dass"}, EverlearnError, "dass"),
        ({"methods": DAS}, RecipeError, r"holds the class DAS: make an object of it, `DAS\(\)`"),
        ({"methods": None}, RecipeError, "A method is an object.*NoneType None"),
        ({"train": "x"}, RecipeError, "`train` must be a mapping"),
        ({"data": [1]}, RecipeError, "`data` must be a mapping"),
        (
            {"data": {"cache": "/proc/none"}},
            RecipeError,
            "`data.cache` is '/proc/none/from-python', which cannot be written",
        ),
        ({"run": None}, RecipeError, "`run` must be a mapping"),
        ({"tokenizer": None}, ModelError, "needs its `tokenizer`"),
        ({"model": Odd()}, ModelError, r"PEFT adapters.*merge_and_unload"),
        ({"model": torch.nn.Linear(1, 1)}, ModelError, "hub id, a folder or a transformers model"),
    ],
)
def test_mistakes(tmp_path: Path, groups: dict[str, Any], error: type[EverlearnError], says: str) -> None:
    with pytest.raises(error, match=says):
        learner(tmp_path, **groups)
    assert not (tmp_path / "run").exists()


def test_models_that_are_no_plain_weights(tmp_path: Path) -> None:
    adapted = get_peft_model(tiny.model("roberta"), LoraConfig(target_modules=["query"]))
    with pytest.raises(ModelError, match="PEFT adapters"):
        learner(tmp_path, model=adapted)
    with pytest.raises(ModelError, match="PEFT adapters"):
        learner(tmp_path, model=adapted.base_model.model)
    model = tiny.model("roberta")
    model.is_quantized = True
    with pytest.raises(ModelError, match="quantised"):
        learner(tmp_path, model=model)
    with pytest.raises(ModelError, match="not loaded"):
        learner(tmp_path, model=tiny.model("roberta").to("meta"))


def test_an_endless_stream_is_read_as_far_as_it_is_wanted(tmp_path: Path) -> None:
    def forever() -> Any:
        while True:
            yield {"text": "the model learns a domain"}

    stream = IterableDataset.from_generator(forever)
    made = learner(tmp_path, domains={"a": {"data": stream, "max_documents": 5}})
    assert len(list(read_documents(made.recipe.domains[0]))) == 5
