"""`stop` in a protected Trainer: what happens where held-out text is forgotten beyond a bound."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from protected_run import rows, trainer_of
from torch import nn
from transformers import TrainerCallback

import stages
import tiny
from everlearn import files, protect
from everlearn.errors import EverlearnError
from everlearn.protecting.held_out import held_out_texts
from everlearn.run.checkpoint import checkpoints
from everlearn.run.forgetting_guard import STATE
from two_processes import in_two_processes

RARE = ["§ ± µ ¶ ÷ × ø ß þ ð " * 6] * 4
"""Text of which the training has no token, so that it gets worse."""
OWN = [tiny.tokenizer().decode(row["input_ids"]) for row in rows()] * 4
"""Text like that of the training, so that it gets better until the rate is too high for it."""
STEPS, RATE = 6, 3e-2


class Record(TrainerCallback):
    """Keeps the weights and the rate of each step, in their order."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, dict[str, torch.Tensor]]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        weights = {name: p.detach().clone() for name, p in kwargs["model"].named_parameters()}
        self.steps.append((state.global_step, kwargs["optimizer"].param_groups[0]["lr"], weights))

    def after(self, step: int) -> dict[str, torch.Tensor]:
        """The weights after a step, the first time."""
        return next(weights for at, _, weights in self.steps if at == step)


def prepared(folder: Path, model: nn.Module, methods: Any = ("ewc",), **options: Any) -> tuple[Any, Record]:
    """A protected trainer of six steps, and what it records."""
    given = {name: options.pop(name) for name in list(options) if not name.startswith(("stop", "held_out"))}
    trainer, record = trainer_of(model, folder, **{"max_steps": STEPS, "learning_rate": RATE} | given), Record()
    trainer.add_callback(record)  # before the one that takes steps back
    protect(trainer, list(methods), memory=folder / "memory", **{"held_out": {"rare": RARE}} | options)
    return trainer, record


def trained(folder: Path, model: nn.Module, methods: Any = ("ewc",), **options: Any) -> tuple[Any, Record]:
    """The same, trained."""
    trainer, record = prepared(folder, model, methods, **options)
    trainer.train()
    return trainer, record


def bits(base: nn.Module, record: Record, text: Any = RARE) -> dict[int, float]:
    """Step → bits per byte that a text got worse."""
    (scored,) = held_out_texts({"text": text}, base, tiny.tokenizer())
    scored.measure(base, 4, False)
    model, found = copy.deepcopy(base), {}
    for step, _, weights in record.steps:
        model.load_state_dict(weights, strict=False)
        found[step] = scored.forgetting(model, 4, False).forgotten.value or 0.0
    return found


def same(model: nn.Module, weights: dict[str, torch.Tensor]) -> bool:
    return all(stages.equal(parameter, weights[name]) for name, parameter in model.named_parameters())


def memory_of(folder: Path, method: str) -> dict[str, torch.Tensor]:
    return files.load_tensors(folder / "memory" / "stage-01-domain-1" / f"{method}.safetensors")


@pytest.fixture
def base() -> nn.Module:
    return tiny.model("gpt2", dropout=0.0)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, dict[int, float]]:
    """A training without bounds, and how much worse the text gets in it."""
    base = tiny.model("gpt2", dropout=0.0)
    _, record = trained(tmp_path_factory.mktemp("free"), copy.deepcopy(base))
    return record, bits(base, record)


def between(worse: dict[int, float], step: int) -> float:
    """A bound that is passed for the first time right after a step."""
    before = max(worse[at] for at in worse if at <= step)
    assert before < worse[step + 1]
    return (before + worse[step + 1]) / 2


def test_it_ends_with_the_last_step_within_the_bound_where_the_domain_has_no_text(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    record, worse = free
    bound, model = between(worse, 3), copy.deepcopy(base)
    trainer, _ = trained(tmp_path / "stopped", model, stop={"rare": bound}, stop_every=1)
    assert trainer.state.global_step == 4
    assert same(model, record.after(3))
    report = trainer.protection_report()
    assert report.steps == 3
    assert report.forgetting[0].forgotten.value == pytest.approx(worse[3], abs=1e-5)
    assert "Domain 'domain-1', step 4 of 6: 'rare' is predicted" in str(report)
    assert f"worse than before this training, more than `stop` allows ({bound:g}). It ends with the weights of" in str(
        report
    )
    assert not list((tmp_path / "stopped" / "out").iterdir()), "nobody asked for checkpoints"


def test_it_ends_with_the_step_that_predicts_the_domains_own_text_best(tmp_path: Path, base: nn.Module) -> None:
    _, record = trained(tmp_path / "free", copy.deepcopy(base), learning_rate=0.3)
    own = bits(base, record, OWN)
    best = min(own, key=own.__getitem__)
    assert best < STEPS
    texts = {"rare": RARE, "domain-1": OWN}
    for name, stop in (("bounded", 1e6), ("unbounded", {})):
        model = copy.deepcopy(base)
        trainer, _ = trained(tmp_path / name, model, learning_rate=0.3, held_out=texts, stop=stop, stop_every=1)
        assert same(model, record.after(best))
        assert f"ends with the weights of step {best} of 6: no measured step predicts its own" in str(
            trainer.protection_report()
        )


def test_the_memory_is_that_of_a_training_that_ended_there(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    # SI adds up what each step contributes: discarded steps would be in it.
    methods, short = ("si", {"name": "ewc", "samples": 4}), copy.deepcopy(base)
    trained(tmp_path / "short", short, methods, max_steps=3)
    bound, model = between(free[1], 3), copy.deepcopy(base)
    trained(tmp_path / "stopped", model, methods, stop=bound, stop_every=1)
    assert same(model, dict(short.named_parameters()))
    for method in ("si", "ewc"):
        ours, theirs = (memory_of(tmp_path / name, method) for name in ("stopped", "short"))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_passed_at_the_first_measurement_the_model_stays_as_it_was(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    model = copy.deepcopy(base)
    trainer, _ = trained(tmp_path / "stopped", model, stop=free[1][4] - 0.01, stop_every=4)
    assert trainer.state.global_step == 4
    assert same(model, dict(base.named_parameters()))
    assert "It leaves the model as it was at its beginning" in str(trainer.protection_report())
    assert trainer.protection_report().steps == 0


def test_within_the_bound_nothing_changes(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    model = copy.deepcopy(base)
    trainer, _ = trained(tmp_path / "bounded", model, stop=1e6, stop_every=2)
    assert same(model, free[0].after(6))
    assert trainer.protection_report().events == ()


@pytest.mark.parametrize(("step", "every"), [(0, 4), (3, 1)])
def test_a_lower_rate_goes_on_from_the_best_step(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]], step: int, every: int
) -> None:
    bound, model = between(free[1], 3), copy.deepcopy(base)
    trainer, record = trained(tmp_path / "lowered", model, stop=bound, stop_every=every, stop_then="lower")
    rates = [(at, rate) for at, rate, _ in record.steps]
    assert rates[:4] == [(at, RATE) for at in range(1, 5)]
    assert rates[4] == (step + 1, RATE / 2), "an earlier step again, at half the rate"
    assert trainer.protection_report().forgetting[0].forgotten.value <= bound
    events = trainer.protection_report().events
    where = f"step {step}" if step else "its beginning, since no measured step was within the bounds"
    assert events[0].endswith(f"Training continues from {where}, with 0.5 of the learning rate.")

    # By hand: a plain training that is resumed from that step with half of the rate.
    twin = copy.deepcopy(base)
    other, seen = prepared(tmp_path / "by-hand", twin, learning_rate=RATE if step else RATE / 2, save_steps=1,
                           save_strategy="steps" if step else "no")  # fmt: skip
    other.train()
    if step:
        for each in checkpoints(tmp_path / "by-hand" / "out")[step:]:
            shutil.rmtree(each)
        shutil.rmtree(tmp_path / "by-hand" / "memory")
        other, seen = prepared(tmp_path / "by-hand", twin, learning_rate=RATE)

        class Half(TrainerCallback):
            def on_train_begin(self, *args: Any, lr_scheduler: Any, optimizer: Any, **kwargs: Any) -> None:
                lr_scheduler.base_lrs = [RATE / 2 for _ in lr_scheduler.base_lrs]
                for group in optimizer.param_groups:
                    group["lr"] = RATE / 2

        other.add_callback(Half())
        other.train(resume_from_checkpoint=True)
    again = next(weights for at, rate, weights in record.steps if (at, rate) == (step + 1, RATE / 2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in seen.after(step + 1).items())


def test_a_warning_changes_nothing(tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]) -> None:
    model = copy.deepcopy(base)
    trainer, _ = trained(tmp_path / "warned", model, stop=between(free[1], 3), stop_every=1, stop_then="warn")
    assert same(model, free[0].after(6))
    (event,) = trainer.protection_report().events
    assert "step 4: 'rare' is predicted" in event


def test_a_command_is_told(tmp_path: Path, base: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).open('a').write(sys.stdin.read() + '\\n')"
    events = tmp_path / "events.jsonl"
    trainer, _ = trained(tmp_path, base, stop=0.0, stop_every=1, stop_notify=[sys.executable, "-c", write, str(events)])
    (event,) = [json.loads(line) for line in events.read_text().splitlines()]
    assert (event["text"],) == trainer.protection_report().events
    assert (event["domain"], event["step"]) == ("domain-1", 3)
    assert event["text"] in capsys.readouterr().out


class Killed(TrainerCallback):
    """Kills the training after a number of steps, those that are taken back among them."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("then", "taken"), [("end", (2, 3)), ("lower", (2, 5))])
def test_a_killed_training_ends_in_the_same_weights(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]], then: str, taken: tuple[int, ...]
) -> None:
    stop = {"stop": between(free[1], 3), "stop_every": 1, "stop_then": then}
    methods, whole = ("si",), copy.deepcopy(base)
    trainer, record = trained(tmp_path / "whole", whole, methods, **stop)
    assert len(record.steps) > max(taken)
    for after in taken:
        place = tmp_path / f"killed-{after}"
        first, _ = prepared(place, copy.deepcopy(base), methods, **stop)
        first.add_callback(Killed(after))
        with pytest.raises(KeyboardInterrupt):
            first.train()
        model = copy.deepcopy(base)
        again, _ = prepared(place, model, methods, **stop)
        again.train(resume_from_checkpoint=True)
        assert same(model, dict(whole.named_parameters()))
        ours, theirs = memory_of(place, "si"), memory_of(tmp_path / "whole", "si")
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
        assert again.protection_report().events == trainer.protection_report().events


def test_a_training_that_is_killed_after_the_decision_ends_as_decided(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, model = {"stop": between(free[1], 3), "stop_every": 1}, copy.deepcopy(base)
    killed, _ = prepared(tmp_path / "killed", copy.deepcopy(base), **stop)
    monkeypatch.setattr(type(killed.stopping), "go_back", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    monkeypatch.undo()
    again, record = prepared(tmp_path / "killed", model, **stop)
    again.train(resume_from_checkpoint=True)
    assert not record.steps
    assert same(model, free[0].after(3))


class Halt(TrainerCallback):
    """Ends a training, as early stopping or a time limit does."""

    def __init__(self, after: int, event: str) -> None:
        setattr(self, event, lambda args, state, control, **kwargs: self._end(after, state, control))

    def _end(self, after: int, state: Any, control: Any) -> None:
        control.should_training_stop |= state.global_step >= after


def halted(folder: Path, model: nn.Module, event: str = "on_step_end", after: int = 5, **options: Any) -> Any:
    """A training that a callback ends after a step, one that was added after `protect`."""
    trainer, _ = prepared(folder, model, **options)
    trainer.add_callback(Halt(after, event))
    trainer.train()
    return trainer


@pytest.mark.parametrize("event", ["on_step_end", "on_log"])
@pytest.mark.parametrize(("every", "best"), [(3, 3), (7, 0)])
def test_the_last_step_is_judged_whatever_ended_the_training(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]], event: str, every: int, best: int
) -> None:
    model, bound = copy.deepcopy(base), between(free[1], 4)
    trainer = halted(tmp_path, model, event, stop=bound, stop_every=every)
    assert same(model, free[0].after(best) if best else dict(base.named_parameters()))
    report = trainer.protection_report()
    assert report.forgetting[0].forgotten.value <= bound
    assert "step 5 of 6: 'rare' is predicted" in str(report)


def test_a_training_that_was_ended_early_within_the_bounds_keeps_its_last_weights(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    model = copy.deepcopy(base)
    trainer = halted(tmp_path, model, stop=1e6, stop_every=3)
    assert same(model, free[0].after(5))
    assert trainer.protection_report().events == ()
    assert not list((tmp_path / "out").iterdir())


def test_a_training_that_was_ended_early_goes_back_to_the_best_step_of_the_domain(
    tmp_path: Path, base: nn.Module
) -> None:
    _, record = trained(tmp_path / "free", copy.deepcopy(base), learning_rate=0.3)
    own = bits(base, record, OWN)
    after = next(at for at in range(3, STEPS + 1) if own[at] > own[at - 1])
    model, texts = copy.deepcopy(base), {"domain-1": OWN}
    options = {"learning_rate": 0.3, "held_out": texts, "stop": {}, "stop_every": after - 1}
    trainer = halted(tmp_path / "ended", model, after=after, max_steps=STEPS + 4, **options)
    assert same(model, record.after(after - 1))
    events = str(trainer.protection_report())
    assert f"step {after - 1} of {STEPS + 4}: no measured step predicts its own held-out text better" in events


def test_a_training_that_was_ended_early_is_warned_of_or_goes_on_at_a_lower_rate(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    bound, model = between(free[1], 4), copy.deepcopy(base)
    trainer = halted(tmp_path / "warned", model, stop=bound, stop_every=7, stop_then="warn")
    (event,) = trainer.protection_report().events
    assert "step 5: 'rare' is predicted" in event
    assert same(model, free[0].after(5))
    trainer = halted(tmp_path / "lowered", copy.deepcopy(base), stop=bound, stop_every=7, stop_then="lower")
    report = trainer.protection_report()
    assert report.forgetting[0].forgotten.value <= bound
    assert report.events[0].endswith("with 0.5 of the learning rate.")


def test_checkpoints_that_the_user_asked_for_stay(
    tmp_path: Path, base: nn.Module, free: tuple[Record, dict[int, float]]
) -> None:
    asked = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    trainer, _ = trained(tmp_path / "own", copy.deepcopy(base), stop=between(free[1], 3), stop_every=1, **asked)
    names = [each.name for each in checkpoints(tmp_path / "own" / "out")]
    assert trainer.protection_report().steps == 3
    assert names == ["checkpoint-2"] or names == []  # one is kept, and step 3 was the best
    assert not (tmp_path / "own" / "out" / STATE).exists()
    every = {"save_strategy": "steps", "save_steps": 2}
    trained(tmp_path / "all", copy.deepcopy(base), stop=1e6, stop_every=1, **every)
    assert [each.name for each in checkpoints(tmp_path / "all" / "out")] == [f"checkpoint-{n}" for n in (2, 4, 6)]


def test_an_adapter_goes_back_too(tmp_path: Path, base: nn.Module) -> None:
    def adapted() -> nn.Module:
        torch.manual_seed(0)
        made = get_peft_model(copy.deepcopy(base), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
        return made

    _, record = trained(tmp_path / "free", adapted(), learning_rate=0.3)
    worse = bits(adapted(), record)
    model, step = (
        adapted(),
        next(at for at in range(1, STEPS) if worse[at + 1] > max(worse[n] for n in range(1, at + 1))),
    )
    trained(tmp_path / "stopped", model, learning_rate=0.3, stop=between(worse, step), stop_every=1)
    assert same(model, record.after(step))


def test_an_optimizer_that_was_given_goes_back_too(tmp_path: Path, base: nn.Module) -> None:
    def run(folder: Path, rate: float, **options: Any) -> tuple[nn.Module, Record]:
        model = copy.deepcopy(base)
        trainer, record = trainer_of(model, folder, max_steps=STEPS), Record()
        trainer.optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        trainer.add_callback(record)
        protect(trainer, ["ewc"], memory=folder / "memory", held_out={"rare": RARE}, **options).train()
        return model, record

    _, record = run(tmp_path / "free", 1.0)
    bound = bits(base, record)[STEPS] / 2
    assert bound > 0
    _, lowered = run(tmp_path / "lowered", 1.0, stop=bound, stop_every=STEPS, stop_then="lower")
    _, half = run(tmp_path / "half", 0.5)
    assert lowered.steps[STEPS][:2] == (1, 0.5)
    assert all(torch.equal(tensor, half.after(1)[name]) for name, tensor in lowered.steps[STEPS][2].items())


def _in_a_group(rank: int, folder: Path) -> None:
    model = tiny.model("gpt2", dropout=0.0)
    options = {"stop": 0.3, "stop_every": 1, "stop_then": "lower", "per_device_train_batch_size": 1}
    trainer, record = trained(folder, model, ("si",), **options)
    torch.save([at for at, _, _ in record.steps], folder / f"steps-{rank}.pt")
    torch.save(model.state_dict(), folder / f"weights-{rank}.pt")
    if rank == 0:
        torch.save(trainer.protection_report().events, folder / "events.pt")


def test_two_processes_go_back_together(tmp_path: Path) -> None:
    in_two_processes(_in_a_group, tmp_path)
    first, second = (torch.load(tmp_path / f"steps-{rank}.pt") for rank in (0, 1))
    assert first == second
    assert first == [*range(1, STEPS + 1), STEPS], "the last step was taken back"
    assert torch.load(tmp_path / "events.pt")
    ours, theirs = (torch.load(tmp_path / f"weights-{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def _halted_in_a_group(rank: int, folder: Path) -> None:
    """A callback ends each attempt after step 3, before the first measurement."""
    model = tiny.model("gpt2", dropout=0.0)
    options = {"stop": 0.0, "stop_every": 7, "stop_then": "lower", "per_device_train_batch_size": 1}
    trainer, record = prepared(folder, model, **options)
    trainer.add_callback(Halt(3, "on_step_end"))
    trainer.train()
    torch.save([(at, rate) for at, rate, _ in record.steps], folder / f"steps-{rank}.pt")
    torch.save([same(model, weights) for *_, weights in record.steps], folder / f"same-{rank}.pt")
    torch.save(model.state_dict(), folder / f"weights-{rank}.pt")


def test_two_processes_that_are_ended_early_go_back_together(tmp_path: Path) -> None:
    in_two_processes(_halted_in_a_group, tmp_path)
    for rank in (0, 1):
        steps = torch.load(tmp_path / f"steps-{rank}.pt")
        assert steps == [(at, rate) for rate in (RATE, RATE / 2) for at in (1, 2, 3)], (
            "the first attempt was taken back"
        )
        assert torch.load(tmp_path / f"same-{rank}.pt") == [False] * 5 + [True], "it ends with the last weights"
    ours, theirs = (torch.load(tmp_path / f"weights-{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_loop_decides_itself(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    with pytest.raises(EverlearnError, match="`stop` works with a Trainer only"):
        protect(model, torch.optim.SGD(model.parameters(), 0.1), ["ewc"], memory=tmp_path, data=[], stop=0.1)


def test_an_output_folder_of_another_training_is_refused_and_the_advice_works(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3}
    trained(tmp_path, tiny.model("gpt2"), **saving)
    with pytest.raises(EverlearnError, match=r"checkpoint-3 of another training.*Give another `output_dir`"):
        trained(tmp_path, tiny.model("gpt2"), stop=1e6, **saving)
    trained(tmp_path / "another", tiny.model("gpt2"), stop=1e6, **saving)


REFUSED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"stop": 0.1, "held_out": None}, "give `held_out`", {"held_out": {"rare": RARE}}),
    ({"stop": 0.1, "held_out": {"domain-1": OWN}}, "besides the domain's own", {"held_out": {"rare": RARE}}),
    ({"stop": {"rar": 0.1}}, "Did you mean 'rare'", {"stop": {"rare": 0.1}}),
    ({"stop": {"rare": -1}}, "0 or more", {"stop": {"rare": 0}}),
    ({"stop": float("nan")}, "0 or more", {"stop": 1.0}),
    ({"stop_every": 5}, "`stop_every` has no effect without `stop`", {"stop": 1.0}),
    ({"stop_then": "lower"}, "`stop_then` has no effect without `stop`", {"stop": 1.0}),
    ({"stop_notify": "https://a.org"}, "`stop_notify` has no effect without `stop`", {"stop": 1.0}),
    ({"stop": 0.1, "stop_every": 0}, "`stop_every` is a number of steps", {"stop_every": 1}),
    ({"stop": 0.1, "stop_then": "lowr"}, "Did you mean 'lower'", {"stop_then": "lower"}),
    ({"stop": {}}, r"one with the name of the domain, 'domain-1'", {"held_out": {"domain-1": OWN}}),
    ({"stop": {}, "held_out": {"domain-1": OWN}, "stop_then": "lower"}, "needs a bound", {"stop": {"domain-1": 0.1}}),
    ({"stop": 0.1, "stop_notify": "chat.example.org"}, "`stop_notify`: 'chat.example.org' is no address",
     {"stop_notify": "https://chat.example.org"}),
    ({"stop": 0.1, "metric_for_best_model": "loss"}, "Unset one", {"metric_for_best_model": None}),
    ({"stop": 0.1, "stop_then": "lower", "save_only_model": True}, "Unset it", {"save_only_model": False}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "says", "advice"), REFUSED, ids=[says for _, says, _ in REFUSED])
def test_what_cannot_be_decided_is_refused_and_the_advice_works(
    tmp_path: Path, options: dict[str, Any], says: str, advice: dict[str, Any]
) -> None:
    with pytest.raises(EverlearnError, match=says):
        prepared(tmp_path, tiny.model("gpt2"), **options)
    prepared(tmp_path, tiny.model("gpt2"), **options | advice)
