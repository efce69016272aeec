"""The main job on tiny models: a stream is learnt, measured, saved, continued months later without old data."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import STEPS, assert_same, corpus, elsewhere, labelled, leftovers, recipe, tensors
from torch import nn
from transformers import AutoModelForCausalLM

import prepared
import tiny
from everlearn import files
from everlearn.commands.export import export
from everlearn.config import recipe as recipes
from everlearn.config.arguments import training_arguments
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.errors import EverlearnError, MethodError, RecipeError, RunError
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.run.compiled_layers import compiled_layers
from everlearn.tasks.labelled import EndTask

LOADS = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "everlearn":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import transformers, torch
for kind, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    transformers.AutoTokenizer.from_pretrained(folder)("the model learns")
    assert model.dtype == torch.float32 and all(p.isfinite().all() for p in model.parameters())
assert "everlearn" not in sys.modules
"""


def check_folder(run: Path, of: Recipe) -> None:
    """Everything that a finished run holds, and nothing else."""
    names = [domain.name for domain in of.domains]
    stages = [f"stage-{i:02d}-{name}" for i, name in enumerate(names, 1)]
    expected = {"recipe.yaml", "environment.json", "metrics.jsonl", "results.json", "README.md", "seal.json"}
    extra = {"alone", "report.html"} if of.evaluation.alone else set()
    found = {path.name for path in run.iterdir()} - {".lock", "data.json"}  # the latter where something was found
    assert found == expected | set(stages) | {"evaluation"} | extra
    assert leftovers(run) == []
    for stage, name in zip(stages, names, strict=True):
        assert files.damage(run / stage) is None
        facts = files.read_json(run / stage / "stage.json")
        assert (facts["domain"], facts["steps"]) == (name, STEPS)
        assert math.isfinite(facts["final_loss"])
        assert facts["training_seconds"] <= facts["seconds"]
    assert names[0] in (run / "README.md").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"]) for line in lines] == [
        (stage, step) for stage in range(1, len(names) + 1) for step in range(1, STEPS + 1)
    ]
    for line in lines:
        assert math.isfinite(line["loss"])
        assert line["loss"] > 0
        assert line["time"]
        assert line["learning_rate"] >= 0


def check_results(results: Results, rows: list[str], columns: list[str], tasks: list[str]) -> None:
    """Every wanted cell is measured; row 0 is the base model."""
    assert results.status == "finished"
    for metric in ("loss", "bits_per_byte", "perplexity"):
        matrix = results.matrices[metric]
        assert matrix.rows == ["base", *rows]
        assert matrix.columns == columns
        assert all(value is not None and math.isfinite(value) for row in matrix.values for value in row)
    if tasks:
        matrix = results.matrices["accuracy"]
        assert matrix.columns == tasks
        assert None not in matrix.values[0] + matrix.values[-1]
    assert results.cost.seconds > 0
    assert [stage.domain for stage in results.cost.stages] == rows


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the HTML page, which takes as long as all the rest."""
    monkeypatch.setattr("everlearn.report.write_report", lambda *_: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """An encoder's run with everything in it: two methods, general text, end tasks, each domain alone."""
    folder = tmp_path_factory.mktemp("finished")
    task = {"train": str(labelled(folder, "train", 16)), "test": str(labelled(folder, "test", 8))}
    options = {"epochs": 1, "batch_size": 8, "max_length": 16}
    made = recipe(
        folder,
        "roberta",
        [{"name": "das", "samples": 8}, {"name": "replay", "source": "both", "share": 0.4}],
        general={"path": str(corpus(folder / "data", "general"))},
        end_tasks=[{"name": "words", "domain": "first", **task, **options}, {"name": "any", **task, **options}],
        evaluation={"alone": True, "end_task_seeds": 2},
    )
    ContinualLearner(made).run()
    return made


def test_masked_with_everything(finished: Recipe) -> None:
    run = finished.folder()
    check_folder(run, finished)
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")
    results = Results.load(run)
    check_results(results, ["first", "second"], ["first", "second", "general"], ["words", "any"])
    assert results.general == ["general"]
    assert set(results.summary["loss"].general_drift) >= {"general"}
    assert results.alone.keys() == {"bits_per_byte", "loss", "perplexity"}
    assert all(set(own) == {"first", "second"} for own in results.alone.values())
    # Task "words" is measured right after its domain; "any" has no domain, so only at both ends.
    accuracy = results.matrices["accuracy"].values
    assert accuracy[1][0] is not None
    assert accuracy[1][1] is None
    shares = {(share.stage, share.source): share for share in results.mixture}
    assert {source for stage, source in shares if stage == 2} == {"second", "general", "earlier domains"}
    for (stage, _), share in shares.items():
        rows = STEPS * 4
        assert abs(share.realised - share.asked) <= 1.0 / rows, stage
    assert (run / "stage-02-second" / "memory" / "das.safetensors").is_file()


@pytest.mark.usefixtures("brief")
def test_a_finished_run_is_left_alone(finished: Recipe) -> None:
    run = finished.folder()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    ContinualLearner.open(run).resume()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")} == before
    with pytest.raises(RunError, match="holds a run of this recipe already"):
        ContinualLearner(finished).run()
    with pytest.raises(RunError, match="another recipe"):
        ContinualLearner(finished.changed(method=["sequential"])).run()


@pytest.mark.usefixtures("brief")
def test_months_later_without_any_old_data(finished: Recipe, tmp_path: Path) -> None:
    moved = tmp_path / "copied run"
    shutil.copytree(finished.folder(), moved)
    before = {path: files.digest(path) for path in moved.rglob("*.safetensors")}
    old = finished.folder().parent / "data"
    hidden = [*old.glob("*.jsonl"), finished.folder().parent / "train.jsonl"]
    shutil.rmtree(finished.folder().parent / "cache")
    for path in hidden:
        path.rename(path.with_name(path.name + ".gone"))
    try:
        learner = ContinualLearner.open(moved)
        # Replay asked for general text too, which is gone: that must not pass in silence.
        with pytest.raises(EverlearnError, match="general"):
            learner.learn(third(tmp_path))
        only_old = {"name": "replay", "share": 0.3}
        raw = learner.recipe.changed(method=[{"name": "das", "samples": 8}, only_old], domains=[
            domain.model_dump(mode="json", exclude_unset=True) for domain in finished.domains
        ])  # fmt: skip
        recipes.save(raw, moved / "recipe.yaml")
        results = ContinualLearner.open(moved).learn(third(tmp_path))
    finally:
        for path in hidden:
            path.with_name(path.name + ".gone").rename(path)
    check_results(results, ["first", "second", "third"], ["first", "second", "third", "general"], [])
    assert {path: files.digest(path) for path in before} == before
    assert [share.source for share in results.mixture if share.stage == 3] == ["third", "earlier domains"]
    with pytest.raises(RunError, match="learnt a domain 'third' already"):
        ContinualLearner.open(moved).learn(third(tmp_path))


def third(folder: Path) -> Domain:
    """A domain that comes later."""
    return Domain(name="third", path=str(corpus(folder, "third")), validation=0.15)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "t5"])
def test_causal_and_text_to_text(tmp_path: Path, architecture: str) -> None:
    made = recipe(tmp_path, architecture, "replay")
    results = ContinualLearner(made).run()
    check_folder(made.folder(), made)
    check_results(results, ["first", "second"], ["first", "second"], [])
    assert results.objective == tiny_objective(architecture)


def tiny_objective(architecture: str) -> str:
    """What this architecture learns."""
    return "text-to-text" if architecture == "t5" else "causal"


@pytest.mark.usefixtures("brief")
def test_a_causal_model_learns_answers(tmp_path: Path) -> None:
    made = recipe(tmp_path, "llama", "inc_lora", answers=True, objective="text-to-text", domains=("only",))
    check_results(ContinualLearner(made).run(), ["only"], ["only"], [])


@pytest.mark.usefixtures("brief")
def test_stage_folders_load_without_everlearn(finished: Recipe, tmp_path: Path) -> None:
    pairs = ["AutoModelForMaskedLM", str(finished.folder() / "stage-02-second")]
    for architecture, kind in (("llama", "AutoModelForCausalLM"), ("t5", "AutoModelForSeq2SeqLM")):
        made = recipe(tmp_path / architecture, architecture, "inc_lora", domains=("only",), train={"max_steps": 1})
        ContinualLearner(made).run()
        pairs += [kind, str(made.folder() / "stage-01-only")]
    done = prepared.run(LOADS, *pairs)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("brief")
def test_the_same_recipe_gives_the_same_run(tmp_path: Path) -> None:
    made = recipe(tmp_path, "roberta", "das", domains=("only",))
    other = elsewhere(made, tmp_path / "again")
    torch.rand(7)  # what ran before does not matter
    ContinualLearner(made).run()
    ContinualLearner(other).run()
    assert_same(other.folder(), made.folder())
    seeded = made.changed(run={"folder": str(tmp_path / "seed 1"), "seed": 1})
    ContinualLearner(seeded).run()
    mine, theirs = tensors(made.folder()), tensors(seeded.folder())
    assert any(not torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.usefixtures("brief")
def test_the_python_interface(tmp_path: Path) -> None:
    small = recipe(tmp_path)
    results = ContinualLearner(
        model=small.model.path,
        domains=list(small.domains)[:1],
        methods=["sequential"],
        end_tasks=[
            EndTask(
                name="words",
                train=str(labelled(tmp_path, "train", 8)),
                test=str(labelled(tmp_path, "test", 4)),
                epochs=1,
                max_length=16,
            )
        ],
        train=small.train,
        data=small.data.model_dump(),
        evaluation={"blocks": 4, "end_task_seeds": 1},
        folder=tmp_path / "mine",
    ).run()
    assert results.run == "mine"
    assert results.matrices["accuracy"].values[1][0] is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("save_only_model", True),
        ("deepspeed", {"zero_optimization": {"stage": 2}}),
        ("dataloader_num_workers", 2),
        ("seed", 3),
    ],
)
def test_training_arguments_that_would_break_a_run(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(RecipeError, match=f"train.{key}"):
        training_arguments({key: value}, tmp_path, 0)


# -- an LSTM and a CNN in whole runs: random weights from the recipe, EWC, an end task, embeddings frozen or not -------


@pytest.mark.parametrize(("model_type", "frozen"), [("everlearn-lstm", []), ("everlearn-cnn", ["embeddings"])])
def test_two_domains_and_a_task(model_type: str, frozen: list[str], tmp_path: Path) -> None:
    task = {"name": "word", "train": str(labelled(tmp_path, "train", 24)), "test": str(labelled(tmp_path, "test", 12))}
    task |= {"domain": "first", "epochs": 1, "max_length": 16, "state_of_the_art": 1.0}
    tiny.tokenizer().save_pretrained(tmp_path / "tokenizer")
    sizes = {"vocab_size": tiny.VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "tie_word_embeddings": False}
    base = {"config": {"model_type": model_type, **sizes}, "tokenizer": str(tmp_path / "tokenizer"), "frozen": frozen}
    evaluation = {"end_tasks": "every", "end_task_seeds": 1}
    method = {"name": "ewc", "strength": 100, "samples": 4}
    of = recipe(tmp_path, "gpt2", method=method, model=base, end_tasks=[task], evaluation=evaluation)
    results = ContinualLearner(of).run()
    assert len(results.matrices["standardised"].values) == 3
    loss = results.matrices["loss"].values
    assert loss[2][0] < loss[0][0]  # something was learnt
    stages = [
        AutoModelForCausalLM.from_pretrained(of.folder() / name) for name in ("stage-01-first", "stage-02-second")
    ]
    embeddings, head = (
        [getattr(model, f"get_{which}_embeddings")().weight for model in stages] for which in ("input", "output")
    )
    assert torch.equal(*embeddings) == bool(frozen)
    assert not torch.equal(*head)
    own = type(stages[0]).__module__
    made = export(of.folder() / "stage-02-second", tmp_path / "out").folder
    for card in ((of.folder() / "README.md").read_text(), (made / "README.md").read_text()):
        assert f"```python\nimport {own}  #" in card
        assert "with everlearn installed" in card
        assert "without everlearn installed" not in card


# -- `train.torch_compile`: the same numbers, compiled once for all stages, and what cannot be compiled is refused -----

GRAPHS: list[int] = []


def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend that runs a graph as it is and counts it."""
    GRAPHS.append(len(inputs))
    return graph.forward


@pytest.fixture
def backend() -> Iterator[str]:
    """The name of a backend that counts."""
    torch._dynamo.reset()
    torch._dynamo.register_backend(counting, name="counting")
    GRAPHS.clear()
    yield "counting"
    torch._dynamo.reset()


def test_the_numbers_are_the_same_and_stages_share_what_is_compiled(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = recipe(tmp_path, "gpt2", dropout=0.1, method=[{"name": "l2_sp"}, {"name": "mofo"}])
    before: list[int] = []
    compile_ = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda *args, **options: (before.append(len(GRAPHS)), compile_(*args, **options))
    )
    finals = []
    for name in ("plain", "compiled"):
        train = {**of.train, **({"torch_compile_backend": backend} if name == "compiled" else {})}
        learner = ContinualLearner(elsewhere(of.changed(train=train), tmp_path / name))
        learner.run()
        finals.append(learner.model_after(2).state_dict())
    for name, value in finals[0].items():
        torch.testing.assert_close(finals[1][name], value, rtol=1e-4, atol=1e-6)
    assert len(before) == 4, "two layers in two stages"
    assert 0 < before[2] == len(GRAPHS), "nothing is compiled in the second stage"


@pytest.mark.parametrize(
    ("method", "train", "says"),
    [
        ("lora", {"torch_compile": True}, r"method 'lora' acts inside the forward pass at each step \(`attach`\)"),
        ("kd", {"torch_compile_mode": "default"}, r"method 'kd' acts inside .* \(`views`\)"),
        ("sequential", {"torch_compile_backend": "inducter"}, r"`train\.torch_compile_backend: inducter`.*cannot be"),
    ],
)
def test_refused(tmp_path: Path, method: str, train: dict[str, Any], says: str) -> None:
    of = recipe(tmp_path, "gpt2", method=[{"name": method}])
    with pytest.raises(EverlearnError, match=says):
        ContinualLearner(of.changed(train={**of.train, **train})).check()


def test_a_hook_inside_a_layer_is_not_passed_over() -> None:
    model = tiny.model("gpt2")
    model.transformer.h[0].attn.register_forward_hook(lambda *_: None)
    with compiled_layers(model, {"torch_compile": True}), pytest.raises(MethodError, match="reads or changes"):
        model(input_ids=torch.tensor([[5, 6]]))
    assert model.transformer.h[0]._compiled_call_impl is None
