"""Methods of `rehearsal/` against their equations in float64, and replay of chats that a model writes itself."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import stages
import tiny
from everlearn.data import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.data.packing import make_packer
from everlearn.data.tokenize import Encoder
from everlearn.errors import EverlearnError, MethodError
from everlearn.methods import build
from everlearn.methods.base import Memory, Stage
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.rehearsal.derpp import DERpp
from everlearn.methods.rehearsal.forever import Clock, Forever
from everlearn.methods.rehearsal.generated import generated_rows
from everlearn.model.objectives import IGNORE
from everlearn.seeding import seed_for

S, DAYS, BASE, GAMMA = 3, (1, 2, 3, 3.1, 6), 0.1, 2.0


def begun(**options) -> tuple[Forever, torch.nn.Module]:
    """After a first domain, six rows of which are kept."""
    method, model = (
        Forever(**{"sample": 0.5, "warm_up": S, "days": DAYS, "strength": BASE, "gamma": GAMMA} | options),
        tiny.model("gpt2"),
    )
    parts = stages.learn([method], stages.stage(model, 1, "causal", steps=S + 2))
    assert all(set(part) == {"loss"} for part in parts), "nothing is old yet"
    assert method._kept.domains == ["d1"] * 6
    return method, model


def test_replays_begin_at_days_of_the_weights_and_hold_them() -> None:
    method, model = begun()
    stage, way, lines = stages.stage(model, 2, "causal", steps=30), [], []
    stage.rows_per_step, stage.log = 4, lines.append

    def flat() -> np.ndarray:
        return np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])

    # Long steps at first, and short ones later: the clock slows down.
    def see(protection: Protection, _: object) -> None:
        way.append(flat())
        protection.stage.optimizer.param_groups[0]["lr"] = 0.02 if len(way) < 12 else 0.005

    parts = stages.learn([method], stage, each=see)
    way.append(flat())
    moved = [float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(way)]
    day = sum(moved[:S])
    mean, left, due, met, begins = day / S, 0, 0, 0, []
    for step, part in enumerate(parts, 1):  # what `part` was made of is known after the step before
        assert ("forever/replay" in part) == ("forever/anchor" in part) == (left > 0), step
        if left:
            beta = BASE * min(max(1 + GAMMA * (mean / (day / S) - 1), 0.5), 3.0)
            held = beta * float(np.square(way[step - 1] - way[0]).sum())
            assert float(part["forever/anchor"]) == pytest.approx(held, rel=1e-3)
            left, met = left - 1, met + 1
        if step > S:
            mean = 0.95 * mean + 0.05 * moved[step - 1]
        now = sum(sum(moved[:step]) >= d * day * (1 - 1e-6) for d in DAYS) if step >= S else 0
        if now > due:
            due, left = now, math.ceil(6 / 4)
            begins.append({"step": step, "replay_of_day": DAYS[now - 1]})
    assert lines == begins
    assert lines[0]["step"] == S
    assert 2 <= len(lines) < len(DAYS), "two days that are due at once are one replay"
    assert met >= 4
    assert method._clock == Clock()
    assert method._kept.domains == ["d1"] * 6 + ["d2"] * 6


def test_old_rows_are_kept_ones_and_count_as_the_batch_does() -> None:
    method, model = begun(strength=0)
    stage = stages.stage(model, 2, "causal", steps=9)
    protection = Protection([method], stage)
    protection.begin()
    batch = next(stage.batches(4))
    assert protection.forward(model.eval(), batch)[1] == {}
    method._clock.left = 1
    extra = protection.forward(model, batch)[1]
    assert set(extra) == {"forever/replay"}
    old = method.before_forward(stage, batch)
    kept = [block["input_ids"].tolist() for block in method._kept.blocks]
    assert all(row in kept for row in old["input_ids"].tolist())
    with torch.no_grad():
        expected = stage.objective.per_sample_loss(model, old).mean()
    torch.testing.assert_close(extra["forever/replay"].detach(), expected)


def test_a_domain_that_is_shorter_than_a_day_is_noted() -> None:
    method, model = begun(warm_up=20)
    stage = stages.stage(model, 2, "causal", steps=4)
    assert all(set(part) == {"loss"} for part in stages.learn([method], stage))
    assert stage.notes == [
        "Method 'forever' begins to replay after 20 steps (`warm_up`), but 'd2' has 4: nothing was replayed in it."
    ]


def test_weights_that_stand_still_are_never_a_day_older() -> None:
    clock = Clock()
    for step in range(1, 9):
        clock.tick(step, 0.0, 2, (1, 2), 3)
    assert clock == Clock()
    assert clock.strength(0.5, 1.0, 2) == 0.5


def test_mistakes_are_sentences() -> None:
    for days in ((2, 1), (0.5, 2), (1, 1)):
        with pytest.raises(EverlearnError, match="option 'days': must increase from 1 or more"):
            build({"name": "forever", "days": days})
    methods = [Forever()]
    with pytest.raises(MethodError, match=r"'forever' does not work with encoder-decoder models.*Use 'replay'"):
        check_methods(methods, stages.setting(tiny.model("t5"), methods, "text-to-text"))
    method, model = begun()
    stage = stages.stage(model, 2, "causal")
    method._clock.left = 1
    batch = {name: value[:, :9] for name, value in next(stage.batches(4)).items()}
    with pytest.raises(MethodError, match=r"remembers rows of \d+ tokens, but those of domain 'd2' have 9"):
        method.before_forward(stage, batch)


KINDS = [("roberta", "masked"), ("gpt2", "causal"), ("llama", "text-to-text")]


def _learnt(architecture: str = "roberta", objective: str = "masked", **options) -> tuple[DERpp, nn.Module]:
    """A method that has seen one domain, and the model after it."""
    method, model = DERpp(**options), tiny.model(architecture)
    stages.learn([method], stages.stage(model, 1, objective, steps=2))
    return method, model


def _reference(method: DERpp, model: nn.Module, batch: dict[str, Tensor], rows: list[int]) -> tuple[Tensor, Tensor]:
    """Squared distance and loss of remembered rows, each row alone, in float64."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    stored = method.memory().tensors["hidden"]
    distances, losses = [], []
    for row, place in enumerate(rows):
        inputs = {key: batch[key][row : row + 1] for key in ("input_ids", "position_ids") if key in batch}
        if model.config.model_type != "roberta":
            inputs["use_cache"] = False  # a cache would undo the isolation of packed documents
        hidden = double.base_model(**inputs).last_hidden_state[0]
        distances.append((hidden - stored[place].double()).square().sum() / hidden.numel())
        logits = double(**inputs).logits[0]
        positions = batch["positions"][row] if "positions" in batch else torch.arange(logits.shape[0])
        wanted = batch["labels"][row] != IGNORE
        losses.append(F.cross_entropy(logits[positions[wanted]], batch["labels"][row][wanted]))
    return torch.stack(distances).mean(), torch.stack(losses).mean()


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_loss_and_gradient_are_the_equation(architecture: str, objective: str) -> None:
    method, model = _learnt(architecture, objective, alpha=0.3, beta=0.6)
    second = stages.stage(model, 2, objective)
    stages.begin([method], second)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    twin = DERpp(alpha=0.3, beta=0.6)
    twin.load_memory(method.memory())
    rows = twin._draw(second, 4)
    replayed = twin._collated(second, rows)
    _, extra = Protection([method], second).forward(model, next(second.batches(4)))
    distance, loss = _reference(method, model, replayed, rows)
    assert distance > 1e-3
    torch.testing.assert_close(extra["derpp/distance"].double(), 0.3 * distance, rtol=1e-4, atol=0)
    torch.testing.assert_close(extra["derpp/replay"].double(), 0.6 * loss, rtol=1e-4, atol=0)

    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    stored = method.memory().tensors["hidden"][rows].double()
    inputs = second.objective.inputs(replayed) | second.objective.options()
    wanted = double.base_model(**inputs).last_hidden_state
    (0.3 * F.mse_loss(wanted, stored)).backward()
    extra["derpp/distance"].backward()
    scale = max(float(p.grad.abs().max()) for p in double.parameters() if p.grad is not None)
    for (name, parameter), reference in zip(model.named_parameters(), double.parameters(), strict=True):
        if reference.grad is not None:
            torch.testing.assert_close(
                parameter.grad.double(), reference.grad, rtol=1e-3, atol=1e-6 * scale, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_what_is_kept_is_the_domains_text_with_the_hidden_states_of_its_end() -> None:
    method, model = _learnt(per_domain=5)
    tensors = method.memory().tensors
    ids = tensors["blocks/input_ids"]
    assert ids.shape == (5, stages.S)
    known = {tuple(block["input_ids"].tolist()) for block in stages.blocks(12, 1)}
    assert len({tuple(row) for row in ids.tolist()} & known) == 5, "five different rows of the domain"
    stage = stages.stage(model, 1)
    batch = method._collated(stage, list(range(5)))
    assert torch.equal(batch["plain_ids"].int(), ids)
    assert not torch.equal(batch["input_ids"].int(), ids), "the model sees masked text"
    hidden = model.base_model(input_ids=batch["input_ids"]).last_hidden_state
    torch.testing.assert_close(tensors["hidden"], hidden)
    later = stages.stage(model, 4)
    assert torch.equal(method._collated(later, [3])["input_ids"], batch["input_ids"][3:4]), "masked once for all"


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_hidden_states_are_stored_without_dropout_whatever_mode_the_model_is_in(
    architecture: str, objective: str
) -> None:
    """The Trainer leaves a model in training mode, and what is stored then would be one draw of its dropout."""
    method, model = DERpp(per_domain=5), tiny.model(architecture, dropout=0.5)
    stage = stages.stage(model, 1, objective)
    model.train()
    stages.end([method], stage)
    assert model.training, "every module has the mode that it had"
    batch = method._collated(stage, list(range(5)))
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    inputs = {key: batch[key] for key in ("input_ids", "position_ids", "attention_mask") if key in batch}
    if architecture != "roberta":
        inputs["use_cache"] = False
    stored = method.memory().tensors["hidden"]
    exact = double.base_model(**inputs).last_hidden_state
    torch.testing.assert_close(stored.double(), exact, rtol=1e-4, atol=1e-5)
    dropped = model.base_model(**inputs).last_hidden_state
    assert (dropped - stored).abs().max() > 0.1, "dropout would have shown"


def test_each_domain_keeps_its_rows_until_room_is_needed_and_an_equal_share_after_that() -> None:
    method, model = DERpp(per_domain=4, capacity=10), tiny.model()
    before: list[tuple] = []
    for index, expected in enumerate([[4], [4, 4], [3, 3, 3], [2, 2, 2, 2]], 1):
        stages.learn([method], stages.stage(model, index, steps=1))
        memory = method.memory()
        counts = Counter(memory.facts["domains"])
        assert [counts[f"d{i}"] for i in range(1, index + 1)] == expected
        rows = [tuple(row) for row in memory.tensors["blocks/input_ids"].tolist()]
        assert len(rows) == len(memory.tensors["hidden"]) == len(set(memory.facts["masks"])) <= 10
        assert set(rows[: sum(expected[:-1])]) <= set(before), "an old row is never replaced by another old one"
        before = rows
    assert DERpp(per_domain=4, capacity=10).cost(model).disk_bytes >= sum(
        value.numel() * value.element_size() for value in method.memory().tensors.values()
    )


def test_a_sample_is_uniform() -> None:
    counts: Counter[tuple] = Counter()
    model = tiny.model()
    for seed in range(60):
        method = DERpp(per_domain=3)
        stages.end([method], stages.stage(model, 1, seed=seed))
        counts.update(tuple(row) for row in method.memory().tensors["blocks/input_ids"].tolist())
    # 180 draws of 12 rows: 15 each, with a standard deviation of 3.4.
    assert len(counts) == 12
    assert min(counts.values()) > 3
    assert max(counts.values()) < 28


class Seen(DERpp):
    """Remembers which rows it drew."""

    def _draw(self, stage: Stage, rows: int) -> list[int]:
        drawn = super()._draw(stage, rows)
        self.__dict__.setdefault("drawn", []).extend(drawn)
        return drawn


def drawn(memory: Memory, stage: Stage, cut: list[int], rows: int = 0) -> list[int]:
    """The rows that are drawn for batches of these sizes, when so many rows of the domain were trained on already."""
    method = Seen()
    method.load_memory(Memory(dict(memory.tensors), dict(memory.facts)))
    protection = Protection([method], stage)
    protection.rows = rows
    with torch.no_grad():
        for size in cut:
            protection.forward(stage.model, next(stage.batches(size)))
    return method.drawn


def test_the_rows_drawn_do_not_depend_on_how_a_batch_is_cut_and_continue_after_a_resume() -> None:
    method, model = _learnt()
    stage, memory = stages.stage(model, 2, batch_size=8), method.memory()
    whole = drawn(memory, stage, [8, 8])
    assert drawn(memory, stage, [1] * 16) == whole
    assert drawn(memory, stage, [4] * 2) + drawn(memory, stage, [4] * 2, rows=8) == whole
    assert len(set(whole)) > 4
    assert drawn(memory, stages.stage(model, 3, batch_size=8), [8, 8]) != whole


def test_two_processes_draw_what_one_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    method, model = _learnt()
    stage, memory = stages.stage(model, 2, batch_size=8), method.memory()
    whole = drawn(memory, stage, [8, 8])
    parts: list[list[int]] = []
    for process in range(2):
        monkeypatch.setattr("everlearn.methods.engine.protection.rank", lambda process=process: process)
        monkeypatch.setattr("everlearn.methods.engine.protection.processes", lambda: 2)
        parts.append(drawn(memory, stage, [4, 4]))
    assert [*parts[0][:4], *parts[1][:4], *parts[0][4:], *parts[1][4:]] == whole


def test_without_beta_no_vocabulary_and_without_alpha_no_distance() -> None:
    for options, parts in (({"beta": 0}, {"derpp/distance"}), ({"alpha": 0}, {"derpp/replay"})):
        method, model = _learnt(**options)
        second = stages.stage(model, 2)
        stages.begin([method], second)
        _, extra = Protection([method], second).forward(model, next(second.batches(4)))
        assert extra.keys() == parts


def test_nothing_is_replayed_in_the_first_domain() -> None:
    method, model = DERpp(), tiny.model()
    assert stages.learn([method], stages.stage(model, 1))[0].keys() == {"loss"}
    assert stages.learn([method], stages.stage(model, 2))[0].keys() == {"loss", "derpp/distance", "derpp/replay"}


def test_refusals() -> None:
    t5 = tiny.model("t5")
    with pytest.raises(MethodError, match=r"'derpp' does not work with encoder-decoder models.*'replay'"):
        check_methods([DERpp()], stages.setting(t5, [DERpp()], "text-to-text"))
    method, model = _learnt()
    memory = method.memory()
    narrow = {key: value[:, :16] for key, value in memory.tensors.items()}
    method.load_memory(Memory(narrow, memory.facts))
    with pytest.raises(MethodError, match=r"rows of 16 tokens.*'d2' have 24.*data.block_size"):
        stages.learn([method], stages.stage(model, 2))


START, END = 0, 2

CHATS = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def chatting(much: float = 400.0, size: int = 96) -> Stage:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = CHATS
    stage.tokenizer, stage.source = tokenizer, stages.source(count=1)
    stage.source.block_tokens = size
    stage.model.transformer.ln_f.bias.data = much * stage.model.lm_head.weight.data[END]  # it leans to the end
    return stage


def slow_chat(stage: Stage, number: int, size: int) -> tuple[list[int], int] | None:
    """The ids of a chat and where its answer begins, word by word; None for one that is dropped."""

    def read(text: str) -> list[int]:
        return stage.tokenizer(text, add_special_tokens=False)["input_ids"]

    special, before, between = set(stage.tokenizer.all_special_ids), read("<s>user\n"), read("</s>\n<s>assistant\n")
    room = size - len(before) - len(between)
    chances = torch.rand(
        room, generator=torch.Generator().manual_seed(seed_for(stage.seed, "generated", 1, number)), dtype=torch.float64
    ).tolist()
    ids, start = [*before], 0
    for begin, end in ((0, room // 2), (room // 2, room)):
        start = len(ids)
        for chance in chances[begin:end]:
            with torch.no_grad():
                logits = stage.model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().numpy()
            likely = np.exp(logits - logits.max()).cumsum()
            ids.append(int(np.searchsorted(likely, chance * likely[-1], side="right")))
            if ids[-1] == END:
                break
        said = ids[start:-1] if ids[-1] == END else ids[start:]
        if not said or special & set(said) or (begin == 0 and ids[-1] != END):
            return None
        if begin == 0:
            ids = [*ids[:-1], *between]
    return ids, start


def test_chats_are_samples_of_the_model_through_its_template() -> None:
    size, stage = 96, chatting()
    rows, count = generated_rows(stage, row_count=3, sweeps=1, chats=True)
    assert len(rows) == 3
    found = []
    for row in rows:
        assert row["input_ids"].shape == row["labels"].shape == (size,)
        for segment in np.unique(row["segments"]):
            at = row["segments"] == segment
            learnt = row["labels"][at] != IGNORE
            if learnt.any():
                ids = row["input_ids"][at].tolist()
                assert row["labels"][at][learnt].tolist() == ids[int(learnt.argmax()) :]
                found.append((ids, int(learnt.argmax())))
    whole = (chat for number in itertools.count() if (chat := slow_chat(stage, number, size)) is not None)
    assert found == list(itertools.islice(whole, len(found)))
    assert 3 < len(found) <= count
    assert any(ids[-1] == END for ids, _ in found), "an end is learnt"


def test_chats_are_learnt_beside_plain_text() -> None:
    stage = chatting()
    packer = make_packer(Encoder(stage.tokenizer, "decoder"), 96, examples=False)
    stage.source = PackedBlocks.from_blocks(packer.feed([Document(text) for text in tiny.texts(30)]), 1, "d1")
    method = build({"name": "replay_generated_chats", "share": 0.25})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.objective.tokenizer, "chat_template", CHATS)
        (parts, *_) = stages.learn([method], stage)
    assert torch.isfinite(parts["loss"])
    assert any("chats; its training replays" in note for note in stage.notes)


def test_a_model_that_does_not_chat_says_so() -> None:
    with pytest.raises(MethodError, match="no chat before 'd1': none of 32 questions has an end and an answer"):
        generated_rows(chatting(1e5), row_count=1, sweeps=1, chats=True)


def test_chats_need_a_decoder_and_a_template() -> None:
    method = build("replay_generated_chats")
    for architecture, objective, says in (
        ("roberta", "masked", "needs a decoder, which an encoder is not"),
        ("gpt2", "causal", "the tokenizer has no chat template"),
    ):
        with pytest.raises(MethodError, match=says):
            check_methods([method], stages.setting(tiny.model(architecture), [method], objective))
