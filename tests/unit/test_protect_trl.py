"""Protect the trainers of TRL."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from datasets import concatenate_datasets
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, TrainerCallback

import protect_page
import stages
import tiny
import trl_trainers
from everlearn import files
from everlearn.errors import EverlearnError
from everlearn.methods.base import Method, Stage
from everlearn.protecting import protect
from trl_trainers import load, make

# -- `protect` in TRL's trainers: penalties, measurements and replay, each against a reference made from the equations -


EWC: dict[str, Any] = {"name": "ewc", "samples": 100, "strength": 50.0}
MAS: dict[str, Any] = {"name": "mas", "samples": 100, "strength": 0.5}
GENERAL = tiny.texts(30, 5)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def memory_of(folder: Path, name: str) -> dict[str, Tensor]:
    (newest,) = folder.glob("stage-*")
    return files.load_tensors(newest / f"{name}.safetensors")


# -- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", protect_page.methods())
def test_a_method_is_at_work_in_the_trainers_of_the_page(method: str) -> None:
    protect_page.outcomes(method)


def test_the_page_says_what_became_of_each_method() -> None:
    assert protect_page.table() == protect_page.committed()


# -- a step ----------------------------------------------------------------------------------------------------------


def penalised(trainer: Any, importance: dict[str, Tensor], anchor: dict[str, Tensor], strength: float) -> Any:
    """Give a trainer a penalty by hand, in a subclass: λ/2 Σ F (θ − θ*)², once for each optimizer step."""
    parent = type(trainer)

    class ByHand(parent):
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            named = model.named_parameters()
            held = ((p, importance[n].to(p.device), anchor[n].to(p.device)) for n, p in named if n in importance)
            penalty = sum((weight * (p - start).square()).sum() for p, weight, start in held)
            # The trainer divides by the number of passes of a step, or has done so already.
            share = 1 if self.loss_is_scaled_for_ga is not True and not self._is_scaled(inputs) else 0.5
            return loss + share * strength / 2 * penalty

        def _is_scaled(self, inputs: Any) -> bool:
            return "labels" in inputs  # of a language model that divides by the tokens of a step

    trainer.__class__ = ByHand
    return trainer


@pytest.mark.parametrize("kind", trl_trainers.TRAINERS)
def test_the_penalty_moves_weights_as_one_that_is_written_by_hand(kind: str, root: Path) -> None:
    protect(make(kind, root), [EWC], memory=root / "memory", domain="first").train()
    known = memory_of(root / "memory", "ewc")
    importance = {n.removeprefix("fisher/"): v for n, v in known.items() if n.startswith("fisher/")}
    anchor = {n.removeprefix("anchor/"): v for n, v in known.items() if n.startswith("anchor/")}
    assert max(float(value.max()) for value in importance.values()) > 0
    strength = 10 / max(float(value.max()) for value in importance.values())
    ends = []
    for by_hand in (True, False):
        torch.manual_seed(0)
        trainer = make(kind, root, seed=1, learning_rate=3e-3, adam_epsilon=1e-2, max_steps=3)
        if by_hand:
            penalised(trainer, importance, anchor, strength)
        else:
            protect(trainer, [{**EWC, "strength": strength}], memory=root / "memory", domain="second")
        trainer.train()
        ends.append(stages.weights(trainer.model))
    assert any(float((ends[0][n] - anchor[n]).abs().max()) > 1e-4 for n in anchor)
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


class NoWords(Method):
    """A head of zeros in every pass of training."""

    name = "no_words"

    def transforms(self, stage: Stage) -> Any:
        return {"lm_head.weight": torch.zeros_like}


@pytest.mark.parametrize("kind", ["SFT", "DPO", "KTO", "GRPO"])
def test_a_transform_reaches_the_head_that_is_fused_with_the_loss(kind: str, root: Path) -> None:
    trainer = protect(make(kind, root), [NoWords()], memory=root / "memory")
    trainer.train()
    entropies = [line["entropy"] for line in trainer.state.log_history if "entropy" in line]
    assert entropies == pytest.approx([float(torch.log(torch.tensor(tiny.VOCABULARY)))] * 2, rel=1e-5)
    assert float(trainer.model.lm_head.weight.detach().abs().sum()) > 0


def test_wise_ft_ends_between_the_beginning_and_what_training_made(root: Path) -> None:
    ends = []
    for methods in (["sequential"], [{"name": "wise_ft", "alpha": 0.25}]):
        trainer = make("DPO", root, learning_rate=1e-2)
        begin = copy.deepcopy(dict(trainer.model.named_parameters()))
        protect(trainer, methods, memory=root / f"memory-{len(ends)}").train()
        ends.append(dict(trainer.model.named_parameters()))
    for name, start in begin.items():
        torch.testing.assert_close(ends[1][name], 0.75 * start + 0.25 * ends[0][name], rtol=1e-5, atol=1e-6)


# -- measurements ----------------------------------------------------------------------------------------------------


def rows_of(ids: list[int], learnt: int) -> tuple[Tensor, slice]:
    """Token ids of a row, and the positions whose logits predict its last `learnt` tokens."""
    return torch.tensor([ids]), slice(len(ids) - learnt - 1, len(ids) - 1)


def mean_moment(model: nn.Module, losses: list[Any], power: int) -> dict[str, Tensor]:
    """(1/N) Σ |gₙ|ᵖ in float64, one sample after the other."""
    exact = copy.deepcopy(model).cpu().double().eval()
    exact.__dict__.pop("forward", None)
    totals = {name: torch.zeros_like(p) for name, p in exact.named_parameters()}
    for loss in losses:
        exact.zero_grad()
        loss(exact).backward()
        for name, p in exact.named_parameters():
            if p.grad is not None:
                totals[name] += p.grad.abs() ** power / len(losses)
    return totals


def nats(ids: Tensor, at: slice) -> Any:
    return lambda model: F.cross_entropy(model(input_ids=ids).logits[0, at], ids[0, at.start + 1 : at.stop + 1])


def output(ids: Tensor, at: slice) -> Any:
    return lambda model: model(input_ids=ids).logits[0, at].square().sum(-1).mean()


def same(found: dict[str, Tensor], prefix: str, wanted: dict[str, Tensor]) -> None:
    found = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    assert found.keys() == wanted.keys()
    top = max(float(value.max()) for value in wanted.values())
    assert top > 0
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name].double(), value, rtol=1e-3, atol=1e-5 * top, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(("kind", "answer"), [("DPO", "chosen_ids"), ("KTO", "completion_ids")])
def test_importance_is_measured_on_prompts_and_the_answers_that_are_learnt(kind: str, answer: str, root: Path) -> None:
    trainer = make(kind, root)
    protect(trainer, [EWC, MAS], memory=root / "memory").train()
    rows = [rows_of(row["prompt_ids"] + row[answer], len(row[answer])) for row in trainer.train_dataset]
    assert len(rows) == trl_trainers.ROWS
    same(memory_of(root / "memory", "ewc"), "fisher/", mean_moment(trainer.model, [nats(*row) for row in rows], 2))
    same(memory_of(root / "memory", "mas"), "importance/", mean_moment(trainer.model, [output(*r) for r in rows], 1))


def test_a_reward_model_is_measured_by_the_likelihood_of_its_preferences_and_by_its_scores(root: Path) -> None:
    trainer = make("reward", root, rows=[{**row, "margin": 0.1 * at} for at, row in enumerate(trl_trainers.pairs())])
    protect(trainer, [EWC, MAS], memory=root / "memory").train()

    def scores(row: dict[str, Any]) -> Any:
        both = [torch.tensor([row[name]]) for name in ("chosen_ids", "rejected_ids")]
        return lambda model: torch.cat([model(input_ids=ids).logits[0] for ids in both])

    def preference(row: dict[str, Any]) -> Any:
        return lambda model: -F.logsigmoid(scores(row)(model).diff().neg()[0] - row["margin"])

    rows = list(trainer.train_dataset)
    same(memory_of(root / "memory", "ewc"), "fisher/", mean_moment(trainer.model, [preference(r) for r in rows], 2))
    sizes = [lambda model, row=row: scores(row)(model).square().mean() for row in rows]
    same(memory_of(root / "memory", "mas"), "importance/", mean_moment(trainer.model, sizes, 1))


def written(trainer: Any) -> list[tuple[list[int], int]]:
    """What a policy has written in the steps of a training, without padding."""
    rows: list[tuple[list[int], int]] = []
    own = trainer._compute_loss

    def compute(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        for at in range(len(inputs["prompt_ids"])):
            parts = [inputs[f"{p}_ids"][at][inputs[f"{p}_mask"][at].bool()].tolist() for p in ("prompt", "completion")]
            rows.append((parts[0] + parts[1], len(parts[1])))
        return own(model, inputs)

    trainer._compute_loss = compute
    return rows


def test_importance_after_grpo_is_measured_on_what_the_model_has_written(root: Path) -> None:
    trainer = make("GRPO", root)
    rows = written(trainer)
    protect(trainer, [EWC, MAS], memory=root / "memory").train()
    assert len(rows) == 8, "two steps of two batches of two rows"
    rows = [rows_of(*row) for row in rows]
    same(memory_of(root / "memory", "ewc"), "fisher/", mean_moment(trainer.model, [nats(*row) for row in rows], 2))
    same(memory_of(root / "memory", "mas"), "importance/", mean_moment(trainer.model, [output(*r) for r in rows], 1))


class _StopAfter(TrainerCallback):
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["GRPO", "DPO"])
def test_a_resumed_training_ends_with_the_memory_of_one_that_did_not_stop(kind: str, root: Path) -> None:
    found = []
    for stops in (False, True):
        place = root / str(stops)
        arguments = {"save_strategy": "steps", "save_steps": 1, "output_dir": str(place)}
        for resume in (False, True) if stops else (False,):
            torch.manual_seed(0)
            trainer = make(kind, root, **{k: v for k, v in arguments.items() if k != "output_dir"})
            trainer.args.output_dir = str(place)
            protect(trainer, [MAS], memory=place / "memory")
            if stops and not resume:
                trainer.add_callback(_StopAfter())
            with pytest.raises(KeyboardInterrupt) if stops and not resume else contextlib.nullcontext():
                trainer.train(resume_from_checkpoint=resume)
        found.append(memory_of(place / "memory", "mas"))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", ["SFT", "DPO", "KTO", "GRPO"])
def test_the_base_is_protected_on_the_text_that_the_user_gives(kind: str, root: Path) -> None:
    trainer = make(kind, root)
    base = copy.deepcopy(trainer.model)
    protect(trainer, [{**MAS, "anchor": "base"}], memory=root / "memory", general=GENERAL).train()
    text = [tiny.tokenizer().encode(each) for each in GENERAL]
    tokens = [token for row in text for token in row][: 64 * (sum(map(len, text)) // 64)]
    found = memory_of(root / "memory", "mas")
    assert {name for name in found if name.startswith("importance/")}
    assert trainer.protected.stage.general is not None
    assert trainer.protected.stage.general.size == len(tokens) // 64
    for name, p in base.named_parameters():
        assert stages.equal(found[f"anchor/{name}"], p)
    objective = trainer.protected.objective.text
    assert objective is not None
    rows = trainer.protected.stage.general.take(range(trainer.protected.stage.general.size))

    def size(row: Any) -> Any:
        batch = objective.collate([row], [0])
        kept = batch["labels"][0] != -100
        given = {name: value for name, value in batch.items() if name != "labels"}
        return lambda model: model(**given).logits[0, kept].square().sum(-1).mean()

    same(found, "importance/", mean_moment(base, [size(row) for row in rows], 1))


@pytest.mark.parametrize("packed", [False, True], ids=["padding-free", "packing"])
def test_examples_of_a_flat_batch_are_measured_one_by_one(packed: bool, root: Path) -> None:
    flat = {"packing": True, "max_length": 24} if packed else {"padding_free": True, "max_length": None}
    trainer = make("SFT", root, **flat)
    protect(trainer, [EWC], memory=root / "memory").train()
    losses = []
    for row in trainer.train_dataset:
        ids, lengths = row["input_ids"], row.get("seq_lengths") or [len(row["input_ids"])]
        starts = [sum(lengths[:at]) for at in range(len(lengths))]
        documents = [torch.tensor([ids[start : start + n]]) for start, n in zip(starts, lengths, strict=True)]

        def loss(model: nn.Module, documents: list[Tensor] = documents) -> Tensor:
            each = [F.cross_entropy(model(input_ids=d).logits[0, :-1], d[0, 1:], reduction="sum") for d in documents]
            return torch.stack(each).sum() / sum(d.shape[1] - 1 for d in documents)

        losses.append(loss)
    assert packed == (len(losses) < trl_trainers.ROWS)
    same(memory_of(root / "memory", "ewc"), "fisher/", mean_moment(trainer.model, losses, 2))


# -- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["DPO", "KTO", "reward"])
def test_replay_mixes_old_examples_in_and_the_trainers_own_loss_learns_them(kind: str, root: Path) -> None:
    replay = [{"name": "replay", "share": 0.5}]
    first = make(kind, root)
    protect(first, replay, memory=root / "memory").train()
    second = make(kind, root, seed=1, max_steps=8)
    seen: list[Any] = []
    collate = second.data_collator

    def watched(examples: list[Any]) -> Any:
        seen.extend(examples)
        return collate(examples)

    second.data_collator = watched
    protect(second, replay, memory=root / "memory").train()
    key = "completion_ids" if kind == "KTO" else "chosen_ids"
    old, new = ({tuple(row[key]) for row in trainer.train_dataset} for trainer in (first, second))
    own = [row for row in seen if tuple(row[key]) in new]
    again = [row for row in seen if tuple(row[key]) in old - new]
    assert min(len(own), len(again)) >= len(new), "half of the tokens each, of four passes"
    known = {tuple(row[key]): row for row in first.train_dataset}
    for row in again:
        assert row == {name: value for name, value in known[tuple(row[key])].items() if name in row}
    if kind == "KTO":
        assert {type(row["label"]) for row in again} == {bool}


def test_the_advice_on_replay_in_grpo_works(root: Path) -> None:
    with pytest.raises(EverlearnError, match=r"'replay' keeps examples.*prompts in words.*`datasets\.concatenate_"):
        protect(make("GRPO", root), ["replay"], memory=root / "memory")
    old, trainer = make("GRPO", root).train_dataset, make("GRPO", root, seed=1)
    trainer.train_dataset = concatenate_datasets([old, trainer.train_dataset])
    protect(trainer, ["l2"], memory=root / "memory").train()
    assert len(trainer.train_dataset) == 2 * trl_trainers.ROWS


def test_grpo_goes_back_to_its_best_step_and_not_on_from_it(root: Path) -> None:
    stop = {"held_out": GENERAL, "stop": 0.0, "stop_every": 1}
    with pytest.raises(EverlearnError, match=r"counts what it has generated in itself.*Use 'end' or 'warn'"):
        protect(make("GRPO", root), ["l2"], memory=root / "memory", stop_then="lower", **stop)
    for then in ("end", "warn"):
        protect(make("GRPO", root), ["l2"], memory=root / then, stop_then=then, **stop).train()


def test_general_text_is_not_mixed_into_preferences_and_the_advice_works(root: Path) -> None:
    general = [{"name": "replay", "source": "general", "share": 0.5}]
    with pytest.raises(EverlearnError, match=r"not like the examples of this trainer.*Add such examples to the datas"):
        protect(make("DPO", root), general, memory=root / "memory", general=GENERAL).train()
    trainer = make("DPO", root, rows=[*trl_trainers.pairs(), *trl_trainers.pairs(2)])
    protect(trainer, ["l2"], memory=root / "memory").train()


# -- the documentation ---------------------------------------------------------------------------------------------


def test_the_table_of_methods_has_each_as_it_was_tried() -> None:
    page = (protect_page.PAGE.parent / "protect.md").read_text(encoding="utf-8")
    tried = "\n".join(protect_page.committed())
    works = set(re.findall(r"^\| `(\w+)` \| yes", tried, re.MULTILINE))
    named: dict[str, bool] = {}
    for line in page.split("## Which methods")[1].split("\n\n")[1].splitlines():
        first, second = line.strip("| ").split(" | ")[:2] if line.startswith("| `") else ("", "")
        if " on a model" not in first and "anchor" not in first:
            named |= dict.fromkeys(re.findall(r"`(\w+)`", first), second.startswith("work"))
    rest = {name for line in tried.splitlines() if "changes the model itself" in line for name in _names(line)}
    assert set(named) | rest == set(protect_page.methods())
    assert not set(named) & rest
    assert {name for name, at_work in named.items() if at_work} == works


def _names(line: str) -> list[str]:
    """The methods before the colon of a line."""
    return re.findall(r"`(\w+)`", line.split(":")[0])


def test_the_example_of_the_documentation_runs(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    page = (protect_page.PAGE.parent / "protect.md").read_text(encoding="utf-8")
    code = page.split("## Preference and reward trainers")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(root)
    trl_trainers.folder(root).rename(root / "chat-model")
    trl_trainers.folder.cache_clear()
    files.write_text(root / "data/pairs.jsonl", "\n".join(json.dumps(row) for row in trl_trainers.pairs()))
    for name in ("general", "general-test"):
        files.write_text(root / f"data/{name}.txt", "\n\n".join(GENERAL))
    short = code.replace("max_steps=500", "max_steps=2, use_cpu=True, disable_tqdm=True, save_strategy='no'")
    assert short != code
    exec(compile(short, "protect.md", "exec"), {})
    said = capsys.readouterr().out
    assert "Penalty mas/penalty: " in said
    assert "General text" in said


# -- refusals, and what they advise ---------------------------------------------------------------------------------


def test_a_flat_batch_is_no_row_for_each_example_and_the_advice_works(root: Path) -> None:
    das = [{"name": "das", "general": "none", "samples": 2}]
    for arguments, advice in (({"packing": True}, "packing=False"), ({"padding_free": True}, "padding_free=False")):
        arguments |= {"max_length": 24 if "packing" in arguments else None}
        with pytest.raises(EverlearnError, match=rf"'das' takes each row of a batch.*Set `{advice}`\."):
            protect(make("SFT", root, **arguments), das, memory=root / "memory").train()
        key = advice.removesuffix("=False")
        protect(make("SFT", root, **(arguments | {key: False})), das, memory=root / key).train()


def test_grpo_has_nothing_to_measure_on_before_its_first_step_and_the_advice_works(root: Path) -> None:
    base = [{**MAS, "protect_base": True}]
    with pytest.raises(EverlearnError, match=r"prompts alone.*nothing to measure on.*\(`general`\)"):
        protect(make("GRPO", root), base, memory=root / "memory").train()
    protect(make("GRPO", root), base, memory=root / "memory", general=GENERAL).train()


def test_a_reward_model_predicts_no_text_and_the_advice_works(root: Path) -> None:
    with pytest.raises(EverlearnError, match=r"'kd' reads what a model predicts of text.*such as 'mas'"):
        protect(make("reward", root), ["kd"], memory=root / "memory")
    for key in ("general", "held_out"):
        with pytest.raises(EverlearnError, match=rf"`{key}` is text, which .*no vocabulary head.*Leave it out"):
            protect(make("reward", root), [MAS], memory=root / "memory", **{key: GENERAL})
    protect(make("reward", root), [MAS], memory=root / "memory").train()
    classes = make("reward", root)
    classes.model = AutoModelForSequenceClassification.from_pretrained(trl_trainers.folder(root), num_labels=3)
    with pytest.raises(EverlearnError, match=r"needs a language model, a reward model with one score or an embed"):
        protect(classes, [MAS], memory=root / "memory")


@pytest.mark.parametrize("name", ["l2", "mas", "migu", "kd", "o_lora", "replay", "wise_ft"])
def test_every_kind_of_method_is_refused_under_deepspeed(name: str, root: Path) -> None:
    trainer = make("DPO", root)
    trainer.is_deepspeed_enabled = True
    sentence = r"under DeepSpeed, whose `backward` also steps.*ZeRO 1, 2 and 3.*`train\.fsdp`"
    with pytest.raises(EverlearnError, match=sentence):
        protect(trainer, [name], memory=root / "memory")


def test_the_backward_of_accelerate_under_deepspeed_steps() -> None:
    calls: list[str] = []

    class Engine:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: calls.append(name)

    DeepSpeedEngineWrapper(Engine()).backward(torch.zeros(()))
    assert calls.index("backward") + 1 == calls.index("step"), "nothing can act between the two"


def test_a_compiled_model_learns_what_a_plain_one_learns(root: Path) -> None:
    """Under a penalty, chosen gradients, weights that are others in the forward pass, and a teacher; compiled once."""
    base, ends = load(root), []
    methods = [{**EWC, "protect_base": True}, {"name": "migu", "skip_first_domain": False}, {"name": "mixout"}, "kd"]
    for compiled in (False, True):
        torch._dynamo.reset()
        options = {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
        model = copy.deepcopy(base)
        trainer = make("SFT", root, model=model, adam_epsilon=1e-2, learning_rate=1e-2, **options)
        protect(trainer, methods, memory=root / str(compiled), general=GENERAL).train()
        ends.append(dict(model.named_parameters()))
        last = trainer.state.log_history[-2]
        assert min(last["ewc/penalty"], last["kd/divergence"]) > 0
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=key: f"{n}: {m}")
