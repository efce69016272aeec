"""What can happen to a run's files and numbers: damage, a full disk, a loss that is not finite, signals."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_runs import (
    SAVING,
    Killed,
    Killer,
    assert_same,
    corpus,
    elsewhere,
    kill_and_resume,
    killed_at,
    leftovers,
    recipe,
)

from everlearn import files, report
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.errors import Interrupted, RunError, TrainingDiverged
from everlearn.evaluation import Cell, Results
from everlearn.learner import ContinualLearner
from everlearn.run import interruption, trainer
from everlearn.run.checkpoint import DATA_STATE, checkpoints
from everlearn.run.progress import Reporter
from everlearn.tasks.held_out import HeldOut

pytestmark = pytest.mark.usefixtures("no_report")


class Listener(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A run that nothing happened to."""
    made = recipe(tmp_path_factory.mktemp("whole"), train=SAVING, evaluation={"samples": 1})
    ContinualLearner(made).run()
    return made


@pytest.fixture
def broken(whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The same run, killed at step 5 of its second stage: checkpoints 2 and 4 are there."""
    made = elsewhere(whole, tmp_path / "run")
    shutil.copytree(whole.folder(), made.folder())
    recipes.save(made, made.folder() / "recipe.yaml")
    for name in ("stage-02-second", "evaluation/stage-02"):
        shutil.rmtree(made.folder() / name)
    with killed_at(Killer(monkeypatch), "step 2.5"):
        ContinualLearner.open(made.folder()).resume()
    monkeypatch.undo()
    return made


def checkpoint(of: Recipe, step: int) -> Path:
    return of.folder() / "stage-02-second.training" / f"checkpoint-{step}"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("harm", "victim"),
    [
        (flip, "model.safetensors"),
        (truncate, "optimizer.pt"),
        (Path.unlink, "rng_state.pth"),
        (truncate, "seal.json"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    whole: Recipe, broken: Recipe, harm: Callable[[Path], None], victim: str
) -> None:
    harm(checkpoint(broken, 4) / victim)
    listener = Listener()
    ContinualLearner.open(broken.folder(), listener).resume()
    said = next(text for text in listener.said if "damaged" in text)
    assert "checkpoint-4" in said
    assert victim in said
    assert_same(broken.folder(), whole.folder())


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.place,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4")  # torch, of the attack's file
@pytest.mark.parametrize("victim", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", DATA_STATE])
def test_what_is_sealed_and_no_checkpoint_is_refused(
    whole: Recipe, broken: Recipe, tmp_path: Path, victim: str
) -> None:
    place = checkpoint(broken, 4)
    attack = pickle.dumps(Attack(tmp_path / "attacked"))
    for content in (attack, b"[]", b"{}") if victim.endswith(".json") else (attack,):
        (place / victim).write_bytes(content)
        files.seal(place)
        with pytest.raises(RunError, match=rf"checkpoint-4(/{victim} is damaged| is not a checkpoint of this run).*"):
            ContinualLearner.open(broken.folder()).resume()
    assert not (tmp_path / "attacked").exists()
    shutil.rmtree(place)
    ContinualLearner.open(broken.folder()).resume()
    assert_same(broken.folder(), whole.folder())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "training_args.bin"])
def test_a_checkpoint_with_more_than_was_saved_is_left_out(
    whole: Recipe, broken: Recipe, tmp_path: Path, name: str
) -> None:
    (checkpoint(broken, 4) / name).write_bytes(pickle.dumps(Attack(tmp_path / "attacked")))
    listener = Listener()
    ContinualLearner.open(broken.folder(), listener).resume()
    assert any("checkpoint-4" in said and name in said for said in listener.said)
    assert not (tmp_path / "attacked").exists()
    assert_same(broken.folder(), whole.folder())


def test_without_any_good_checkpoint_the_stage_starts_again(whole: Recipe, broken: Recipe) -> None:
    for step in (2, 4):
        flip(checkpoint(broken, step) / "model.safetensors")
    with (broken.folder() / "metrics.jsonl").open("a") as file:
        file.write('{"stage": 2, "st')  # cut short by the kill
    ContinualLearner.open(broken.folder()).resume()
    assert_same(broken.folder(), whole.folder())
    lines = [json.loads(line) for line in (broken.folder() / "metrics.jsonl").read_text().splitlines()]
    keys = [(line["stage"], line["step"]) for line in lines]
    assert keys == sorted(set(keys))
    assert len(keys) == 10


def test_a_damaged_stage_is_named(broken: Recipe) -> None:
    flip(broken.folder() / "stage-01-first" / "model.safetensors")
    with pytest.raises(RunError, match=r"stage-01-first/model.safetensors is damaged.*delete stage-01-first"):
        ContinualLearner.open(broken.folder()).resume()


@pytest.mark.parametrize("harm", [flip, truncate])
@pytest.mark.parametrize("part", ["stage-00", "stage-01", "sets"])
def test_a_damaged_cell_or_set_is_named_and_made_again(
    whole: Recipe, tmp_path: Path, harm: Callable[[Path], None], part: str
) -> None:
    moved, listener = shutil.copytree(whole.folder(), tmp_path / "moved"), Listener()
    victim = moved / "evaluation" / part / "first.safetensors"
    harm(victim)
    ContinualLearner.open(moved, listener).resume()
    assert any(f"{victim} is damaged" in said and "again" in said for said in listener.said)
    assert_same(moved, whole.folder())
    assert files.digest(victim) == files.digest(whole.folder() / victim.relative_to(moved))


def test_a_damaged_set_whose_text_is_gone_or_another_one_is_refused(whole: Recipe, tmp_path: Path) -> None:
    made = elsewhere(whole, tmp_path / "run")
    domains = [domain.model_dump(mode="json", exclude_unset=True) for domain in made.domains]
    for path, says in ((corpus(tmp_path, "other"), "is not what it was drawn from"), (tmp_path / "gone", "gone")):
        shutil.copytree(whole.folder(), made.folder())
        recipes.save(
            made.changed(domains=[domains[0] | {"path": str(path)}, domains[1]]), made.folder() / "recipe.yaml"
        )
        flip(made.folder() / "evaluation" / "sets" / "first.safetensors")
        for _ in range(2):  # nothing that was drawn in between passes for it
            with pytest.raises(RunError, match=rf"sets/first.safetensors is damaged.*{says}.*Restore"):
                ContinualLearner.open(made.folder()).resume()
        shutil.rmtree(made.folder())


def test_a_damaged_cell_of_a_model_that_is_gone_is_refused(whole: Recipe, tmp_path: Path) -> None:
    made = elsewhere(whole, tmp_path / "run")
    shutil.copytree(whole.folder(), made.folder())
    recipes.save(made.changed(run=made.run.model_dump() | {"keep_stages": "last"}), made.folder() / "recipe.yaml")
    ContinualLearner.open(made.folder()).resume()
    flip(made.folder() / "evaluation" / "stage-01" / "first.safetensors")
    with pytest.raises(RunError, match=r"stage-01/first.safetensors is damaged.*cannot be measured again.*keep_stages"):
        ContinualLearner.open(made.folder()).resume()


@pytest.mark.parametrize("name", ["recipe.yaml", "environment.json", "metrics.jsonl", "evaluation/stage-01/_time.json"])
def test_what_cannot_be_made_again_is_refused(whole: Recipe, tmp_path: Path, name: str) -> None:
    moved = shutil.copytree(whole.folder(), tmp_path / "moved")
    content = (moved / name).read_text(encoding="utf-8")
    digit = next(place for place, letter in enumerate(content) if letter.isdigit())
    other = "1" if content[digit] != "1" else "2"
    (moved / name).write_text(content[:digit] + other + content[digit + 1 :], encoding="utf-8")
    with pytest.raises(RunError, match=rf"{name} is damaged: its content is not what was saved"):
        report.html.page(report.compare([ContinualLearner.open(moved).resume() and moved]))


def test_a_finished_run_is_recognised_without_reading_what_was_measured(
    whole: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, digest = [], files.digest
    (whole.folder() / "report.html").touch()  # these runs are made without one, and a finished run has it

    def seen(path: Path) -> str:
        read.append(path.relative_to(whole.folder()).as_posix())
        return digest(path)

    monkeypatch.setattr(files, "digest", seen)
    for owner in (Cell, HeldOut):
        monkeypatch.setattr(owner, "load", lambda *_: pytest.fail("read"))
    ContinualLearner.open(whole.folder()).resume()
    assert not [name for name in read if name.startswith("evaluation/")]
    assert read.count("stage-01-first/model.safetensors") == 1


def test_damaged_results_are_made_again(whole: Recipe, tmp_path: Path) -> None:
    moved = shutil.copytree(whole.folder(), tmp_path / "moved")
    flip(moved / "results.json")
    with pytest.raises(RunError, match=r"results\.json is damaged"):
        report.compare([moved])
    ContinualLearner.open(moved).resume()
    assert_same(moved, whole.folder())


@pytest.mark.parametrize("name", ["seal.json", "evaluation/stage-01/seal.json", "stage-01-first/seal.json"])
@pytest.mark.parametrize("content", ["[]", "null", "{", '{"a": 3}'])
def test_a_damaged_seal_is_named(whole: Recipe, tmp_path: Path, name: str, content: str) -> None:
    moved = shutil.copytree(whole.folder(), tmp_path / "moved")
    (moved / name).write_text(content)
    with pytest.raises(RunError, match=rf"{name} is damaged"):
        ContinualLearner.open(moved).resume()


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"of": 1}', "{"])
def test_a_damaged_mark_is_no_mark(whole: Recipe, tmp_path: Path, content: str) -> None:
    moved = shutil.copytree(whole.folder(), tmp_path / "moved")
    (moved / "evaluation" / "_made_of.json").write_text(content)
    ContinualLearner.open(moved).resume()
    assert_same(moved, whole.folder())


def test_text_that_changed_is_noticed(broken: Recipe, tmp_path: Path) -> None:
    other = corpus(tmp_path, "other")
    domains = [domain.model_dump(mode="json", exclude_unset=True) for domain in broken.domains]
    domains[1]["path"] = str(other)
    recipes.save(broken.changed(domains=domains), broken.folder() / "recipe.yaml")
    with pytest.raises(RunError, match="text of domain 'second' is not what it was"):
        ContinualLearner.open(broken.folder()).resume()


def test_only_our_leftovers_are_removed(broken: Recipe) -> None:
    mine = broken.folder() / ".git" / "config"
    mine.parent.mkdir()
    mine.write_text("not ours")
    for place in ("", "evaluation/sets", "stage-02-second.training"):
        (broken.folder() / place / f"{files.PARTIAL}something").mkdir()
    learner = ContinualLearner.open(broken.folder())
    learner.folder.clean_up()
    assert leftovers(broken.folder()) == ["stage-02-second.training"]
    assert mine.read_text() == "not ours"


# -- numbers that are not finite -----------------------------------------------------------------------------------


def spoiled(monkeypatch: pytest.MonkeyPatch, step: int, what: str) -> None:
    """From this step of stage 2 on, the loss or the gradients are not finite."""
    name = {"loss": "compute_loss", "gradient": "training_step"}[what]
    original = getattr(trainer.StageTrainer, name)

    def spoil(self: trainer.StageTrainer, *args: object, **kwargs: object) -> torch.Tensor:
        loss = original(self, *args, **kwargs)
        if self.stage.index == 2 and self.state.global_step + 1 >= step:
            if what == "loss":
                return loss * torch.nan
            next(p for p in self.stage.model.parameters() if p.grad is not None).grad.fill_(torch.inf)
        return loss

    monkeypatch.setattr(trainer.StageTrainer, name, spoil)


@pytest.mark.parametrize(("what", "step", "kept"), [("loss", 3, 2), ("gradient", 4, 2), ("gradient", 5, 4)])
def test_a_loss_that_is_not_finite(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, step: int, kept: int
) -> None:
    made = elsewhere(whole, tmp_path / "run")
    shutil.copytree(whole.folder() / "stage-01-first", made.folder() / "stage-01-first")
    recipes.save(made, made.folder() / "recipe.yaml")
    spoiled(monkeypatch, step, what)
    with pytest.raises(TrainingDiverged, match=rf"'second' is not finite from step {step} on.*last good state"):
        ContinualLearner.open(made.folder()).resume()
    assert not (made.folder() / "stage-02-second").exists()
    left = [path.name for path in checkpoints(made.folder() / "stage-02-second.training")]
    assert left[-1] == f"checkpoint-{kept}"
    logged = [json.loads(line) for line in (made.folder() / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] == line["loss"] for line in logged)
    monkeypatch.undo()
    ContinualLearner.open(made.folder()).resume()
    assert_same(made.folder(), whole.folder())


# -- a full disk ---------------------------------------------------------------------------------------------------


def full(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["safetensors.torch.save_file", "os.fsync", "torch.save"])
def test_a_full_disk(whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    made = elsewhere(whole, tmp_path / "run")
    with monkeypatch.context() as patch:
        killer = Killer(patch)
        with killed_at(killer, "step 2.3"):
            ContinualLearner(made).run()
        killer.moment = lambda name: patch.setattr(place, full) if name == "step 2.3" else None  # type: ignore[method-assign]
        with pytest.raises(RunError, match=r"disk is full.*everlearn resume"):
            ContinualLearner.open(made.folder()).resume()
    ContinualLearner.open(made.folder()).resume()
    assert_same(made.folder(), whole.folder())


def test_torch_save_on_a_full_disk_is_understood() -> None:
    device = Path("/dev/full")
    if not device.is_char_device():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(RunError, match="disk is full"), files.writing(device):
        torch.save(torch.zeros(10_000), device)
    with pytest.raises(RuntimeError, match="size mismatch"), files.writing(device):
        torch.nn.Linear(1, 1).load_state_dict(torch.nn.Linear(2, 1).state_dict())


# -- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("signals_as_in_a_terminal")
def test_a_signal_and_the_same_learner_again(whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = elsewhere(whole, tmp_path / "run")
    learner = ContinualLearner(made)
    killer = Killer(monkeypatch)

    def moment(name: str) -> None:
        if name == killer.at:
            killer.at = None
            os.kill(os.getpid(), signal.SIGTERM)

    killer.moment = moment  # type: ignore[method-assign]
    killer.at = "step 1.3"
    with pytest.raises(Interrupted, match=f"Stopped and saved. Continue with `everlearn resume {made.folder()}`"):
        learner.run()
    assert [p.name for p in checkpoints(made.folder() / "stage-01-first.training")][-1] == "checkpoint-3"
    killer.at = "loss first"  # outside training a signal acts at once
    with pytest.raises(Interrupted, match=f"saved is complete; continue with `everlearn resume {made.folder()}`"):
        learner.resume()
    killer.at = "step 2.5"  # the last step
    with pytest.raises(Interrupted):
        learner.resume()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    learner.resume()
    assert_same(made.folder(), whole.folder())


@pytest.mark.usefixtures("signals_as_in_a_terminal")
def test_a_signal_at_the_last_step_saves_even_where_nothing_else_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe(tmp_path, domains=("only",), train={"save_strategy": "no"})
    original = interruption._Callback.on_step_end

    def on_step_end(self: interruption._Callback, args: object, state: object, *rest: object, **more: object) -> object:
        if state.global_step == 5:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, args, state, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(interruption._Callback, "on_step_end", on_step_end)
        with pytest.raises(Interrupted):
            ContinualLearner(made).run()
    assert [p.name for p in checkpoints(made.folder() / "stage-01-only.training")] == ["checkpoint-5"]
    ContinualLearner.open(made.folder()).resume()


def test_alone_is_killed_and_resumed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(tmp_path, domains=("first",), evaluation={"alone": True}, method="das", train=SAVING)
    whole = elsewhere(made, tmp_path / "whole")
    ContinualLearner(whole).run()
    killer = Killer(monkeypatch)
    kill_and_resume(killer, made, ["scored 1"])
    shutil.rmtree(made.folder() / "alone")
    with killed_at(killer, "step 1.3"):
        ContinualLearner.open(made.folder()).resume()
    assert (made.folder() / "alone" / "first" / "stage-01-first.training" / "checkpoint-2").is_dir()
    ContinualLearner.open(made.folder()).resume()
    assert_same(made.folder(), whole.folder())
    assert_same_alone(made, whole)
    cells = list((whole.folder() / "evaluation").rglob("_time.json"))
    assert {path.parent.name for path in cells} >= {"alone"}
    spent = Results.load(whole.folder()).cost.evaluation_seconds
    assert spent == pytest.approx(sum(files.read_json(path)["seconds"] for path in cells))
    assert issubclass(Killed, BaseException)


def assert_same_alone(one: Recipe, other: Recipe) -> None:
    """Models trained alone are equal too."""
    name = "alone/first/stage-01-first/model.safetensors"
    assert files.digest(one.folder() / name) == files.digest(other.folder() / name)
