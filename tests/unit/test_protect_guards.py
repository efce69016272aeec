"""Protected trainings that cannot work are refused; what the others report."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from protected_run import OPTIONS, SPECS, collator, rows, trainer_of
from test_protect import ours, recording, remembered, same_weights, stock
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
)

import tiny
from everlearn import protect
from everlearn.errors import DataError, EverlearnError
from everlearn.evaluation import METRICS
from everlearn.evaluation.held_out_rows import BYTES
from everlearn.files import SEAL, load_tensors
from everlearn.methods.base import Method, Stage, Transform
from everlearn.model.objectives import make_objective
from everlearn.protecting.external_data import Examples
from everlearn.protecting.held_out import general_text, held_out_texts
from everlearn.run.forgetting_guard import MEASURE
from everlearn.seeding import seeded

# -- `protect` where something goes wrong, or is unusual: nothing silent, nothing left behind --------------------------


NOISY = "transformer.h.1.mlp.c_fc.weight"


class Noise(Method):
    """A transform that needs nothing but the weight."""

    name = "noise"

    def transforms(self, stage: Stage) -> Mapping[str, Transform]:
        return {NOISY: dropped}


def dropped(weight: Tensor) -> Tensor:
    return weight * (torch.rand_like(weight) < 0.5) * 2


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_transform_works_in_a_trainer_and_is_gone_afterwards(tmp_path: Path) -> None:
    model = tiny.placed("gpt2")
    twin = copy.deepcopy(model)
    plain = {"optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0, "learning_rate": 0.1}
    trainer = protect(stock(model, tmp_path, "gpt2", **plain), [Noise()], memory=tmp_path / "memory", domain="d")
    assert isinstance(trainer, Trainer)
    trainer.train()
    assert hooks(model) == 0
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    twin.train()
    for step in range(3):
        for batch, items in list(zip(trainer.seen, trainer.items, strict=True))[2 * step : 2 * step + 2]:
            with seeded(trainer.args.seed, 1, "transform", step, "noise", NOISY):
                weight = dropped(twin.get_parameter(NOISY))
            functional_call(twin, {NOISY: weight}, (), {**batch, "num_items_in_batch": items}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    same_weights(model, twin)


class _Failing(TrainerCallback):
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt


def test_a_training_that_fails_leaves_no_hook_and_no_memory(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    trainer = protect(stock(model, tmp_path, "gpt2"), [Noise(), "kd"], memory=tmp_path / "memory")
    trainer.add_callback(_Failing())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert hooks(model) == 0
    optimizer, collate = torch.optim.SGD(model.parameters(), 0.1), collator("gpt2")
    options = {"memory": tmp_path / "memory", "data": rows(), "collate": collate}
    with contextlib.suppress(KeyboardInterrupt), protect(model, optimizer, [Noise()], **options) as protected:
        protected.loss(tiny.beside(model, collate(rows()[:2])))
        assert hooks(model) == 2
        raise KeyboardInterrupt
    assert hooks(model) == 0
    assert not (tmp_path / "memory").exists()


T5_SPECS = [SPECS[0] | {"contrast": 0}, SPECS[1]]


def t5(model: nn.Module, folder: Path) -> Trainer:
    def made(count: int, seed: int) -> list[dict[str, list[int]]]:
        answers = [row["input_ids"][: 3 + at % 4] for at, row in enumerate(rows(count, seed + 1))]
        asked = [row["input_ids"][: 9 + at % 3] for at, row in enumerate(rows(count, seed))]
        return [
            {"input_ids": a, "attention_mask": [1] * len(a), "labels": b} for a, b in zip(asked, answers, strict=True)
        ]

    return recording(Seq2SeqTrainer)(
        model=model,
        args=Seq2SeqTrainingArguments(str(folder / "out"), **OPTIONS),
        train_dataset=made(12, 1),
        data_collator=DataCollatorForSeq2Seq(tiny.tokenizer(), model=model),
    )


def test_an_encoder_decoder_has_the_penalties_and_weights_of_our_engine(tmp_path: Path) -> None:
    memory, model = tmp_path / "memory", tiny.placed("t5")
    remembered(model, memory)
    shutil.copytree(memory, tmp_path / "before")
    twin = copy.deepcopy(model)
    trainer = protect(t5(model, tmp_path), T5_SPECS, memory=memory, domain="d2")
    trainer.train()
    steps = [trainer.seen[at : at + 2] for at in (0, 2, 4)]
    # T5 of transformers divides by its own number of labels, like the masked models (see `ours`).
    _, logged = ours(twin, tmp_path / "before", steps, [0, 0, 0], "t5", T5_SPECS)
    lines = [line["ewc/penalty"] for line in trainer.state.log_history if "loss" in line]
    assert lines == pytest.approx([line["ewc/penalty"] for line in logged], rel=1e-4)
    same_weights(model, twin)
    protect(t5(model, tmp_path), [*T5_SPECS, "kd", "migu", "replay"], memory=memory).train()


def test_a_step_without_the_methods_is_an_error(tmp_path: Path) -> None:
    def own_loss(model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Tensor:
        return model(**inputs).loss

    def own_step(model: nn.Module, inputs: dict[str, Any], *_: Any) -> Tensor:
        loss: Tensor = model(**inputs).loss
        loss.backward()
        return loss.detach()

    for name, function in (("compute_loss", own_loss), ("training_step", own_step)):
        trainer = protect(stock(tiny.model("gpt2"), tmp_path, "gpt2"), ["ewc"], memory=tmp_path / "memory")
        setattr(trainer, name, function)
        with pytest.raises(EverlearnError, match=f"did not come by `{name}`"):
            trainer.train()
    model, collate = tiny.model("gpt2"), collator("gpt2")
    optimizer, other = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
    options = {"memory": tmp_path / "memory", "data": rows(), "collate": collate}
    protected = protect(model, optimizer, ["ewc"], **options).__enter__()
    protected.loss(dict(collate(rows()[:2]))).backward()
    other.step()
    with pytest.raises(EverlearnError, match="given has made no step"):
        protected.__exit__(None, None, None)
    assert not (tmp_path / "memory").exists()


def test_callbacks_read_weights_that_are_masked_already(tmp_path: Path) -> None:
    model = tiny.model("gpt2")
    remembered(model, tmp_path / "memory")
    read: list[dict[str, Tensor]] = []

    class Reading(TrainerCallback):
        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            read.append({name: p.detach().clone() for name, p in kwargs["model"].named_parameters()})

    trainer = stock(model, tmp_path, "gpt2")
    trainer.add_callback(Reading())
    protect(trainer, SPECS, memory=tmp_path / "memory").train()
    assert all(torch.equal(parameter, read[-1][name]) for name, parameter in model.named_parameters())


def test_a_step_that_a_gradient_scaler_skips_is_none(tmp_path: Path) -> None:
    model, collate = tiny.model("gpt2").train(), collator("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, backoff_factor=1e-36)
    before = copy.deepcopy(model)
    acted = []
    options = {"memory": tmp_path / "memory", "data": rows(), "collate": collate}
    with protect(model, optimizer, ["migu"], **options) as protected:
        act = protected._domain.protection.after_backward
        protected._domain.protection.after_backward = lambda: acted.append(act())
        for done in range(3):
            scaler.scale(protected.loss(dict(collate(rows()[:2])))).backward()
            scaler.unscale_(optimizer)
            protected.clip(1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert protected._domain.stage.step == done
            assert len(acted) == done + 1, "once for each step's gradients, after a skipped one too"
            assert torch.equal(model.lm_head.weight, before.lm_head.weight) == (not done)


def test_two_trainings_do_not_write_one_memory(tmp_path: Path) -> None:
    first, second, third = (
        protect(stock(tiny.model("gpt2"), tmp_path, "gpt2"), ["ewc"], memory=tmp_path / "memory", domain=name)
        for name in "abc"
    )
    protection = second.protected.protection
    end = protection.end
    protection.end = lambda *blueprint: (end(*blueprint), first.train())  # both are at work at once
    for late in (second, third):
        with pytest.raises(EverlearnError, match=r"holds stage-01-a and held nothing.*another training"):
            late.train()
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["stage-01-a"]
    with pytest.raises(EverlearnError, match=r"'a' is learnt already .*knows a\).*such as `domain='a-2'`"):
        protect(stock(tiny.model("gpt2"), tmp_path, "gpt2"), ["ewc"], memory=tmp_path / "memory", domain="a")


def test_resuming_from_nothing_is_an_error(tmp_path: Path) -> None:
    trainer = protect(stock(tiny.model("gpt2"), tmp_path, "gpt2"), ["ewc"], memory=tmp_path / "memory")
    with pytest.raises(EverlearnError, match="has no checkpoint to resume from"):
        trainer.train(resume_from_checkpoint=True)


def test_a_given_schedule_leaves_a_method_none_to_choose(tmp_path: Path) -> None:
    trainer = stock(tiny.model("gpt2"), tmp_path, "gpt2")
    optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1)
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with pytest.raises(EverlearnError, match=r"'infinite_schedule' chooses.*given an optimizer or a sch"):
        protect(trainer, ["infinite_schedule"], memory=tmp_path / "memory")


def test_the_collator_gets_examples_as_the_dataset_gives_them(tmp_path: Path) -> None:
    data = [{"input_ids": torch.tensor(row["input_ids"])} for row in rows()]

    def collate(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        ids = torch.stack([example["input_ids"] for example in examples])
        return {"input_ids": ids, "labels": ids.clone()}

    model = tiny.model("gpt2")
    options = {"memory": tmp_path / "memory", "data": data, "collate": collate}
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with protect(model, optimizer, ["ewc", "replay"], **options) as protected:
            protected.loss(collate([protected.data[at] for at in range(4)])).backward()
            optimizer.step()


class _Stream(IterableDataset):
    """Has a length all the same."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield from rows()


def test_odd_datasets_are_refused_or_kept_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a stream"):
        Examples(_Stream(), 0, "d")
    assert not Examples([{"input_ids": [[1, 2], [3]]}], 0, "d").keepable


def test_batches_that_cannot_be_measured_are_refused_before_the_training(tmp_path: Path) -> None:
    trainer = stock(tiny.model("gpt2"), tmp_path, "gpt2")
    collate = trainer.data_collator
    trainer.data_collator = lambda examples: collate([*examples, *examples])
    with pytest.raises(EverlearnError, match=r"makes 2 rows of one example.*Make one row of each"):
        protect(trainer, ["ewc"], memory=tmp_path / "memory").train()
    assert trainer.state.global_step == 0


def test_what_is_frozen_in_one_domain_stays_protected_for_the_next(tmp_path: Path) -> None:
    model, name = tiny.model("gpt2"), "transformer.h.0.mlp.c_fc.weight"
    model.get_parameter(name).requires_grad_(False)
    remembered(model, tmp_path / "memory")
    known = load_tensors(tmp_path / "memory/stage-01-d1/ewc.safetensors")
    protect(stock(model, tmp_path, "gpt2"), SPECS, memory=tmp_path / "memory").train()
    now = load_tensors(tmp_path / "memory/stage-02-domain-2/ewc.safetensors")
    assert now.keys() == known.keys()
    assert all(torch.equal(now[f"{what}/{name}"], known[f"{what}/{name}"]) for what in ("fisher", "anchor"))


def test_a_damaged_memory_is_named_and_half_of_one_is_none(tmp_path: Path) -> None:
    memory, model = tmp_path / "memory", tiny.model("gpt2")
    remembered(model, memory)
    shutil.copytree(memory / "stage-01-d1", memory / "stage-02-half")
    (memory / "stage-02-half" / SEAL).unlink()
    assert protect(stock(model, tmp_path, "gpt2"), SPECS, memory=memory).protected.folder.domains == ["d1"]
    file = memory / "stage-01-d1/ewc.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(EverlearnError, match=r"ewc\.safetensors is damaged.*Restore it from a copy"):
        protect(stock(model, tmp_path, "gpt2"), SPECS, memory=memory)


# -- What a protected training measures: held-out text, and the report at its end --------------------------------------


# -- The forms in which `protect` takes held-out text, and those that it refuses with a remedy -------------------------


TEXTS = tiny.texts(60, seed=3)


def rows_of(held_out: Any) -> list[int]:
    return [len(text) for text in held_out_texts(held_out, tiny.model("gpt2"), tiny.tokenizer())]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    halves = [tmp_path / "one.jsonl", tmp_path / "my texts.txt"]
    halves[0].write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:30]))
    halves[1].write_text("\n".join(TEXTS[30:]))
    return halves


def test_files_are_read_in_any_form(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(TEXTS)
    assert expected[0] > 1
    assert rows_of(files) == rows_of([str(file) for file in files]) == rows_of({"general": files}) == expected
    monkeypatch.chdir(files[0].parent)
    assert rows_of(["one.jsonl", "my texts.txt"]) == expected


def test_of_a_data_set_with_splits_the_held_out_one_is_scored(tmp_path: Path) -> None:
    for split, texts in (("train", TEXTS * 2), ("validation", TEXTS)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert rows_of(tmp_path) == rows_of(TEXTS) != rows_of(TEXTS * 2)
    model = tiny.model("gpt2")
    general = [general_text(text, model, tiny.tokenizer(), 0) for text in (tmp_path, TEXTS * 2)]
    assert len(general[0]) == len(general[1]), "what importance is measured on is the training text"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"doc": {"body": "Who?"}}, "held_out"),
        ({"messages": [{"role": "user", "content": "a"}]}, "general"),
        ({"prompt": "a", "answer": "b"}, "general"),
    ],
)
def test_rows_without_text_are_refused_and_the_advice_works(tmp_path: Path, row: dict[str, Any], key: str) -> None:
    def rows(text: Any) -> Any:
        return rows_of(text) if key == "held_out" else len(general_text(text, tiny.model("gpt2"), tiny.tokenizer(), 0))

    def written(more: Any) -> Path:
        lines = (json.dumps(row | more(text)) + "\n" for text in TEXTS)
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        return tmp_path / "rows.jsonl"

    with pytest.raises(DataError, match="write what is to be read into a column 'text'"):
        rows(written(lambda _: {}))
    assert rows(written(lambda text: {"text": text})) == rows(TEXTS)


def test_of_held_out_chats_the_answers_are_scored(tmp_path: Path) -> None:
    """Against plain log-likelihoods of each chat alone."""
    said = list(zip(tiny.texts(30, 1, words=8), tiny.texts(30, 2, words=8), strict=True))
    chats = [[{"role": "user", "content": ask}, {"role": "assistant", "content": answer}] for ask, answer in said]
    path, model, tokenizer = tmp_path / "chats.jsonl", tiny.model("llama"), copy.deepcopy(tiny.tokenizer())
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<s>' + m.role + ': ' + m.content + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
    )
    (scored,) = held_out_texts({"chats": path}, model, tokenizer)
    scored.measure(model, 4, False)
    nats = 0.0
    for ask, answer in said:
        before = tokenizer(f"<s>user: {ask}</s><s>assistant: ", add_special_tokens=False)["input_ids"]
        ids = tokenizer(f"<s>user: {ask}</s><s>assistant: {answer}</s>", add_special_tokens=False)["input_ids"]
        assert ids[: len(before) - 1] == before[:-1]  # the last blank joins the answer's first word
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        start = next(n for n in range(len(ids)) if tokenizer.decode(ids[: n + 1]).rstrip().endswith("assistant:")) + 1
        nats -= sum(float(rows[at - 1, ids[at]]) for at in range(start, len(ids)))
    size = sum(len(answer.encode()) for _, answer in said)
    assert METRICS[MEASURE].score(scored.before) == pytest.approx(nats / math.log(2) / size, rel=1e-4)
    (tmp_path / "plain.txt").write_text("\n".join(TEXTS))
    with pytest.raises(DataError, match="plain text and answers, which are scored apart: give each a name of its own"):
        held_out_texts([path, tmp_path / "plain.txt"], model, tokenizer)
    assert len(held_out_texts({"chats": path, "plain": tmp_path / "plain.txt"}, model, tokenizer)) == 2


def test_the_column_of_text_is_found(tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl"
    path.write_text("".join(json.dumps({"id": "a", "content": text}) + "\n" for text in TEXTS))
    assert rows_of(path) == rows_of(TEXTS)


def test_texts_that_only_end_like_a_file_stay_texts() -> None:
    texts = [f"{text} It stands in notes.txt" for text in TEXTS]
    assert rows_of(texts) == rows_of([*texts[:-1], texts[-1]])
    assert rows_of(texts)[0] >= rows_of(TEXTS)[0]


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        ([{"text": "a"}], r"`dict` is among them.*row\[\"text\"\]"),
        ({"rows": [{"text": "a"}]}, r"'rows'.*`dict` is among"),
        ({"one": {"two": "a.txt"}}, r"'one'.*`dict` is among"),
        ([1, 2], "`int` is among them"),
        (3, "`int` is among them"),
        ([Path("a.txt"), "some text"], r"both texts and files \('a.txt'\)"),
        (["some text", "corpus/a.jsonl"], r"both texts and files \('corpus/a.jsonl'\)"),
        (["no-such-file.jsonl"], "no-such-file.jsonl"),
    ],
)
def test_other_forms_are_refused(held_out: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        rows_of(held_out)


# -- What a protected training ends with: what was protected and how, where the memory is, what was forgotten ----------


GENERAL = tiny.texts(120, seed=9)


def nats_per_label(model: nn.Module, blocks: list[dict[str, Any]]) -> float:
    """The slow way: one row after another."""
    objective = make_objective(None, model, tiny.tokenizer())
    total = items = 0.0
    with torch.no_grad():
        for row in blocks:
            outputs = objective.forward(model.eval(), tiny.beside(model, objective.collate([row], [0])))
            total, items = total + float(outputs.losses.sum()), items + float(outputs.items)
    return total / items


def test_a_trainer_ends_with_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory, model = tmp_path / "memory", tiny.model("gpt2")
    remembered(model, memory)
    before = copy.deepcopy(model)
    trainer = protect(
        trainer_of(model, tmp_path), SPECS, memory=memory, domain="d2", held_out={"general text": GENERAL}
    )
    with pytest.raises(EverlearnError, match="not ended yet"):
        trainer.protection_report()
    trainer.train()
    report = trainer.protection_report()
    assert (report.domain, report.earlier, report.steps) == ("d2", ("d1",), 3)
    assert report.memory == memory / "stage-02-d2"
    assert report.memory_bytes > 1000
    lines = [line for line in trainer.state.log_history if "ewc/penalty" in line]
    for name in ("ewc/penalty", "das/contrast"):
        assert report.penalties[name] == pytest.approx(sum(line[name] for line in lines) / len(lines), rel=1e-5)
    assert 0 < report.masks["das"].held_back < 1
    assert report.masks["das"].parameters <= sum(p.numel() for p in model.parameters())

    (lost,) = report.forgetting
    (text,) = trainer.protected._held_out
    blocks = text.held_out.blocks.take(range(len(text)))
    labels = text.before["items"]
    width = float((labels * text.held_out.rows[BYTES]).sum() / labels.sum()) * math.log(2)
    assert lost.before == pytest.approx(nats_per_label(before, blocks) / width, rel=1e-5)
    assert lost.after == pytest.approx(nats_per_label(model, blocks) / width, rel=1e-5)
    assert lost.forgotten.value == pytest.approx(lost.after - lost.before)
    low, high = lost.forgotten.interval or (0, 0)
    assert low < lost.forgotten.value < high
    assert trainer.state.log_history[-1]["forgotten/general text"] == lost.forgotten.value

    shown = str(report)
    assert shown in capsys.readouterr().out
    for part in ("what it knew of d1", "Penalty ewc/penalty", "Mask of das: held", str(memory), "\n'general text' "):
        assert part in shown
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["forgetting"][0]["forgotten"]["low"] == low
    assert plain["memory"] == str(report.memory)


def test_forgetting_is_measured_since_the_base_model_too(tmp_path: Path) -> None:
    model, memory, reports = tiny.model("gpt2"), tmp_path / "memory", []
    for number, texts in enumerate([{"a": GENERAL}, {"a": GENERAL}, {"a": GENERAL[:-1], "b": GENERAL}, {"a": GENERAL}]):
        trainer = trainer_of(model, tmp_path / str(number))
        protect(trainer, ["ewc"], memory=memory, held_out=texts).train()
        reports.append(trainer.protection_report())
    first, second, other, last = ({each.name: each for each in report.forgetting} for report in reports)
    assert first["a"].since_base is None
    assert "Since the base model" not in str(reports[0])
    for each in (second["a"], last["a"]):
        assert each.since_base.value == pytest.approx(each.after - first["a"].before)
        assert each.since_base.interval is not None
        assert f"Since the base model: {each.after - first['a'].before:+.4f} bits per byte (" in str(each)
    assert second["a"].forgotten.value != second["a"].since_base.value
    assert (other["a"].since_base, other["b"].since_base) == (None, None), "other text, and a text that is new"
    assert "is unknown of texts that were not in `held_out` in the first one" in str(reports[2])
    assert "is unknown" not in str(reports[3])


def test_a_penalty_that_outweighs_the_loss_is_an_event_of_the_report(tmp_path: Path) -> None:
    trainer = trainer_of(tiny.model("gpt2"), tmp_path)
    protect(trainer, [{"name": "l2", "anchor": "base", "strength": 1e7}], memory=tmp_path / "memory").train()
    (event,) = trainer.protection_report().events
    assert "so that little else counted. Lower `strength` (1e+07) of `l2`" in event
    assert event in str(trainer.protection_report())


def test_where_nothing_protects_the_report_says_so(tmp_path: Path) -> None:
    trainer = protect(trainer_of(tiny.model("gpt2"), tmp_path), ["ewc"], memory=tmp_path / "memory")
    trainer.train()
    shown = str(trainer.protection_report())
    assert "No penalty and no mask was at work." in shown
    assert "EWC protected nothing in this domain." in shown
    assert "protected from the next domain on" in shown
    assert "pulled back" not in shown, "the penalty is in the loss"
    assert "was not measured: give `protect` a text (`held_out`)" in shown


def test_replay_protects_nothing_before_there_is_an_earlier_domain(tmp_path: Path) -> None:
    for nothing in ("protected nothing in this domain", "protected what it knew of"):
        trainer = protect(trainer_of(tiny.model("gpt2"), tmp_path), ["replay"], memory=tmp_path / "memory")
        trainer.train()
        shown = str(trainer.protection_report())
        assert nothing in shown
        assert ("other examples in the training data" in shown) is (nothing == "protected what it knew of")


def test_a_loop_ends_with_the_same_report(tmp_path: Path) -> None:
    (tmp_path / "general.txt").write_text("\n".join(GENERAL))
    model = tiny.model("gpt2")
    remembered(model, tmp_path / "memory")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options: dict[str, Any] = {"data": rows(), "collate": collator("gpt2"), "domain": "d2"}
    with pytest.raises(EverlearnError, match="needs the model's tokenizer"):
        protect(model, optimizer, SPECS, memory=tmp_path / "memory", held_out=GENERAL, **options)
    options |= {"held_out": tmp_path / "general.txt", "tokenizer": tiny.tokenizer()}
    with protect(model, optimizer, SPECS, memory=tmp_path / "memory", **options) as protected:
        for batch in DataLoader(protected.data, 4, collate_fn=options["collate"]):
            protected.loss(dict(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = protected.report
    assert report.steps == 3
    assert {"ewc/penalty", "das/contrast"} <= report.penalties.keys()
    assert report.forgetting[0].rows > 5
    assert report.forgetting[0].forgotten.interval is not None


@pytest.mark.parametrize(
    ("architecture", "text", "says"),
    [("gpt2", ["too short"], "fewer than a row"), ("t5", GENERAL, "an encoder-decoder does not learn")],
)
def test_text_that_cannot_be_scored_is_refused_at_once(tmp_path: Path, architecture: str, text: Any, says: str) -> None:
    trainer = trainer_of(tiny.model(architecture), tmp_path)
    with pytest.raises(EverlearnError, match=says):
        protect(trainer, ["ewc"], memory=tmp_path / "memory", held_out=text)
