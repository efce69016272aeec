"""Programs of `benchmarks/`: choices, rules, memory, tables and pages against hand-made numbers."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import shlex
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy import stats
from torch.utils.flop_counter import FlopCounterMode

import stages
import tiny
from bench_suite import TinySuite
from everlearn.commands.recommendation import METHOD, learning_rate
from everlearn.config.recipe import load
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import Protection
from everlearn.methods.penalties.penalty import JOINING, joined

ROOT = Path(__file__).parents[2]
HERE = ROOT / "benchmarks" / "real-models"
PARAMETERS = 134_515_008


@pytest.fixture(scope="module")
def scripts() -> tuple[ModuleType, ModuleType]:
    return loaded("run"), loaded("page")


def loaded(name: str) -> ModuleType:
    """Load a loaded under a name of its own: other benchmarks have a ``run.py`` too."""
    spec = importlib.util.spec_from_file_location(f"real_models_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_every_row_has_equally_many_trials_and_the_same_draws(scripts: tuple[ModuleType, ModuleType]) -> None:
    run, _ = scripts
    trials = run.trials()
    counts = Counter(trial.row for trial in trials)
    assert counts.pop("recommended") == 1
    assert set(counts.values()) == {8}
    rates = {row: [t.learning_rate for t in trials if t.row == row] for row in counts}
    drawn = [sorted(own) for row, own in rates.items() if row not in ("plain", "lora")]
    assert all(own == drawn[0] for own in drawn)
    assert min(rates["plain"]) <= min(drawn[0])
    assert max(rates["plain"]) >= max(drawn[0])


def test_every_trial_is_a_recipe(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    run, _ = scripts
    for trial in run.trials():
        changes = run.overrides(trial, tmp_path, tmp_path)
        assert load(HERE / "development.yaml", changes).methods(), trial.name


def test_what_is_called_recommended_is_what_init_writes(scripts: tuple[ModuleType, ModuleType]) -> None:
    run, _ = scripts
    (trial,) = [trial for trial in run.trials() if trial.row == "recommended"]
    assert [method | {"samples": 50} for method in trial.methods] == list(METHOD)
    assert trial.learning_rate == pytest.approx(learning_rate("decoder", PARAMETERS), rel=0.05)


def test_the_page_and_its_pictures_are_those_of_the_committed_cells(
    scripts: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, page = scripts
    written: dict[Path, str] = {}
    monkeypatch.setattr(page.files, "write_text", written.__setitem__)
    page.main()
    assert {path.name for path in written} == {
        "real-models.md", "real-models.json", "real-models-fresh.svg", "real-models-far.svg"
    }  # fmt: skip
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_the_trials_have_one_kind_of_arithmetic() -> None:
    lines = (HERE / "development.jsonl").read_text(encoding="utf-8").splitlines()
    assert len({json.dumps(json.loads(line)["machine"], sort_keys=True) for line in lines}) == 1


SCRIPTS = sorted(path for folder in ("benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_import_only_what_the_package_has(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("everlearn"):
            if node.module.partition(".")[0] not in ("everlearn", "everlearn_bench"):
                continue  # a package of the examples
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}"), name


FOLDER = Path(__file__).parents[2] / "benchmarks/lstm-cnn"
TASKS = {name: {"majority": 0.5, "state_of_the_art": 0.9} for name in "abc"}


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("findings", monkeypatch)


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def cell(base: str = "lstm", seed: int = 1, left: float = 0.6, **more: Any) -> dict[str, Any]:
    """Three tasks, each learnt to 0.8, of which `left` is left of the first and 0.7 of the second."""
    rows = [[0.8], [0.7, 0.8], [left, 0.7, 0.8]]
    own = {"base": base, "embeddings": "tuned", "order": "hard-last", "seed": seed}
    return own | {"tasks": ["a", "b", "c"], "often": [0.5] * 3, "accuracy": rows} | more


def test_both_conventions_of_the_study(findings: ModuleType) -> None:
    found = findings.forgotten(cell(left=0.4), TASKS)
    first, second = (0.8 - 0.4) / (0.8 - 0.5), (0.8 - 0.7) / (0.8 - 0.5)  # the state of the art cancels
    assert found["share_forgotten"] == pytest.approx((first + second) / 2)
    assert found["share_forgotten_per_step"] == pytest.approx((first / 2 + second) / 2)
    assert found["share_forgotten_clipped"] == pytest.approx((1 + second) / 2), "below the majority is 0"
    assert found["share_forgotten_clipped_per_step"] == pytest.approx((1 / 2 + second) / 2)


def test_pairs_differ_in_nothing_else(findings: ModuleType) -> None:
    asked = findings.Comparison({"base": "cnn-max"}, {"base": "lstm"})
    cells = [cell("cnn-max", 1), cell("lstm", 1), cell("lstm", 2), cell("cnn-max", 2, order="hard-first"), cell("gru")]
    found = findings.paired(cells, asked, lambda each: 1.0 if each["base"] == "lstm" else 0.25)
    assert found == {("tuned, hard-last", 1): -0.75}
    cells[1]["often"] = [0.5, 0.76, 0.5]  # a task that was not learnt cannot be forgotten
    assert not findings.paired(cells, asked, lambda _: 1.0)


@pytest.mark.parametrize(
    ("differences", "says"),
    [
        ([-0.3, -0.31, -0.29], "holds here"),
        ([0.3, 0.31, 0.29], "does not hold here"),
        ([-0.3, 0.31, -0.29], "not decidable at this size"),
        ([-0.3, -0.3001], "not decidable at this size"),
        ([], "not measured yet"),
    ],
)
def test_the_whole_interval_decides(findings: ModuleType, differences: list[float], says: str) -> None:
    assert findings.verdict({("x", seed): each for seed, each in enumerate(differences)}) == says


def test_a_finding_needs_both_conventions(findings: ModuleType) -> None:
    holds, fails, unsure, missing = findings.HOLDS, findings.FAILS, findings.OPEN, findings.MISSING
    assert findings.together([holds, holds]) == holds
    assert findings.together([fails, fails]) == fails
    assert findings.together([holds, fails]) == findings.together([holds, unsure]) == unsure
    assert findings.together([holds, missing]) == missing


def test_the_page_says_what_was_found_and_what_was_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("page", monkeypatch)
    cells = [cell(base, seed, left) for base, left in (("cnn-max", 0.75), ("lstm", 0.6)) for seed in (1, 2, 3)]
    said = "\n".join(page.stream(cells, TASKS, "Rules."))
    line = next(line for line in said.splitlines() if line.startswith("| A CNN forgets less than an LSTM"))
    assert "−0.25" in line.replace("-", "−")
    assert line.endswith("| **holds here** |")
    assert "| lstm | tuned | hard-last | 80 → 70 → 60 | 80 → 70 | 80 |" in said
    assert "Every cell learnt every task" in said
    assert "6 cells" in said
    cells.append(cell(seed=4, often=[0.79, 0.5, 0.5]))
    assert "lstm, tuned, hard-last, seed 4: a." in "\n".join(page.stream(cells, TASKS, "Rules."))


def test_the_page_is_that_of_the_committed_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("page", monkeypatch)
    written: dict[Path, str] = {}
    monkeypatch.setattr(page.files, "write_text", written.__setitem__)
    page.main()
    ((place, said),) = written.items()
    assert place.name == "lstm-cnn.md"
    assert said == place.read_text(encoding="utf-8")


ROWS = {
    "sequential": {"train.learning_rate": [1e-3, 3e-3]},
    "ewc": {"like": "sequential", "method.ewc.strength": [10, 100], "method.ewc.samples": [4, 8]},
}


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = importlib.import_module("choose")
    monkeypatch.setattr(module, "find_suite", lambda name: TinySuite(tmp_path))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"model": str(tmp_path / "model"), "train": {"max_steps": 2}}))
    return module


def asked(folder: Path, **changes: Any) -> Path:
    place = folder / "trials.yaml"
    raw = {"suite": "tiny", "settings": "small.yaml", "domains": ["a", "b"], "seed": 99, "rows": ROWS} | changes
    place.write_text(yaml.safe_dump(raw, sort_keys=False))
    return place


def told(self: Any, row: str, own: dict[str, Any]) -> dict[str, float]:
    """Accuracy and drift of a trial that nobody runs."""
    strength, samples = own.get("method.ewc.strength", 0), own.get("method.ewc.samples", 0)
    better = 0.1 * (own["train.learning_rate"] == 3e-3) + 0.01 * (strength == 10) + 0.001 * samples
    return {"accuracy": 0.5 + better, "bits_drift": 1.0 - 0.005 * strength}


@pytest.mark.parametrize(("within", "strength"), [(None, 10), (0.05, 100)])
def test_one_key_after_the_other_from_what_another_row_chose(
    within: float | None,
    strength: int,
    choose: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By accuracy; or, of what is nearly as accurate as plain training, by how little general text drifted."""
    made: list[dict[str, Any]] = []

    def measured(self: Any, row: str, own: dict[str, Any]) -> dict[str, float]:
        made.append(own)
        return told(self, row, own)

    monkeypatch.setattr(choose.Trials, "measured", measured)
    place, output = asked(tmp_path, **({"within": within} if within else {})), tmp_path / "tuned.yaml"
    arguments = [str(place), "--data", str(tmp_path), "--output", str(output), "--runs", str(tmp_path / "runs")]
    choose.main(arguments)
    assert len(made) == 2 + 2 + 2
    assert made[2] == {"train.learning_rate": 3e-3, "method.ewc.strength": 10}
    entries = yaml.safe_load(output.read_text())["grid"]["rows"]
    assert entries["sequential"] == {"train.learning_rate": 3e-3}
    chosen = {"train.learning_rate": 3e-3, "method.ewc.strength": strength, "method.ewc.samples": 8}
    if within:
        chosen["method.ewc.samples"] = 4  # of equal drift the first
    assert entries["ewc"] == chosen
    assert len(json.loads(output.with_suffix(".json").read_text())["rows"]["ewc"]["trials"]) == 4
    choose.main(arguments)
    assert len(made) == 6, "a trial that is there is not run again"
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"model": str(tmp_path / "model"), "train": {"max_steps": 3}}))
    with pytest.raises(SystemExit):
        choose.main(arguments)
    assert "holds trials with `train.max_steps` 2; here it is 3." in capsys.readouterr().err


def test_development_examples_stand_beside_the_test_part(choose: ModuleType) -> None:
    recipe = {"end_tasks": [{"name": "x", "test": "data/x/test.jsonl"}]}
    assert choose.development(recipe) == {"end_tasks.x.test": str(Path("data/x/dev.jsonl"))}


@pytest.mark.parametrize(
    ("changes", "more", "sentence"),
    [
        ({"seed": None}, [], "has no `seed`"),
        ({"rows": {"ewc": {"like": "sequential"}}}, [], r"`rows.ewc.like`: 'sequential' is no row before it"),
        ({"rows": {"ewc": {"strength": 3}}}, [], "keys and lists of values"),
        ({}, ["--rows", "ewcc"], "no row 'ewcc'. Did you mean 'ewc'"),
        ({}, ["--rows", "ewc"], "'ewc' begins with what was chosen for 'sequential'"),
        ({"settings": "none.yaml"}, [], "none.yaml"),
    ],
)
def test_a_mistake_is_a_sentence(
    changes: dict[str, Any],
    more: list[str],
    sentence: str,
    choose: ModuleType,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    place = asked(tmp_path, **changes)
    with pytest.raises(SystemExit, match="1"):
        choose.main([str(place), "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), *more])
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


SCALARS = 4096
"""Bytes of single numbers, which no method declares."""


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("harness")


class Trainer:
    """Holds 4 MB, then 8 MB more, and after that 4 MB again."""

    def train(self) -> None:
        first = torch.zeros(10**6)
        torch.zeros(2 * 10**6)
        del first
        torch.zeros(10**6)


def test_peak_memory_is_what_lives_at_once(harness: ModuleType) -> None:
    kept = torch.zeros(10**6)
    assert harness.peak_memory(lambda clock, steps: Trainer(), "cpu").total == pytest.approx(12e6, rel=0.01)
    del kept


class Ends:
    """Holds 12 MB while it begins, and 4 MB in its steps."""

    def __init__(self) -> None:
        torch.zeros(3 * 10**6)

    def train(self) -> None:
        torch.zeros(10**6)


def test_peak_of_the_steps_alone(harness: ModuleType) -> None:
    found = harness.peak_memory(lambda clock, steps: Ends(), "cpu")
    assert found.total == pytest.approx(12e6, rel=0.01)
    assert found.steps == pytest.approx(4e6, rel=0.01)


def test_table_of_what_methods_cost(harness: ModuleType) -> None:
    found = {
        name: {"seconds_per_step": seconds, "processor_seconds_per_step": seconds, "peak_bytes": peak}
        for name, seconds, peak in (("Plain", 2.0, 100e6), ("MIGU", 2.1, 150e6))
    }
    rows = harness.overhead_table(harness.beside_first(found)).splitlines()
    assert rows[2] == "| Plain | 2.000 | 1.000 | 1.000 | 100.0 | 1.000 |"
    assert rows[3] == "| MIGU | 2.100 | 1.050 | 1.050 | 150.0 | 1.500 |"
    found["Plain"] |= {"steps_bytes": 90e6, "declared_bytes": 0}
    found["MIGU"] |= {"steps_bytes": 140e6, "declared_bytes": 60e6}
    rows = harness.overhead_table(found).splitlines()
    assert rows[0].endswith("| steps over the first's, MB | declared, MB |")
    assert rows[2:] == [
        "| Plain | 2.000 | 1.000 | 1.000 | 100.0 | 1.000 | 0.0 | 0.0 |",
        "| MIGU | 2.100 | 1.050 | 1.050 | 150.0 | 1.500 | 50.0 | 60.0 |",
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "ewc", "samples": 4, "protect_base": True},
        {"name": "forget_me_not", "samples": 4, "cosine": 0, "representations": 0},
    ],
    ids=lambda spec: spec["name"],
)
def test_a_penalty_adds_no_copy_of_the_weights_to_the_peak(harness: ModuleType, spec: dict[str, Any]) -> None:
    """Its gradients come when the activations are gone, not before them."""

    def peak(*specs: dict[str, Any]) -> int:
        model = tiny.model()
        methods = [build(each) for each in specs]
        protection = Protection(methods, stages.stage(model, 1))
        protection.begin()
        batch = next(protection.stage.batches(64))

        def step() -> None:
            model.zero_grad()
            loss, parts = protection.loss(model, batch)
            assert len(parts) == 1 + len(specs)
            loss.backward()

        step()
        model.zero_grad()
        return harness.peaks(step, "cpu").total

    copy = sum(4 * parameter.numel() for parameter in tiny.model().parameters())
    assert peak(spec) - peak() < copy / 10


@pytest.mark.parametrize(
    ("spec", "copies"),
    [({"name": "ewc", "samples": 4}, 2), ({"name": "mas", "samples": 4}, 2), ({"name": "l2"}, 1)],
    ids=["ewc", "mas", "l2"],
)
def test_measuring_importance_holds_the_new_one_and_a_samples_gradients(
    harness: ModuleType, spec: dict[str, Any], copies: int
) -> None:
    """At the end of a domain, beside what was known; neither squares nor old anchors live as further copies."""
    model, method = tiny.model(hidden_size=128, intermediate_size=512), build(spec)
    for index in (1, 2):
        protection = Protection([method], stages.stage(model, index))
        protection.begin()
        peak = harness.peaks(protection.end, "cpu").total
    copy = sum(4 * parameter.numel() for parameter in model.parameters())
    assert peak < (copies + 0.5) * copy


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "ewc", "protect_base": True},
        {"name": "ewc", "gradients": "batch"},
        {"name": "ewc", "gradients": "steps"},
        {"name": "ewc", "include_penalty": True},
        {"name": "ewc_separate"},
        {"name": "mas"},
        {"name": "forget_me_not"},
        {"name": "budget", "general": None, "earlier": 0.1, "earlier_by": "predicted", "rank": 4},
        {"name": "corda", "r": 4},
        {"name": "lora_null", "r": 4},
    ],
    ids=lambda spec: "-".join(map(str, spec.values())),
)
def test_measuring_holds_what_is_declared(harness: ModuleType, spec: dict[str, Any]) -> None:
    """Beside the memory that is declared, and activations: of each sample's gradient both factors are kept."""
    model, method = tiny.model(hidden_size=128, intermediate_size=512), build({**spec, "samples": 4})
    cost = method.cost(model)
    assert cost.measuring_bytes
    for index in (1, 2):
        stage = stages.stage(model, index, general=True, steps=2)
        loss = partial(stage.objective.per_sample_loss, model, next(stage.batches(stage.batch_size)))
        activations = harness.peaks(loss, "cpu").total
        protection = Protection([method], stage)
        known = held(method)
        begun = known + harness.peaks(protection.begin, "cpu").total
        for rows in stage.batches(2 * stage.batch_size):
            protection.loss(stage.model, rows)[0].backward()
            protection.after_backward()
            stage.step += 1
        stage.model.zero_grad()
        known = held(method)
        peak = max(begun, known + harness.peaks(protection.end, "cpu").total)
        assert peak <= cost.memory_bytes + cost.measuring_bytes + 2 * activations
        model = stage.model


def test_joining_penalties_holds_what_is_declared(harness: ModuleType) -> None:
    """Beside what is given: a copy of the known importance, faded, and the new anchor."""
    there, known, here, new = (torch.rand(500, 500) for _ in range(4))
    assert 8 + harness.peaks(lambda: joined(there, known, here, new), "cpu").total / there.numel() <= JOINING + 0.01


def held(method: Method) -> int:
    """Bytes of what a method knows."""
    return sum(value.numel() * value.element_size() for value in method.memory().tensors.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_holds_what_is_declared(harness: ModuleType, dtype: torch.dtype) -> None:
    """Before the optimizer's step, in it, and while what may not move is put back."""

    def peak(*methods: Method) -> int:
        model = tiny.model().to(dtype)
        stage = stages.stage(model, 1)
        protection = Protection(methods, stage)
        protection.begin()
        optimizer = protection.optimizer(torch.optim.AdamW(model.parameters(), foreach=False))

        def update() -> None:
            with protection.update():
                optimizer.step()

        for batch in stage.batches(2 * stage.batch_size):
            protection.loss(model, batch)[0].backward()
            protection.after_backward()
            found = harness.peaks(update, "cpu").total
        return int(found)

    mofo = build({"name": "mofo"})
    declared = mofo.cost(tiny.model().to(dtype)).memory_bytes
    assert 0.8 * declared < peak(mofo) <= declared + SCALARS


# -- speed on a GPU -----------------------------------------------------------------------------------------------


class Parsed(Exception):
    """The command line was read."""


def gpu_commands() -> list[list[str]]:
    lines = (ROOT / "benchmarks" / "gpu.sh").read_text(encoding="utf-8").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("$python ")]


@pytest.mark.parametrize("command", gpu_commands(), ids=lambda command: command[-1])
def test_the_commands_for_a_gpu_are_understood(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    name, *given = [word.replace("$peak", "312").replace("$folder", "out") for word in command]
    program = importlib.import_module(name.removesuffix(".py"))

    def stop(*_: Any) -> None:
        raise Parsed

    place, what = (program, "make_model") if hasattr(program, "make_model") else (program.harness, "header")
    monkeypatch.setattr(place, what, stop)
    monkeypatch.setattr(sys, "argv", [name, *given])
    with pytest.raises(Parsed):
        program.main()


@pytest.mark.parametrize("kind", ["roberta", "gpt2"])
def test_operations_of_a_token_are_those_that_torch_counts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    harness = importlib.import_module("harness")
    model = harness.random_model(kind, "cpu")
    model.config._attn_implementation = "eager"  # whose products are counted one by one
    ids = torch.randint(5, 99, (2, harness.LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids).logits.sum().backward()
    assert counter.get_total_flops() == pytest.approx(harness.flops_per_token(model) * ids.numel(), rel=0.02)


def test_utilisation_is_the_share_of_the_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    program, out = importlib.import_module("throughput"), tmp_path / "out.json"
    given = [
        "--device",
        "cpu",
        "--batch",
        "2",
        "--segments",
        "1",
        "--steps",
        "1",
        "--memory",
        "--peak-tflops",
        "2",
        "--output",
    ]
    monkeypatch.setattr(sys, "argv", ["throughput.py", "--comparisons", "causal float32", *given, str(out)])
    program.main()
    found = json.loads(out.read_text(encoding="utf-8"))["comparisons"]["causal float32"]["everlearn"]
    needed = program.harness.flops_per_token(program.harness.random_model("gpt2", "cpu"))
    assert found["model_flops_utilisation"] == pytest.approx(needed * found["tokens_per_second"] / 2e12)
    assert found["peak_bytes"] > 0


def test_an_end_task_counts_where_each_seed_is_above_the_constant_answer() -> None:
    judged = loaded("encoder").judged
    truth = np.repeat([2, 0, 1], [60, 25, 15])
    constant = np.full(100, 2)
    better, little = constant.copy(), constant.copy()
    better[60:85], little[60:62] = 0, 0
    found = judged(truth, np.stack([better, better]))
    assert found["constant"] == 0.6
    assert found["accuracy"] == [0.85, 0.85]
    error = stats.ttest_rel(1.0 * (better == truth), 1.0 * (constant == truth)).confidence_interval(0.95)
    assert found["above"] == pytest.approx([error.low, error.low], abs=2e-3)  # Student's t of 100 is a little wider
    assert found["counts"]
    assert not judged(truth, np.stack([better, little]))["counts"]
