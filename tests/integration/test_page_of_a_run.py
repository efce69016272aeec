"""What a run shows: its page, the logged losses, shares of its mixture, phases and bars, and an interruption."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import STEPS, Killer, corpus, kill_and_resume, killed_at, labelled, recipe
from torch import Tensor

from everlearn import files
from everlearn.evaluation import Cell, Results
from everlearn.learner import ContinualLearner
from everlearn.methods.engine.protection import Protection
from everlearn.model.weight_movement import movements, together
from everlearn.report import compare, page
from everlearn.report.verdict import verdict
from everlearn.run.folder import RunFolder
from everlearn.run.forecast import PASSES, ROWS, SETS
from everlearn.run.progress import Advance, Logged, Reporter
from everlearn.tasks.samples import samples_path

pytestmark = pytest.mark.usefixtures("long_samples")

BLANKS = {"roberta": "blanks", "gpt2": "continuation", "t5": "answer"}


def run(folder: Path, architecture: str = "roberta", method: Any = "sequential", **groups: Any) -> Path:
    groups.setdefault("general", {"path": str(folder / "data" / "first.jsonl"), "validation": 0.2})
    if architecture == "t5":
        groups["general"] = None
    groups["evaluation"] = {"samples": 1} | groups.get("evaluation", {})
    made = recipe(folder, architecture, method, **groups)
    ContinualLearner(made).run()
    return folder / "run"


def shown(run: Path) -> dict[str, str]:
    """Samples that a run kept: their places and digests."""
    return {
        str(p.relative_to(run)): files.digest(p) for p in sorted(run.glob("evaluation/stage-*/samples/*.safetensors"))
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("plain"), evaluation={"samples": 2})


def test_every_set_is_asked_after_every_stage_and_the_page_has_its_words(plain: Path) -> None:
    names = ("first", "second", "general")
    assert set(shown(plain)) == {f"evaluation/stage-{r:02d}/samples/{n}.safetensors" for r in range(3) for n in names}
    text = (plain / "report.html").read_text(encoding="utf-8")
    for name in names:
        cells = [Cell.load(samples_path(plain / "evaluation", row, name)) for row in range(3)]
        assert len(cells[0].facts["shown"]) == 2
        assert all(cell.same_examples(cells[0]) for cell in cells)
        assert all(f">{truth}<sup>" in text for passage in cells[0].facts["shown"] for truth in passage[1::2])
    card = (plain / "README.md").read_text(encoding="utf-8")
    written = (plain / "results.json").read_text(encoding="utf-8")
    longest = max(cells[0].facts["shown"][0][::2], key=len).strip()
    assert len(longest) > 10
    assert longest not in card + written


def test_only_what_stays_on_the_machine_says_where_its_files_lie(plain: Path) -> None:
    """Whatever else a run writes may be given to other people."""
    private = {"recipe.yaml", "environment.json"}
    texts = [p for p in plain.rglob("*") if p.suffix in (".json", ".jsonl", ".md", ".html", ".yaml", ".txt")]
    assert {"results.json", "README.md", "report.html", "metrics.jsonl"} <= {path.name for path in texts}
    place = plain.parent
    telling = [p.relative_to(plain) for p in texts if p.name not in private and place.name in p.read_text("utf-8")]
    assert telling == []


def test_layers_moved_as_two_loaded_models_say(plain: Path) -> None:
    learner = ContinualLearner.open(plain)
    models = [{n: t.double() for n, t in learner.model_after(k).state_dict().items()} for k in range(3)]
    kept = set(load_file(plain / "stage-01-first" / "model.safetensors"))
    for stage, found in movements(plain).items():
        for since, parts in ((stage - 1, found.since_before), (0, found.since_base)):
            before, after = models[since], models[stage]
            for layer, moved in together(parts or ()).items():
                key = layer.replace("layers.", "encoder.layer.") + "."
                names = [n for n in kept if key in n] if "layers" in layer else []
                if names:
                    change = torch.sqrt(sum(((after[n] - before[n]) ** 2).sum() for n in names))  # type: ignore[arg-type]
                    norm = torch.sqrt(sum((before[n] ** 2).sum() for n in names))  # type: ignore[arg-type]
                    assert moved.relative == pytest.approx(float(change / norm), rel=1e-9)
                    assert moved.count == sum(after[n].numel() for n in names)
        assert {"layers.0", "layers.1", "embeddings", "head"} <= set(together(found.since_base or ()))


def test_reading_changes_no_weight_and_none_is_kept_where_none_is_wanted(plain: Path, tmp_path: Path) -> None:
    without = run(tmp_path, evaluation={"samples": 0})
    assert shown(without) == {}
    assert "What the model says" not in (without / "report.html").read_text(encoding="utf-8")
    for stage in ("stage-01-first", "stage-02-second"):
        one, other = (load_file(folder / stage / "model.safetensors") for folder in (plain, without))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert [*json.loads((without / "results.json").read_text())["matrices"]] == ["bits_per_byte", "loss", "perplexity"]


@pytest.mark.parametrize("architecture", ["gpt2", "t5"])
def test_models_that_write_are_asked_to_write(architecture: str, tmp_path: Path) -> None:
    folder = run(tmp_path, architecture, train={"max_steps": 1})
    cell = Cell.load(samples_path(folder / "evaluation", 2, "first"))
    assert (cell.facts["form"], len(cell.texts)) == (BLANKS[architecture], 1)
    assert "what follows" in (folder / "report.html").read_text(encoding="utf-8")


def test_what_a_method_puts_beside_the_model_leaves_it_where_it_was(tmp_path: Path) -> None:
    folder = run(tmp_path, method="dap_adapter", train={"max_steps": 2})
    for found in movements(folder).values():
        assert not any(part.moved for part in (*(found.since_before or ()), *(found.since_base or ())))
    assert "the base model did not move" in (folder / "report.html").read_text(encoding="utf-8")
    base, end = (Cell.load(samples_path(folder / "evaluation", row, "second")) for row in (0, 2))
    assert (base["truth"] != end["truth"]).any(), "texts are read with the adapter"


def test_a_model_that_grew_is_not_compared(tmp_path: Path) -> None:
    folder = run(tmp_path, method={"name": "elle", "capacity": 16}, train={"max_steps": 2})
    first, second = movements(folder).values()
    assert first.since_base is not None
    assert (second.since_before, second.since_base) == (None, None)
    assert "the model grew" in (folder / "report.html").read_text(encoding="utf-8")


def test_an_interrupted_run_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, killed_at(Killer(patch), "step 2.2"):
        run(tmp_path)
    folder = tmp_path / "run"
    assert not (folder / "results.json").exists()
    comparison = compare([folder])
    assert verdict(comparison)[0].startswith("Sequential is not finished: 1 of 2 domains are learnt. So far the diff")
    text = page(comparison)
    assert "Which layers moved" in text
    assert "after first" in text
    assert not (folder / "results.json").exists()


METHODS: dict[str, tuple[str, Any, str]] = {
    "a penalty": ("gpt2", {"name": "mas", "samples": 8, "strength": 1e4}, "mas/penalty"),
    "a view": ("roberta", {"name": "das", "samples": 8, "general": "none"}, "das/contrast"),
    "a teacher": ("gpt2", "kd", "kd/divergence"),
    "nothing": ("gpt2", "replay", ""),
}


class Lines(Reporter):
    """Keeps what a person is told at each logging step."""

    def __init__(self) -> None:
        self.lines: list[Logged] = []

    def log(self, at: Logged) -> None:
        self.lines.append(at)


@pytest.mark.parametrize("case", METHODS)
def test_loss_is_the_mean_nats_of_the_step_and_what_methods_add_has_names_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    passes: list[tuple[float, int, float]] = []
    forward = Protection.forward

    def watched(self: Protection, model: Any, batch: dict[str, Tensor]) -> Any:
        outputs, extra = forward(self, model, batch)
        added = sum(float(value.detach()) for value in extra.values())
        passes.append((float(outputs.losses.detach().sum()), int(outputs.items), added))
        return outputs, extra

    monkeypatch.setattr(Protection, "forward", watched)
    architecture, method, added = METHODS[case]
    reporter = Lines()
    learner = ContinualLearner(recipe(tmp_path, architecture, method), reporter=reporter)
    learner.run()
    lines = learner.folder.metrics()
    assert len(lines) == len(reporter.lines) == 2 * STEPS
    expected = [
        ((one[0] + two[0]) / (one[1] + two[1]), (one[2] + two[2]) / 2)
        for one, two in zip(passes[::2], passes[1::2], strict=True)
    ]
    for line, shown, (loss, more) in zip(lines, reporter.lines, expected, strict=True):
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert (shown.loss, shown.added) == (line["loss"], line.get("loss_added"))
        if added in line:
            assert line["loss_added"] == pytest.approx(more, rel=1e-4)
            assert line["loss_added"] == pytest.approx(sum(v for k, v in line.items() if "/" in k), rel=1e-6)
        else:
            assert more == 0
            assert "loss_added" not in line
    if added:
        assert lines[-1][added] > (1 if case == "a penalty" else 0)
    if case == "a penalty":
        facts = json.loads((learner.folder.path / "stage-02-second" / "stage.json").read_text())
        assert facts["final_loss"] == lines[-1]["loss"]


MIXTURES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, float]]]] = {
    "streamed, from both": (
        {"name": "replay", "share": 0.1, "source": "both", "capacity": 30},
        {"each": {"streaming": True, "shuffle_buffer": 4}, "general": True},
        {
            "first": {"first": 0.9, "general": 0.1},
            "second": {"second": 0.9, "earlier domains": 0.05, "general": 0.05},
        },
    ),
    "packed, generated": (
        {"name": "replay_generated", "share": 0.03, "capacity": 12},
        {},
        {"first": {"first": 0.97, "generated": 0.03}, "second": {"second": 0.97, "generated": 0.03}},
    ),
}


@pytest.mark.parametrize("case", MIXTURES)
def test_realised_is_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    method, groups, asked = MIXTURES[case]
    train = {"max_steps": 8, "per_device_train_batch_size": 64, "save_steps": 3}
    data = {"block_size": 16, "cache": str(tmp_path / "cache")}
    of = recipe(tmp_path, "gpt2", method, train=train, data=data, **groups)
    place = kill_and_resume(Killer(monkeypatch), of, ["step 1.5", "step 2.4"])
    results = Results.load(place / "results.json")
    found = {
        domain: {share.source: share for share in results.mixture if share.domain == domain}
        for domain in ("first", "second")
    }
    tokens = 8 * 2 * 64 * 16
    for domain, shares in asked.items():
        assert found[domain].keys() == shares.keys()
        for name, wanted in shares.items():
            share = found[domain][name]
            assert share.asked == pytest.approx(wanted)
            assert share.realised == pytest.approx(wanted, abs=1e-3)
        assert sum(share.tokens for share in found[domain].values()) == tokens
    last = [line for line in RunFolder(place).metrics() if "shares" in line][-1]
    assert last["shares"] == {name: round(share.realised, 6) for name, share in found["second"].items()}
    page = (place / "report.html").read_text(encoding="utf-8")
    assert "what each stage was made of" in page
    if method["name"] == "replay_generated":
        assert any("before 'second' the model generated 12 rows" in note for note in results.notes)


def test_tokens_of_a_sample_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shares are of the rows, and those of an earlier domain may be longer: tokens do not follow from them."""
    of = recipe(
        tmp_path,
        "t5",
        {"name": "replay", "sample": 0.5, "capacity": 64},
        train={"max_steps": 4, "per_device_train_batch_size": 4, "save_steps": 3},
        data={"block_size": 64, "cache": str(tmp_path / "cache")},
    )
    long = corpus(tmp_path / "data", "first", answers=True)
    short = [json.loads(line) for line in long.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({"text": row["text"][:20] + " ", "answer": row["answer"][:9]}) for row in reversed(short)]
    (tmp_path / "data" / "second.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    place = kill_and_resume(Killer(monkeypatch), of, ["step 2.3"])
    results = Results.load(place / "results.json")
    found = {share.source: share for share in results.mixture if share.domain == "second"}
    tokens = results.cost.stages[1].tokens
    assert sum(share.tokens for share in found.values()) == tokens
    rows = 4 * 2 * 4
    for share in found.values():
        assert share.realised * rows == pytest.approx(round(share.realised * rows)), "of the rows"
    assert found["earlier domains"].tokens > 1.2 * found["earlier domains"].realised * tokens


@dataclass
class Seen:
    """A phase: how many steps it has, what was told of them, and how many phases were open around it."""

    text: str
    total: int | None
    depth: int
    told: list[int] = field(default_factory=list)


class Recording(Reporter):
    """Keeps every phase, every estimate, and what the forecast holds at the first logging step."""

    def __init__(self) -> None:
        self.phases: list[Seen] = []
        self.estimates: list[float | None] = []
        self.first: dict[str, float] = {}
        self.learner: ContinualLearner | None = None
        self._open = 0

    @contextlib.contextmanager
    def activity(self, text: str, total: int | None) -> Iterator[Advance]:
        seen = Seen(text, total, self._open)
        self.phases.append(seen)
        self._open += 1
        try:
            yield seen.told.append
        finally:
            self._open -= 1

    def left(self, seconds: float | None) -> None:
        self.estimates.append(seconds)

    def log(self, at: Logged) -> None:
        if not self.first and self.learner is not None:
            forecast = self.learner.forecast
            self.first = {kind: forecast.seconds({kind: amount}) for kind, amount in forecast.ahead.items() if amount}
            self.first["all"] = at.run_left or 0.0


CASES: dict[str, tuple[str, Any, list[str]]] = {
    "mas": ("gpt2", {"name": "mas", "samples": 8}, ["Measuring importance: MAS on {}"] * 2),
    "ewc": ("gpt2", {"name": "ewc", "samples": 8, "protect_base": True}, ["Measuring importance: EWC on {}"] * 2),
    "das": ("roberta", {"name": "das", "samples": 8}, ["Measuring importance: DAS on {}"] * 2),
    "budget": ("gpt2", {"name": "budget", "samples": 8}, ["Measuring importance: Forgetting budget on {}"] * 2),
    "kd": (
        "gpt2",
        {"name": "kd", "compare": "logits", "teacher_dropout": False, "top_k": 4},
        ["Storing predictions before {}"] * 2,
    ),
    "generated": ("gpt2", {"name": "replay", "source": "generated"}, ["Generating text before {}"] * 2),
}


@pytest.mark.parametrize("case", CASES)
def test_every_phase_gets_to_its_end_and_is_expected_from_the_start(tmp_path: Path, case: str) -> None:
    architecture, method, texts = CASES[case]
    reporter = Recording()
    task = {"train": str(labelled(tmp_path, "train", 8)), "test": str(labelled(tmp_path, "test", 4))}
    learner = reporter.learner = ContinualLearner(
        recipe(
            tmp_path,
            architecture,
            method,
            general={"name": "general", "path": str(corpus(tmp_path / "data", "general")), "validation": 0.15},
            end_tasks=[{"name": "words", **task, "epochs": 1, "batch_size": 8, "max_length": 16}],
            evaluation={"samples": 1, "end_task_seeds": 1, "every": 3, "end_tasks": "every"},
        ),
        reporter=reporter,
    )
    learner.run()
    names = [phase.text for phase in reporter.phases]
    for phase in reporter.phases:
        assert phase.told == sorted(phase.told), phase
        if phase.total is not None:
            assert phase.told[-1] == phase.total > 0, phase
    for text, domain in zip(texts, ("first", "second"), strict=True):
        assert text.format(domain) in names, names
    assert names[0] == "Checking recipe, model and data"
    assert {"Reading first", "Learning first (1/2)", "Learning second (2/2)"} < set(names)
    assert {"Saving first", "Loading the base model", "Loading the model after first"} < set(names)
    for where in ("the base model", "after first", "after second"):
        assert {f"Held-out text, {where}", f"End task words, {where}"} < set(names)
    assert "Scores after step 3" in names
    # Before any importance pass, the second row of scores or the second end task: all are in the estimate.
    assert min(reporter.first[kind] for kind in (ROWS, SETS, "words")) > 0
    assert sum(seconds for kind, seconds in reporter.first.items() if kind != "all") == pytest.approx(
        reporter.first["all"]
    )
    assert reporter.first[PASSES] > 0
    assert reporter.estimates[-1] == 0
    assert {kind: amount for kind, amount in learner.forecast.ahead.items() if amount} == {}
