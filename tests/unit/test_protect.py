"""Methods in other people's trainers and loops: what everlearn's own engine does, by value."""

from __future__ import annotations

import contextlib
import copy
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from protected_run import OPTIONS, SPECS, collator, half_of_a_protected_run, protected_run, rows
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from trl import SFTConfig, SFTTrainer

import stages
import tiny
from everlearn import files
from everlearn.errors import EverlearnError
from everlearn.methods import build
from everlearn.methods.base import Memory, Method
from everlearn.methods.engine.protection import Protection
from everlearn.methods.masks.das import DAS
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.tricks.recadam import Recalling
from everlearn.model.anatomy import anatomy
from everlearn.model.objectives import IGNORE
from everlearn.protecting import protect
from everlearn.protecting.memory import FACTS, MemoryFolder
from everlearn.run.stage_files import load_memories
from methods_of_other_kinds import registered
from two_processes import in_two_processes


def dataset(count: int = 12, seed: int = 1) -> Any:
    """The same as the `datasets` library has it."""
    from datasets import Dataset

    return Dataset.from_list(rows(count, seed))


def remembered(model: nn.Module, folder: Path) -> None:
    """A memory of one domain: random importance, random Fisher information around other weights."""
    generator = torch.Generator().manual_seed(3)
    maps = {f"accumulated/{s.name}": torch.rand(s.units, generator=generator) for s in anatomy(model).sites}
    das, ewc = DAS(), EWC()
    das.load_memory(Memory(maps, {"domains": ["d1"]}))
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"fisher/{name}"] = torch.rand(parameter.shape, generator=generator)
        tensors[f"anchor/{name}"] = parameter.detach().cpu() + 0.1 * torch.randn(parameter.shape, generator=generator)
    ewc.load_memory(Memory(tensors, {"domains": ["d1"]}))
    MemoryFolder(folder).save([das, ewc], "d1")


def translated(batch: dict[str, Tensor], architecture: str) -> dict[str, Tensor]:
    """A stock collator's batch as our objectives make it, row by row."""
    if architecture == "t5":
        return batch
    ids, labels = batch["input_ids"], batch["labels"]
    if architecture != "roberta":
        shifted = [[*row[1:].tolist(), IGNORE] for row in labels]
        return {"input_ids": ids, "labels": torch.tensor(shifted)}
    places = [(row != IGNORE).nonzero().flatten().tolist() for row in labels]
    widest = max(map(len, places))
    plain = [
        [int(i if label == IGNORE else label) for i, label in zip(*pair, strict=True)]
        for pair in zip(ids, labels, strict=True)
    ]
    return {
        "input_ids": ids,
        "plain_ids": torch.tensor(plain),
        "positions": torch.tensor([[*at, *[0] * (widest - len(at))] for at in places]),
        "labels": torch.tensor(
            [[*row[at].tolist(), *[IGNORE] * (widest - len(at))] for row, at in zip(labels, places, strict=True)]
        ),
    }


def ours(
    model: nn.Module,
    memory: Path,
    steps: Sequence[Sequence[dict[str, Tensor]]],
    items: Sequence[int],
    architecture: str,
    specs: Any = SPECS,
) -> tuple[Protection, list[dict[str, float]]]:
    """The same batches through everlearn's engine and objective, in one pass each.

    Args:
        items: what a step's nats are divided by, which is the trainer's affair: for causal models transformers' own
            counts the first token of a row too, for which there is no loss. 0 for each batch's own number of labels:
            its masked models do that, and no division by the number of batches follows.
    """
    objective = tiny.objective_of(architecture)
    methods = [build(spec) for spec in specs]
    load_memories(next(memory.glob("stage-01-*")), methods)
    stage = stages.stage(model, 2, objective)
    protection = Protection(methods, stage)
    protection.begin()
    trained = [p for p in model.parameters() if p.requires_grad]
    # Trainer's own rule; T5 has matrices with "bias" in their names.
    is_decayed = {n: p.dim() > 1 and "bias" not in n for n, p in model.named_parameters()}
    decayed = [p for n, p in model.named_parameters() if is_decayed[n]]
    spared = [p for n, p in model.named_parameters() if not is_decayed[n]]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]
    optimizer = protection.optimizer(torch.optim.AdamW(groups, lr=1e-2, eps=1e-2))
    model.train()
    logged = []
    for batches, count in zip(steps, items, strict=True):
        own = [tiny.beside(model, translated(batch, architecture)) for batch in batches]
        line: dict[str, float] = {}
        for batch in own:
            outputs, extra = protection.forward(model, batch)
            loss = outputs.losses.sum() / count if count else outputs.loss
            (loss + sum(extra.values()) / len(own)).backward()
            line["loss"] = line.get("loss", 0.0) + float(loss.detach())
            for name, value in extra.items():
                line[name] = line.get(name, 0.0) + float(value.detach()) / len(own)
        logged.append(line)
        protection.after_backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.5)
        with protection.update():
            optimizer.step()
        optimizer.zero_grad()
    return protection, logged


def recording(cls: type[Trainer]) -> type[Trainer]:
    """A user's own subclass: keeps the batches that it trains on."""

    class Recording(cls):  # type: ignore[valid-type,misc]
        seen: tuple[dict[str, Tensor], ...] = ()
        items: tuple[int, ...] = ()

        def compute_loss(
            self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if model.training:
                self.seen += ({k: v.clone() for k, v in inputs.items() if isinstance(v, Tensor)},)
                self.items += (int(num_items_in_batch),)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    return Recording


def stock(model: nn.Module, folder: Path, architecture: str, **options: Any) -> Trainer:
    return recording(Trainer)(
        model=model,
        args=TrainingArguments(str(folder / "out"), **(OPTIONS | options)),
        train_dataset=rows(),
        eval_dataset=rows(4, 7),
        data_collator=collator(architecture),
    )


def sft(model: nn.Module, folder: Path, architecture: str = "llama", **options: Any) -> Trainer:
    return recording(SFTTrainer)(
        model=model,
        args=SFTConfig(
            str(folder / "out"), max_length=None, bf16=False, activation_checkpointing=False, **(OPTIONS | options)
        ),
        train_dataset=dataset(),
        eval_dataset=dataset(4, 7),
        processing_class=tiny.tokenizer(),
    )


def same_weights(first: nn.Module, second: nn.Module, atol: float = 2e-5) -> None:
    theirs = dict(second.named_parameters())
    for name, parameter in first.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


TRAINERS: list[tuple[Callable[..., Trainer], str]] = [(stock, "gpt2"), (stock, "roberta"), (sft, "llama")]


@pytest.mark.parametrize(("make", "architecture"), TRAINERS, ids=["stock-gpt2", "stock-roberta", "trl-llama"])
def test_a_trainer_has_the_penalties_masks_and_weights_of_our_engine(
    make: Callable[..., Trainer], architecture: str, tmp_path: Path
) -> None:
    memory, model = tmp_path / "memory", tiny.placed(architecture)
    remembered(model, memory)
    shutil.copytree(memory, tmp_path / "before")
    twin = copy.deepcopy(model)
    trainer = make(model, tmp_path, architecture)
    kind = type(trainer)
    protected = protect(trainer, SPECS, memory=memory, domain="d2")
    assert protected is trainer
    assert isinstance(trainer, kind)
    masks: list[dict[str, Tensor]] = []
    step = trainer.training_step

    def watched(*args: Any, **kwargs: Any) -> Any:
        loss = step(*args, **kwargs)
        masks.append({name: f for _, mask in trainer.protected.protection._masks for name, f in mask.factors.items()})
        return loss

    trainer.training_step = watched
    trainer.train()
    batches = trainer.seen
    assert len(batches) == 6
    items = [0, 0, 0] if architecture == "roberta" else trainer.items[::2]
    steps = [batches[at : at + 2] for at in (0, 2, 4)]
    engine, logged = ours(twin, tmp_path / "before", steps, items, architecture)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == len(logged) == 3
    for theirs, expected in zip(lines, logged, strict=True):
        assert expected.keys() == {"loss", "das/contrast", "ewc/penalty"}
        assert min(expected.values()) > 1e-3
        for name, value in expected.items():
            assert theirs[name] == pytest.approx(value, rel=1e-4), name
        assert theirs["loss_added"] == pytest.approx(expected["das/contrast"] + expected["ewc/penalty"], rel=1e-4)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(
        statistics.mean(line["loss"] for line in logged), rel=1e-4
    )
    wanted = {name: factor for _, mask in engine._masks for name, factor in mask.factors.items()}
    assert wanted.keys() == masks[-1].keys()
    assert all(torch.equal(masks[-1][name], factor) for name, factor in wanted.items())
    same_weights(model, twin)


def loop(
    model: nn.Module, memory: Path, specs: Any = SPECS, *, resume: Path | None = None, upto: int = 3, **options: Any
) -> tuple[list[list[dict[str, Tensor]]], list[dict[str, float]]]:
    """A plain loop of three steps of two batches each, clipped; what it saw and logged."""
    model.train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    spared = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-2)
    seen, logged = [], []
    collate = collator("gpt2")
    with protect(model, optimizer, specs, memory=memory, data=rows(), collate=collate, **options) as protected:
        batches = iter(DataLoader(protected.data, 2, collate_fn=collate))
        for _ in range(upto):
            pair, line = [dict(next(batches)) for _ in range(2)], {}
            for batch in pair:
                (protected.loss(batch) / 2).backward()
                for name, value in {"loss": protected.own, **protected.parts}.items():
                    line[name] = line.get(name, 0.0) + float(value) / 2
            protected.clip(0.5)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(pair)
            logged.append(line)
    return seen, logged


def test_a_plain_loop_has_the_penalties_and_weights_of_our_engine(tmp_path: Path) -> None:
    memory, model = tmp_path / "memory", tiny.model("gpt2")
    remembered(model, memory)
    shutil.copytree(memory, tmp_path / "before")
    twin = copy.deepcopy(model)
    seen, logged = loop(model, memory, domain="d2")
    _, expected = ours(twin, tmp_path / "before", seen, [4 * (stages.S - 1)] * 3, "gpt2")
    for theirs, wanted in zip(logged, expected, strict=True):
        assert theirs == pytest.approx(wanted, rel=1e-4)
    same_weights(model, twin)


def test_memory_goes_from_domain_to_domain_and_is_what_our_own_would_be(tmp_path: Path) -> None:
    memory, model = tmp_path / "memory", tiny.placed("gpt2")
    protect(stock(model, tmp_path, "gpt2"), ["ewc"], memory=memory, domain="first").train()
    (folder,) = memory.iterdir()
    assert folder.name == "stage-01-first"
    assert files.damage(folder) is None
    expected = EWC()
    at = stages.stage(model, 1, "causal")
    at.objective = replace(at.objective, isolate=False)
    expected.end_domain(at)  # every row once: the order does not matter
    found = files.load_tensors(folder / "ewc.safetensors")
    scale = max(float(value.abs().max()) for name, value in found.items() if name.startswith("fisher/"))
    for name, value in expected.memory().tensors.items():
        torch.testing.assert_close(found[name], value.cpu(), rtol=1e-3, atol=1e-6 * scale)

    second = protect(stock(model, tmp_path, "gpt2"), ["ewc"], memory=memory)
    second.train()
    (folder,) = memory.iterdir()
    assert folder.name == "stage-02-domain-2"
    assert files.read_json(folder / FACTS)["domains"] == ["first", "domain-2"]
    assert files.read_json(folder / "ewc.json")["domains"] == ["first", "domain-2"]
    assert all(line["ewc/penalty"] >= 0 for line in second.state.log_history if "loss" in line)
    assert [line["ewc/penalty"] > 0 for line in second.state.log_history if "loss" in line] == [False, True, True]
    with pytest.raises(EverlearnError, match=r"begun its domain already.*again"):
        second.train()
    with pytest.raises(EverlearnError, match=r"memory of method 'ewc'.*would forget"):
        protect(stock(model, tmp_path, "gpt2"), ["migu"], memory=memory)


@pytest.mark.parametrize("make", [stock, sft])
def test_a_resumed_domain_ends_as_if_it_had_not_stopped(make: Callable[..., Trainer], tmp_path: Path) -> None:
    architecture = "gpt2" if make is stock else "llama"
    base = tiny.model(architecture)
    remembered(base, tmp_path / "memory")
    ends = []
    for name, until in (("whole", 3), ("stopped", 2)):
        shutil.copytree(tmp_path / "memory", tmp_path / name / "memory")
        model = copy.deepcopy(base)
        trainer = make(model, tmp_path / name, architecture, save_strategy="steps", save_steps=2)
        protect(trainer, SPECS, memory=tmp_path / name / "memory", domain="d2")
        if until == 2:
            trainer.add_callback(_StopAfter(2))
        with pytest.raises(KeyboardInterrupt) if until == 2 else contextlib.nullcontext():
            trainer.train()
        ends.append(model)
    model = copy.deepcopy(base)
    trainer = make(model, tmp_path / "stopped", architecture, save_strategy="steps", save_steps=2)
    protect(trainer, SPECS, memory=tmp_path / "stopped" / "memory", domain="d2")
    trainer.train(resume_from_checkpoint=True)
    for name, parameter in ends[0].named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    first, second = (
        files.load_tensors(tmp_path / name / "memory/stage-02-d2/ewc.safetensors") for name in ("whole", "stopped")
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("method", ["si", {"name": "budget", "general": 0.5, "rank": 2, "probe": 2, "checks": 1}])
def test_the_memory_is_that_of_the_best_step_where_the_trainer_loads_its_weights(method: Any, tmp_path: Path) -> None:
    base, best = tiny.model("gpt2", dropout=0.0), {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    best |= {"save_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "eval_step_2"}
    for name, options in (("short", {"max_steps": 2}), ("best", {"max_steps": 4, **best})):
        scores = iter([0, 1, 0, 0])
        trainer = stock(copy.deepcopy(base), tmp_path / name, "gpt2", **options)
        trainer.compute_metrics = lambda _, left=scores: {"step_2": next(left)}
        trainer.processing_class = tiny.tokenizer()
        protect(trainer, [method], memory=tmp_path / name / "memory", general=tiny.texts(30, 5)).train()
        assert trainer.protection_report().steps == 2
    for file in (tmp_path / "short/memory/stage-01-domain-1").glob(f"{build(method).name}.*"):
        assert file.read_bytes() == (tmp_path / "best/memory/stage-01-domain-1" / file.name).read_bytes()


def test_a_plain_loop_resumes(tmp_path: Path) -> None:
    base = tiny.model("gpt2")
    remembered(base, tmp_path / "memory")
    optimizer = torch.optim.SGD(base.parameters(), 0.1)
    options = {"memory": tmp_path / "memory", "data": rows(), "collate": collator("gpt2"), "domain": "d2"}
    with contextlib.suppress(KeyboardInterrupt), protect(base, optimizer, SPECS, **options) as protected:
        protected.loss(dict(collator("gpt2")(rows()[:2]))).backward()
        optimizer.step()
        protected.save_state(tmp_path / "state")
        raise KeyboardInterrupt
    assert [p.name for p in (tmp_path / "memory").iterdir()] == ["stage-01-d1"], "nothing of half a domain"
    again = protect(base, optimizer, SPECS, resume=tmp_path / "state", **options)
    with again:
        assert again._domain.stage.step == 1
        assert again._domain.protection.rows == 2
    assert (tmp_path / "memory" / "stage-02-d2").is_dir()
    other = protect(base, optimizer, SPECS, resume=tmp_path / "memory", **(options | {"domain": "d3"}))
    with pytest.raises(EverlearnError, match="not written by a protected training"):
        other.__enter__()


@pytest.mark.parametrize("make", [stock, sft])
def test_evaluation_is_the_trainers_own(make: Callable[..., Trainer], tmp_path: Path) -> None:
    architecture = "gpt2" if make is stock else "llama"
    model = tiny.model(architecture)
    plain = make(copy.deepcopy(model), tmp_path / "plain", architecture).evaluate()
    remembered(model, tmp_path / "memory")
    trainer = protect(make(model, tmp_path, architecture), SPECS, memory=tmp_path / "memory", domain="d2")
    assert trainer.evaluate()["eval_loss"] == plain["eval_loss"]
    trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 1
    trainer.train()
    assert trainer.protected.stage.step == 3, "evaluation in between counts no step"


def test_replay_keeps_the_users_examples_and_mixes_them_in(tmp_path: Path) -> None:
    model, replay = tiny.model("gpt2"), [{"name": "replay", "share": 0.5}]
    first = protect(stock(model, tmp_path, "gpt2"), replay, memory=tmp_path / "memory")
    first.train()
    other = stock(model, tmp_path, "gpt2", max_steps=6)
    other.train_dataset = rows(12, 2)
    old = {tuple(row["input_ids"]) for row in rows()}
    new = {tuple(row["input_ids"]) for row in rows(12, 2)}
    protect(other, replay, memory=tmp_path / "memory").train()
    seen = [tuple(row) for batch in other.seen for row in batch["input_ids"].tolist()]
    assert len(seen) == 24
    assert set(seen) <= old | new
    assert sum(row in old for row in seen) == 12, "half of one pass over both"
    assert {row for row in seen if row in new} == new
    # In a loop the mixture must be used, not the dataset that it was made of.
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    collate = collator("gpt2")
    third = protect(model, optimizer, replay, memory=tmp_path / "memory", data=rows(), collate=collate)
    with pytest.raises(EverlearnError, match=r"train on `protected\.data`"), third as protected:
        protected.loss(dict(collate(rows()[:2])))


def test_a_loop_cannot_leave_the_methods_out(tmp_path: Path) -> None:
    model, collate = tiny.model("gpt2"), collator("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"memory": tmp_path / "memory", "data": rows(), "collate": collate}
    protected = protect(model, optimizer, ["migu"], **options)
    with pytest.raises(EverlearnError, match="belongs inside `with"):
        protected.loss({})
    model(**collate(rows()[:2])).loss.backward()
    with pytest.raises(EverlearnError, match=r"steps without a loss of `protected\.loss"), protected:
        optimizer.step()
    other = torch.optim.SGD(tiny.model("gpt2").parameters(), 0.1)
    with pytest.raises(EverlearnError, match="optimizer does not hold 'transformer"):
        protect(model, other, ["migu"], **options)


def test_mofo_filters_by_the_momentum_of_the_loops_own_optimizer(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    loop(model, tmp_path / "memory", [{"name": "mofo", "fraction": 0.1}], upto=1)
    for name, value in model.named_parameters():
        assert int((value != before[name]).sum()) <= max(1, int(0.1 * value.numel() + 1e-9))
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_methods_with_an_optimizer_a_schedule_or_gradients_of_their_own_work_in_a_trainer(tmp_path: Path) -> None:
    specs = [{"name": "infinite_schedule", "warmup": 0.5, "cooldown": 0.5, "constant": 0.5}, "recadam", "agem"]
    model, epochs = tiny.model("gpt2"), {"max_steps": -1, "num_train_epochs": 2}
    with registered():
        first = protect(stock(model, tmp_path, "gpt2", **epochs), specs, memory=tmp_path / "memory")
        assert first.protected.stage.steps == 0, "epochs: nobody knows yet"
        first.train()
        assert first.protected.stage.steps == first.protected.stage.step == 6
        rates = [line["learning_rate"] for line in first.state.log_history if "learning_rate" in line]
        assert rates == pytest.approx([0.01 * share for share in (0, 1 / 3, 2 / 3, 1, 0.875, 0.625)])
        assert isinstance(first.protected.stage.optimizer, Recalling)
        kept = first.protected.protection.methods[0]
        assert len(kept.memory().facts["domains"]) == 12
        second = protect(stock(model, tmp_path, "gpt2"), specs, memory=tmp_path / "memory")
        projected: list[float] = []
        agem = second.protected.protection.methods[0]
        project = agem.gradients

        def watched(stage: Any, own: Any, references: Any) -> Any:
            changed = project(stage, own, references)
            projected.append(float(changed.dot(references["memory"]) / references["memory"].norm()))
            return changed

        agem.gradients = watched
        second.train()
        assert len(projected) == 3
        assert min(projected) > -1e-5, "no step against the memory"
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        options = {"memory": tmp_path / "loop", "data": rows(), "collate": collator("gpt2")}
        with pytest.raises(EverlearnError, match=r"'infinite_schedule' chooses.*plain loop"):
            protect(model, optimizer, ["infinite_schedule"], **options)
        with pytest.raises(EverlearnError, match=r"replaces the optimizer, which a plain loop"):
            protect(model, optimizer, ["recadam"], **options).__enter__()
        of_base = [{"name": "mixout", "anchor": "base"}]
        protect(stock(model, tmp_path, "gpt2"), of_base, memory=tmp_path / "other").train()
        with pytest.raises(EverlearnError, match=r"has the one that it starts from; the others are kept in a run fold"):
            protect(stock(model, tmp_path, "gpt2"), of_base, memory=tmp_path / "other").train()


REFUSED = [
    ("hat", r"'hat' changes the model itself.*`everlearn run`"),
    ("dap_adapter", r"'dap_adapter' changes the model itself"),
    ("inc_lora", r"'inc_lora' changes the model itself"),
    ("elle", r"'elle' changes the model itself"),
    ("derpp", r"'derpp' runs kept rows beside each batch.*'replay'"),
    ("dass", r"no method 'dass'"),
]


@pytest.mark.parametrize(("name", "sentence"), REFUSED)
def test_what_cannot_work_is_refused_with_a_sentence(name: str, sentence: str, tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    with pytest.raises(EverlearnError, match=sentence):
        protect(stock(model, tmp_path, "gpt2"), [name], memory=tmp_path / "memory")


def test_data_of_no_use_are_refused(tmp_path: Path) -> None:
    def trainer(**changes: Any) -> Trainer:
        made = stock(tiny.model("gpt2"), tmp_path, "gpt2")
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def endless() -> Iterator[dict[str, list[int]]]:
        yield from rows()

    with pytest.raises(EverlearnError, match="is a stream"):
        protect(trainer(train_dataset=endless()), ["ewc"], memory=tmp_path / "memory")
    texts = [{"input_ids": row["input_ids"], "text": "a"} for row in rows()]
    with pytest.raises(EverlearnError, match="not lists of token ids"):
        protect(trainer(train_dataset=texts), ["replay"], memory=tmp_path / "memory")
    with pytest.raises(EverlearnError, match="needs batches with `input_ids` and with `labels`"):
        protect(trainer(data_collator=default_data_collator), ["kd"], memory=tmp_path / "memory").train()
    with pytest.raises(EverlearnError, match="takes a Trainer and methods, or a model"):
        protect(tiny.model("gpt2"), ["ewc"], memory=tmp_path / "memory")
    with pytest.raises(EverlearnError, match="protected already"):
        protect(protect(trainer(), ["ewc"], memory=tmp_path / "memory"), ["das"], memory=tmp_path / "memory")


@pytest.mark.parametrize("adapters", [False, True], ids=["plain", "peft"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_teacher_in_trl_is_apart_from_its_student_and_rounds_like_it(
    precision: str, adapters: bool, tmp_path: Path
) -> None:
    """TRL puts a forward on the model itself that is bound to it: a copy with that forward would be its own teacher."""
    args = SFTConfig(
        str(tmp_path), max_length=None, bf16=precision == "bf16", activation_checkpointing=False, **OPTIONS
    )
    trainer = SFTTrainer(
        model=tiny.model("llama"),
        args=args,
        train_dataset=dataset(),
        processing_class=tiny.tokenizer(),
        peft_config=LoraConfig(lora_dropout=0.0) if adapters else None,
    )
    protect(trainer, ["kd"], memory=tmp_path / "memory").train()
    divergences = [line["kd/divergence"] for line in trainer.state.log_history if "kd/divergence" in line]
    assert divergences[0] == pytest.approx(0, abs=1e-6)
    assert min(divergences[1:]) > 1e-5


class _StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The checkpoint is whole only when `_save_checkpoint` has returned, and it has: this is what comes after it.
        if state.global_step == self.step:
            raise KeyboardInterrupt


def test_methods_can_be_objects(tmp_path: Path) -> None:
    method: Method = EWC(samples=4)
    trainer = protect(stock(tiny.model("gpt2"), tmp_path, "gpt2"), method, memory=tmp_path / "memory")
    assert trainer.protected.protection.methods == [method]


@pytest.mark.distributed
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    ends = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        remembered(tiny.model("gpt2"), folder / "memory")
        if processes == 1:
            protected_run(folder, 4)
        else:
            in_two_processes(half_of_a_protected_run, folder)
        weights = torch.load(folder / "weights.pt", weights_only=True)
        ends.append((weights, files.load_tensors(folder / "memory/stage-02-d2/ewc.safetensors")))
    for one, two in zip(*ends, strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)
