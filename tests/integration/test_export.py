"""Exports: what may leave the house, whether it works there, and what must not be in it."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
import yaml
from huggingface_hub import ModelCard
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline

import tiny
from everlearn import files
from everlearn.cli import main
from everlearn.commands.export import _refuse_paths, _without_traces, export
from everlearn.commands.inspect_model import inspect
from everlearn.data.corpus import Domain
from everlearn.errors import ModelError, RunError
from everlearn.evaluation.results import Results
from everlearn.learner import ContinualLearner
from everlearn.model.number_format import recast
from everlearn.run.exported_run import PLACE, _without_paths

pytestmark = pytest.mark.usefixtures("no_report")
TOKENS = {"input_ids": torch.arange(5, 29)[None]}
WORDS = 6
"""Words in a row that no export may share with the training text."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, no_report: None) -> ContinualLearner:
    """LoRA with replay: adapters, merged stages and a memory of text."""
    folder = tmp_path_factory.mktemp("house")
    method = [{"name": "inc_lora", "r": 4}, {"name": "replay", "share": 0.3}]
    notes = {"run": {"name": "run", "folder": str(folder / "run"), "notes": [f"Read from {folder}/data."]}}
    learner = ContinualLearner(small_runs.recipe(folder, method=method, **notes))
    learner.run()
    return learner


def stage(run: ContinualLearner, index: int = 2) -> Path:
    return run.folder.stage(index, run.recipe.domains[index - 1].name)


def runs_of_words(texts: list[str]) -> set[str]:
    return {" ".join(words[at : at + WORDS]) for text in texts for words in [text.split()] for at in range(len(words))}


def rows_in(folder: Path) -> list[list[int]]:
    """Every row of whole numbers that a tensor file of a folder holds."""
    found: list[list[int]] = []
    for path in folder.rglob("*.safetensors"):
        for tensor in files.load_tensors(path).values():
            if not tensor.is_floating_point() and tensor.dim():
                found += tensor.reshape(-1, tensor.shape[-1]).tolist()
    return found


def leaks(folder: Path, run: ContinualLearner) -> list[str]:
    """Training text and local paths in an export: in the bytes of every file, and decoded from tensors."""
    corpora = [Path(domain.path) for domain in run.recipe.domains]
    texts = [json.loads(line)["text"] for path in corpora for line in path.read_text().splitlines()]
    wanted = {text for text in runs_of_words(texts) if len(text.split()) == WORDS}
    found = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{path.name}: path" for place in (run.folder.path, *corpora, Path.home()) if str(place) in content]
        found += [f"{path.name}: text" for _ in wanted & runs_of_words([content.replace('"', " ")])]
    decoded = [tiny.tokenizer().decode(row) for row in rows_in(folder)]
    return found + ["tensor: text" for _ in wanted & runs_of_words(decoded)]


def test_the_scan_can_find_what_it_looks_for(run: ContinualLearner) -> None:
    found = leaks(run.folder.path, run)
    assert "tensor: text" in found
    assert "recipe.yaml: path" in found


@pytest.mark.parametrize("adapter", [None, True])
def test_nothing_of_the_house_is_in_it(run: ContinualLearner, tmp_path: Path, adapter: bool | None) -> None:
    made = export(stage(run), tmp_path / "out", adapter=adapter, base_model="owner/base", license="mit")
    assert leaks(made.folder, run) == []
    model = ["adapter_config.json", "adapter_model.safetensors"] if adapter else ["config.json", "model.safetensors"]
    assert made.files == sorted(["README.md", *model, "tokenizer.json", "tokenizer_config.json"])
    raw = json.loads((made.folder / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only", "name_or_path"} & set(raw)


def test_a_token_is_no_path() -> None:
    raw = {"eos_token": "/think", "sep_token": "//", "extra": {"a": "~~~"}, "_name_or_path": "base", "from": "/home/me"}
    assert _without_traces(raw) == {"eos_token": "/think", "sep_token": "//", "extra": {"a": "~~~"}}


@pytest.mark.parametrize("written", ["/home/jürgen/base", r"/home/j\u00fcrgen/base", r"\/home\/jürgen\/base"])
def test_a_path_is_found_however_it_is_written(tmp_path: Path, written: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"key": "{written}"}}')
    with pytest.raises(RunError, match=r"Nothing was exported: config\.json"):
        _refuse_paths(tmp_path, ["/home/jürgen/base"])


@pytest.mark.parametrize(
    "option",
    [
        {"run_name": "the customer's"},
        {"optim_args": "path=/home/alice/q, beta=1"},
        {"lr_scheduler_kwargs": {"x": [{"y": "~/secret"}]}},
        {"logging_dir": "C:\\Users\\alice"},
    ],
)
def test_no_training_option_names_a_place(option: dict[str, Any]) -> None:
    assert _without_paths({"max_steps": 3, "optim": "adamw_torch", **option}) == {
        "max_steps": 3,
        "optim": "adamw_torch",
    }


def test_an_export_is_not_written_into_its_run(run: ContinualLearner) -> None:
    for place in (run.folder.path / "out", run.folder.stage(1, run.recipe.domains[0].name) / "out"):
        with pytest.raises(RunError, match="inside the run"):
            export(run.folder.path, place)
        assert not place.exists()


def test_notes_stay_at_home_and_a_lost_set_is_named(run: ContinualLearner, tmp_path: Path) -> None:
    notes = {"name": "run", "folder": str(tmp_path / "run"), "notes": ["The mails of a customer."]}
    shutil.copytree(run.folder.path, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(run.recipe.changed(run=notes).to_yaml())
    files.enlist(recipe)
    made = export(tmp_path / "run", tmp_path / "out", with_memory=True)
    assert not any("customer" in text for text in _texts(made.folder))
    (tmp_path / "run" / "evaluation" / "sets" / "first.safetensors").unlink()
    with pytest.raises(RunError, match=r"first\.safetensors is not there. `everlearn resume"):
        export(tmp_path / "run", tmp_path / "other", with_memory=True)
    assert not (tmp_path / "other").exists()


def test_the_whole_model_is_the_stage(run: ContinualLearner, tmp_path: Path) -> None:
    made = export(run.folder.path, tmp_path / "out")  # a run stands for its last stage
    assert (made.stage, made.domain, made.form) == (2, "second", "model")
    theirs = AutoModelForMaskedLM.from_pretrained(made.folder).eval()
    ours = AutoModelForMaskedLM.from_pretrained(stage(run)).eval()
    assert torch.equal(theirs(**TOKENS).logits, ours(**TOKENS).logits)
    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    filled = pipeline("fill-mask", model=theirs, tokenizer=tokenizer)("the model learns <mask> domain")
    assert len(filled) == 5
    assert any("base model" in note for note in made.notes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_can_be_rounded(run: ContinualLearner, tmp_path: Path, dtype: Any) -> None:
    """Half the size, rounded once and to the nearest, as plain transformers loads it without being told."""
    made = export(stage(run), tmp_path / "out", dtype=dtype)
    whole = files.load_tensors(stage(run) / "model.safetensors")
    rounded = files.load_tensors(made.folder / "model.safetensors")
    assert rounded.keys() == whole.keys()
    for name, value in whole.items():
        assert torch.equal(rounded[name], value.to(getattr(torch, dtype)))
    model = AutoModelForMaskedLM.from_pretrained(made.folder)
    assert model.dtype == getattr(torch, dtype)
    size = (made.folder / "model.safetensors").stat().st_size
    assert size < 0.6 * (stage(run) / "model.safetensors").stat().st_size
    assert (
        f"with weights in float32; the weights here are rounded to {dtype}." in (made.folder / "README.md").read_text()
    )
    assert "rounded to" not in (export(stage(run), tmp_path / "same").folder / "README.md").read_text("utf-8")


def test_a_rounded_adapter_loads_with_peft(run: ContinualLearner, tmp_path: Path) -> None:
    made = export(stage(run), tmp_path / "out", adapter=True, dtype="bfloat16")
    tensors = files.load_tensors(made.folder / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    base = AutoModelForMaskedLM.from_pretrained(run.recipe.model.path, dtype=torch.float32)
    found = PeftModel.from_pretrained(base, made.folder)(**TOKENS).logits
    wanted = AutoModelForMaskedLM.from_pretrained(stage(run), dtype=torch.float32)(**TOKENS).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)


def test_weights_that_a_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    files.save_tensors(tmp_path / "model.safetensors", {"layer.weight": torch.tensor([1e6])})
    with pytest.raises(ModelError, match=r"'layer.weight' has values up to 1e\+06, which float16 cannot hold"):
        recast(tmp_path, "float16")


def test_the_adapter_is_the_stage_with_its_base(run: ContinualLearner, tmp_path: Path) -> None:
    made = export(stage(run, 1), tmp_path / "out", adapter=True)
    raw = json.loads((made.folder / "adapter_config.json").read_text())
    assert raw["base_model_name_or_path"] is None
    base = AutoModelForMaskedLM.from_pretrained(run.recipe.model.path)
    theirs = PeftModel.from_pretrained(base, made.folder).eval()
    ours = AutoModelForMaskedLM.from_pretrained(stage(run, 1)).eval()
    torch.testing.assert_close(theirs(**TOKENS).logits, ours(**TOKENS).logits, rtol=1e-4, atol=1e-5)


def test_a_stage_kept_as_adapter_can_be_merged(tmp_path: Path) -> None:
    learner = ContinualLearner(small_runs.recipe(tmp_path, method={"name": "inc_lora", "merge": False}, domains=("a",)))
    learner.run()
    made = [export(learner.folder.path, tmp_path / f"{adapter}", adapter=adapter) for adapter in (None, False)]
    assert [each.form for each in made] == ["adapter", "model"]
    whole = AutoModelForMaskedLM.from_pretrained(made[1].folder).eval()
    torch.testing.assert_close(whole(**TOKENS).logits, learner.model_after(1).eval()(**TOKENS).logits)


@pytest.mark.parametrize(
    ("adapter", "library", "relation"), [(False, "transformers", "finetune"), (True, "peft", "adapter")]
)
def test_the_hub_reads_the_card(
    run: ContinualLearner, tmp_path: Path, adapter: bool, library: str, relation: str
) -> None:
    made = export(stage(run, 1), tmp_path / "out", adapter=adapter, base_model="owner/base", license="mit")
    card = ModelCard.load(made.folder / "README.md")
    assert (card.data.base_model, card.data.license, card.data.library_name) == ("owner/base", "mit", library)
    assert card.data.base_model_relation == relation
    assert card.data.pipeline_tag == "fill-mask"
    assert {"everlearn", "continual-learning", "inc_lora", "replay"} <= set(card.data.tags)
    assert card.data.datasets is None
    read = {(each.dataset_name, each.metric_type): each.metric_value for each in card.data.eval_results}
    results = Results.load(run.folder.results_file)
    measured = {
        (column, name): value
        for name, table in results.matrices.items()
        for row, column, value, *_ in table.cells
        if row == "first"
    }
    assert read == measured
    assert measured
    assert "everlearn run" not in card.text, "nobody has its data"


def test_hub_data_sets_and_the_base_models_card_are_named(run: ContinualLearner, tmp_path: Path) -> None:
    from everlearn.report.export_card import Exported, Origin, export_card

    results = Results.load(run.folder.results_file)
    origins = [Origin("first", ("owner/texts",), "en"), Origin("second", ("owner/a", "owner/b"))]
    card = ModelCard(export_card(results, Exported("second", "out", origins, base_model="owner/base", language=["de"])))
    assert card.data.datasets == ["owner/texts", "owner/a", "owner/b"]
    assert card.data.language == ["de"]
    types = {each.dataset_name: (each.dataset_type, each.dataset_config) for each in card.data.eval_results}
    assert types == {"first": ("owner/texts", "en"), "second": ("second", None)}
    base = Path(run.recipe.model.path) / "README.md"
    base.write_text("---\nlicense: cc-by-4.0\nlanguage: en\n---\n")
    try:
        data = ModelCard.load(export(stage(run), tmp_path / "out").folder / "README.md").data
    finally:
        base.unlink()
    assert (data.license, data.language) == ("cc-by-4.0", ["en"])


# -- with memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [False, True])
def test_learning_goes_on_from_an_export(run: ContinualLearner, tmp_path: Path, adapter: bool) -> None:
    base = Path(run.recipe.model.path)
    made = export(stage(run), tmp_path / "out", with_memory=True, adapter=adapter, base_model="owner/base")
    assert not any(str(place) in text for place in (run.folder.path, base) for text in _texts(made.folder))
    assert any("training text" in note for note in made.notes)
    moved = tmp_path / "elsewhere"
    made.folder.rename(moved)
    if adapter:  # the hub is not here, so its name stands for a folder
        _edit(moved, "owner/base", str(base))
    third = small_runs.corpus(tmp_path, "third", 400)  # of which a twentieth is held out
    arguments = ["learn", str(moved), "--domain", f"third={third}", "--into", str(tmp_path / "next")]
    assert main(arguments) == 0
    results = Results.load(tmp_path / "next")
    assert results.domains == ["first", "second", "third"]
    before = {
        (row, column): score for row, column, *score in Results.load(run.folder.path).matrices["bits_per_byte"].cells
    }
    after = {(row, column): score for row, column, *score in results.matrices["bits_per_byte"].cells}
    assert before.items() <= after.items(), "what was measured is known"
    assert {("third", "first"), ("third", "second"), ("third", "third")} <= set(after)
    shares = {share.source: share.realised for share in results.mixture if share.domain == "third"}
    assert shares["earlier domains"] > 0, "the memory is at work"


def test_it_is_the_same_learning_as_at_home(run: ContinualLearner, tmp_path: Path) -> None:
    home = small_runs.elsewhere(run.recipe, tmp_path / "home")
    learner = ContinualLearner(home)
    learner.run()
    made = export(learner.folder.path, tmp_path / "out", with_memory=True)
    third = Domain(name="third", path=str(small_runs.corpus(tmp_path, "third")), validation=0.15)
    learner.learn(third)
    other = ContinualLearner.from_export(made.folder, tmp_path / "away")
    other.learn(third)
    ours, theirs = (each.model_after(3).state_dict() for each in (learner, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda folder: (folder / PLACE).rename(folder / "gone"), "--with-memory"),
        (lambda folder: _flip(folder / "model.safetensors"), "not what was exported"),
        (lambda folder: _flip(next((folder / PLACE).rglob("replay.safetensors"))), "is damaged"),
        (lambda folder: (folder / PLACE / "export.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / PLACE / "export.json").write_text('{"files": {"../x": "0"}}'), "damaged"),
    ],
)
def test_a_damaged_export_is_refused(run: ContinualLearner, tmp_path: Path, harm: Any, told: str) -> None:
    made = export(stage(run), tmp_path / "out", with_memory=True)
    harm(made.folder)
    with pytest.raises(RunError, match=told):
        ContinualLearner.from_export(made.folder, tmp_path / "next")
    assert not (tmp_path / "next").exists()


def test_an_export_decides_nothing_of_the_machine(run: ContinualLearner, tmp_path: Path) -> None:
    made = export(stage(run), tmp_path / "out", with_memory=True)
    path = made.folder / PLACE / "recipe.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["model"]["trust_remote_code"], raw["run"]["folder"], raw["data"]["cache"] = True, "/tmp/x", "/tmp/y"
    raw["train"]["run_name"] = "/tmp/z"
    path.write_text(yaml.safe_dump(raw))
    files.seal(made.folder / PLACE)
    recipe = ContinualLearner.from_export(made.folder, tmp_path / "next").recipe
    assert recipe.model.trust_remote_code is False
    assert (recipe.run.folder, recipe.data.cache) == (str(tmp_path / "next"), None)
    assert "run_name" not in recipe.train


# -- mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{run}/stage-03-third", "{out}"], "is no stage of a run"),
        (["{run}/evaluation", "{out}"], "is no stage of a run"),
        (["{run}", "{run}"], "exists already"),
        (["{run}", "{run}/recipe.yaml"], "is a file"),
        (["{run}", "{out}", "--public"], "there is no `--push`"),
        (["{run}", "{out}", "--push", "no hub id"], "not a valid name on the hub"),
        (["{run}", "{out}", "--push", "mine"], "owner/mine"),
        (["{run}", "{out}", "--push", "owner/name"], "HF_HUB_OFFLINE"),
        (["{run}", "{out}", "--with-memory", "--adapter"], "--base-model"),
        (["{run}", "{out}", "--with-memory", "--dtype", "bfloat16"], "rounds the weights"),
        (["{run}", "{out}", "--dtype", "bfloat61"], "bfloat61"),
    ],
)
def test_a_mistake_is_one_sentence(
    run: ContinualLearner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    places = {"run": run.folder.path, "out": tmp_path / "out"}
    assert main(["export", *(argument.format(**places) for argument in arguments)]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["{out}"], "--into"), (["{run}", "--into", "{next}"], "is resumed in place"), (["owner/name"], "--into")],
)
def test_learning_from_the_wrong_place(
    run: ContinualLearner, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    export(stage(run), tmp_path / "out", with_memory=True)
    places = {"run": run.folder.path, "out": tmp_path / "out", "next": tmp_path / "next"}
    given = [argument.format(**places) for argument in arguments]
    assert main(["learn", *given, "--domain", f"third={small_runs.corpus(tmp_path, 'third')}"]) == 2
    assert told in capsys.readouterr().err


def test_what_reads_with_its_memory_is_not_exported_without_it(tmp_path: Path) -> None:
    learner = ContinualLearner(small_runs.recipe(tmp_path, method="dap_adapter", domains=("a",)))
    learner.run()
    with pytest.raises(RunError, match="'dap_adapter' reads a text with what it keeps"):
        export(learner.folder.path, tmp_path / "out")
    with pytest.raises(RunError, match="keeps no adapter"):
        export(learner.folder.path, tmp_path / "out", adapter=True, with_memory=True)
    made = export(learner.folder.path, tmp_path / "out", with_memory=True)
    card = ModelCard.load(made.folder / "README.md")
    assert card.data.eval_results is None
    assert "not what was scored" in card.text
    there = ContinualLearner.from_export(made.folder, tmp_path / "next")
    ours, theirs = (each.tested("a").cpu()(**TOKENS).logits for each in (learner, there))
    assert torch.equal(ours, theirs)


# -- the hub --------------------------------------------------------------------------------------------------


class Hub:
    """What the client would send."""

    calls: list[tuple[str, dict[str, Any]]]

    def __init__(self, fails: Exception | None = None) -> None:
        self.calls, self.fails = [], fails

    def __call__(self, **options: Any) -> Hub:
        return self

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append((repo_id, options))
        if self.fails is not None:
            raise self.fails

    def upload_folder(self, **options: Any) -> str:
        self.calls.append(
            (options["repo_id"], {"files": sorted(p.name for p in Path(options["folder_path"]).iterdir())})
        )
        return "https://hub.example/owner/name"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "a token")


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("public", [False, True])
def test_a_push_is_private_unless_told(
    run: ContinualLearner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    public: bool,
) -> None:
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    arguments = ["export", str(stage(run)), str(tmp_path / "out"), "--push", "owner/name", *(["--public"] * public)]
    assert main(arguments) == 0
    assert hub.calls[0] == ("owner/name", {"private": not public, "exist_ok": True})
    assert hub.calls[1][1]["files"] == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert "Pushed: https://hub.example/owner/name" in capsys.readouterr().out
    assert "from_pretrained('owner/name')" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.usefixtures("online")
def test_a_push_that_fails_says_why_and_leaves_the_export(
    run: ContinualLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub(ConnectionError("Name or service not known")))
    assert main(["export", str(stage(run)), str(tmp_path / "out"), "--push", "owner/name"]) == 2
    assert "is exported but not on the hub: the hub cannot be reached" in capsys.readouterr().err
    assert (tmp_path / "out/model.safetensors").is_file()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert main(["export", str(stage(run)), str(tmp_path / "other"), "--push", "owner/name"]) == 2
    assert "hf auth login" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_learning_goes_on_from_the_hub(
    run: ContinualLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = export(stage(run), tmp_path / "out", with_memory=True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name: {"owner/name": str(made.folder)}[name])
    learner = ContinualLearner.from_export("owner/name", tmp_path / "next")
    assert [domain.name for domain in learner.recipe.domains] == ["first", "second"]
    monkeypatch.undo()
    with pytest.raises(RunError, match="the hub returned no model of that name"):
        ContinualLearner.from_export("owner/name", tmp_path / "other")


def _texts(folder: Path) -> list[str]:
    return [path.read_bytes().decode("utf-8", errors="replace") for path in folder.rglob("*") if path.is_file()]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _edit(folder: Path, old: str, new: str) -> None:
    for path in itertools.chain(folder.glob("adapter_config.json"), (folder / PLACE).glob("recipe.yaml")):
        path.write_text(path.read_text().replace(old, new))
    raw = files.read_json(folder / PLACE / "export.json")
    raw["files"]["adapter_config.json"] = files.digest(folder / "adapter_config.json")
    files.write_json(folder / PLACE / "export.json", raw)
    files.seal(folder / PLACE)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own-llama"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_a_model_with_code_of_its_own_is_learnt_and_exported_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    base = small_runs.save_model("llama", tmp_path / "models")
    (base / "own.py").write_text(OWN_CODE)
    config = json.loads((base / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    (base / "config.json").write_text(json.dumps(config | {"model_type": "own-llama", "auto_map": own}))
    recipe = small_runs.recipe(tmp_path, "llama", "mas", domains=("first",), train={"max_steps": 1})
    with pytest.raises(ModelError, match=r"needs program code .* set `model\.trust_remote_code: true` in the recipe"):
        ContinualLearner(recipe).run()
    trusted = recipe.changed(model={"path": str(base), "trust_remote_code": True})
    ContinualLearner(trusted).run()
    out = tmp_path / "out"
    export(trusted.run.folder, out)
    assert (out / "own.py").read_text() == OWN_CODE
    for card in (out / "README.md", Path(str(trusted.run.folder)) / "README.md"):
        assert ", trust_remote_code=True)" in card.read_text()
    loaded = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert type(loaded).__name__ == "OwnForCausalLM"
    with pytest.raises(ModelError, match="Commands without a recipe do not run such code"):
        inspect(str(out))
