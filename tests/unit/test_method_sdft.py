"""SDFT against its equation, written once more from the messages, in float64 and token by token."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.data import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.data.loader import BlockLoader
from everlearn.data.messages import Message
from everlearn.data.packing import ChatPacker, make_packer
from everlearn.data.tokenize import Encoder
from everlearn.errors import DataError, MethodError
from everlearn.methods import build
from everlearn.methods.base import Method, Stage
from everlearn.methods.distillation.demonstrations import Demonstrations
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.model.objectives import IGNORE
from everlearn.seeding import seed_for

TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
SHOW = "\n\nAn answer:\n{demonstration}\n\nYours:"
SIZE, MOST = 112, 7
CHATS = [
    [("user", "the mean of a sample"), ("assistant", "solve the equation")],
    [("system", "a model"), ("user", "random rows"), ("assistant", "test the vector")],
    [("user", "frames"), ("assistant", "plots"), ("user", "and nodes"), ("assistant", "edges and graphs")],
    [("user", "what it knew"), ("assistant", "series")],
    [("user", "axes"), ("assistant", "rows")],
]


def tokenizer(template: str | None = TEMPLATE) -> Any:
    """The tests' tokenizer with a chat template."""
    made = copy.deepcopy(tiny.tokenizer())
    made.chat_template = template
    return made


def source(chats: list[list[tuple[str, str]]], made: Any, size: int = SIZE) -> PackedBlocks:
    """Packed rows of chats."""
    packer = ChatPacker(Encoder(made, "decoder"), size)
    blocks = packer.feed([Document("", "", tuple(Message(*turn) for turn in chat)) for chat in chats])
    return PackedBlocks.from_blocks([*blocks, *packer.finish()], 0, "d1")


def prepared(model: nn.Module, steps: int = 1) -> Stage:
    """A stage whose domain is the chats."""
    stage, made = stages.stage(model, 1, "causal", steps=steps, batch_size=2), tokenizer()
    stage.tokenizer, stage.source = made, source(CHATS, made)
    return stage


def method(**options: Any) -> Method:
    """SDFT with short answers and a short text for the teacher."""
    return build({"name": "sdft", "prompt": SHOW, "max_new_tokens": MOST, **options})


def double(model: nn.Module) -> nn.Module:
    """A copy in float64."""
    return copy.deepcopy(model).double().eval()


def read(made: Any, messages: list[tuple[str, str]]) -> list[int]:
    """The ids of a chat with the beginning of an answer, by transformers alone."""
    text = made.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages], tokenize=False, add_generation_prompt=True
    )
    return made(text, add_special_tokens=False)["input_ids"]


def scores(model: nn.Module, ids: list[int]) -> Tensor:
    """Log-probabilities of what follows each token, without a cache."""
    return torch.log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0], -1)


def written(student: nn.Module, ids: list[int], seed: int, end: int) -> list[int]:
    """What the student answers: each token the first whose cumulative probability exceeds a uniform number."""
    answer: list[int] = []
    with torch.no_grad():
        for chance in torch.rand(MOST, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist():
            upto = itertools.accumulate(scores(student, ids + answer)[-1].exp().tolist())
            answer.append(next(token for token, probability in enumerate(upto) if probability > chance))
            if answer[-1] == end:
                break
    return answer


def chats_of(batch: dict[str, Tensor], made: Any) -> Iterator[tuple[int, int, list[tuple[str, str]]]]:
    """Row, place and messages of each chat of a batch, found by its text."""
    for row, ids in enumerate(batch["input_ids"]):
        for place in (batch["position_ids"][row] == 0).nonzero().flatten().tolist():
            text = made.decode(ids[place:])
            for chat in CHATS:
                if text.startswith("".join(f"<s>{role}\n{content}</s>\n" for role, content in chat)):
                    yield row, place, chat


def reference(student: nn.Module, teacher: nn.Module, batch: dict[str, Tensor], stage: Stage, forward: bool) -> Tensor:
    """The mean over rows of the mean over their answers of the mean over tokens of Σ_v q (log q − log p)."""
    made, parts = stage.tokenizer, defaultdict(list)
    end = made.convert_tokens_to_ids("</s>")
    for row, place, chat in chats_of(batch, made):
        *before, (_, shown) = chat
        asked = [*before[:-1], (before[-1][0], before[-1][1] + SHOW.replace("{demonstration}", shown))]
        mine, theirs = read(made, before), read(made, asked)
        answer = written(student, mine, seed_for(stage.seed, "sdft", 1, stage.row + row, place), end)
        nats = 0.0
        for t in range(len(answer)):
            q = scores(student, mine + answer[:t])[-1]
            p = scores(teacher, theirs + answer[:t])[-1].detach()
            nats = nats + ((p.exp() * (p - q)).sum() if forward else (q.exp() * (q - p)).sum())
        parts[row].append(nats / len(answer))
    assert len(parts) == len(batch["input_ids"])
    assert len(set(map(len, parts.values()))) > 1, "rows with more and with fewer answers"
    return sum(sum(each) / len(each) for each in parts.values()) / len(parts)


@pytest.mark.parametrize("distance", ["reverse_kl", "forward_kl"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_loss_gradient_and_teacher(architecture: str, distance: str) -> None:
    model = tiny.model(architecture, dropout=0.0)
    with torch.no_grad():  # new weights predict almost the same whatever they read
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    stage, rate = prepared(model, steps=2), 0.25
    sdft = method(rate=rate, distance=distance)
    teacher, seen = double(model), 0

    def compared(protection: Protection, batch: dict[str, Tensor]) -> None:
        nonlocal seen
        student = double(model)
        expected = reference(student, teacher, batch, stage, distance == "forward_kl")
        expected.backward()
        for name, parameter in student.named_parameters():
            grad = dict(model.named_parameters())[name].grad
            torch.testing.assert_close(grad.double(), parameter.grad, rtol=2e-3, atol=1e-4)
        found.append(float(expected.detach()))
        seen += 1

    found: list[float] = []
    step = sdft.after_step

    def moved(stage: Stage) -> None:
        step(stage)
        with torch.no_grad():
            for held, now in zip(teacher.parameters(), model.parameters(), strict=True):
                held.mul_(1 - rate).add_(rate * now.double())
        for name, held in teacher.named_parameters():
            torch.testing.assert_close(sdft.teacher_weights[name].double(), held, rtol=1e-4, atol=1e-6)

    sdft.after_step = moved
    parts = stages.learn([sdft], stage, each=compared)
    assert seen == 2
    assert [float(part["sdft/divergence"]) for part in parts] == pytest.approx(found, rel=1e-3)
    assert min(found) > 0.005


def test_the_cross_entropy_is_logged_as_before() -> None:
    plain = stages.learn([], prepared(tiny.model("llama", dropout=0.0)))
    sdft = stages.learn([method()], prepared(tiny.model("llama", dropout=0.0)))
    assert float(sdft[0]["loss"]) == pytest.approx(float(plain[0]["loss"]))


def test_plain_text_beside_chats_is_learnt_as_always() -> None:
    model = tiny.model("llama", dropout=0.0)
    stage = prepared(model)
    encoder = Encoder(stage.tokenizer, "decoder")
    packer = make_packer(encoder, SIZE, examples=False, labelled=True)
    text = packer.feed([Document(text) for text in tiny.texts(20)])[0]
    chat = stage.source.take([0])[0]
    stage.source = PackedBlocks.from_blocks([chat, text], 0, "d1")
    grads = {}
    for name, methods in (("both", [method()]), ("chat", [method()]), ("text", [])):
        copied = copy.deepcopy(stage)
        protection = Protection(methods, copied)
        protection.begin()
        batch = next(iter(BlockLoader(copied.source, stage.objective, 2, 1)))
        is_text = torch.tensor([bool((row == torch.tensor(text["input_ids"])).all()) for row in batch["input_ids"]])
        if name != "both":
            batch["labels"][is_text if name == "chat" else ~is_text] = IGNORE
        items = int((batch["labels"] != IGNORE).sum())
        loss, _ = protection.loss(copied.model, batch)
        loss.backward()
        grads[name] = items, {key: p.grad for key, p in copied.model.named_parameters()}
    (every, both), (_, chat), (few, plain) = grads["both"], grads["chat"], grads["text"]
    for key, gradient in both.items():  # the chat counts by rows, the text by tokens
        torch.testing.assert_close(gradient, chat[key] + plain[key] * few / every, rtol=1e-3, atol=1e-6)


def test_replayed_chats_are_demonstrations_too() -> None:
    sdft, replay = method(), build({"name": "replay", "share": 0.5})
    stage = prepared(tiny.model("llama", dropout=0.0))
    stages.learn([sdft, replay], stage)
    then = stages.stage(stage.model, 2, "causal", steps=3, batch_size=2)
    then.tokenizer = stage.tokenizer
    text = make_packer(Encoder(then.tokenizer, "decoder"), SIZE, examples=False)
    then.source = PackedBlocks.from_blocks(text.feed([Document(text) for text in tiny.texts(30)]), 0, "d2")
    assert any("sdft/divergence" in part for part in stages.learn([sdft, replay], then))


def test_a_domain_without_chats_is_plain_training_and_says_so() -> None:
    learnt = []
    for methods in ([], [method()]):
        stage = stages.stage(tiny.model("gpt2"), 1, "causal", steps=2)
        stages.learn(methods, stage)
        learnt.append(stages.weights(stage.model))
    assert all(torch.equal(value, learnt[1][name]) for name, value in learnt[0].items())
    assert any("found no complete answer to a question in 'd1'" in note for note in stage.notes)


def test_prompts_with_answers_of_a_model_without_template() -> None:
    made = tokenizer(None)
    encoder = Encoder(made, "decoder")
    packer = make_packer(encoder, 64, examples=True)
    packer.feed([Document("the mean of rows", "a vector"), Document("nodes", "and edges")])
    stage = stages.stage(tiny.model("gpt2"), 1, "text-to-text")
    found = Demonstrations(encoder, SHOW).of(stage.objective.collate(packer.finish(), [0]))
    assert [made.decode(each.context) for each in found] == ["<s>the mean of rows", "<s>nodes"]
    assert [made.decode(each.shown) for each in found] == [
        "<s>the mean of rows\n\nAn answer:\na vector\n\nYours:",
        "<s>nodes\n\nAn answer:\nand edges\n\nYours:",
    ]
    assert {each.end for each in found} == {encoder.end}


def test_an_answer_that_was_cut_off_demonstrates_nothing() -> None:
    made = tokenizer()
    encoder, stage = Encoder(made, "decoder"), stages.stage(tiny.model("gpt2"), 1, "causal")
    long = [("user", "the mean"), ("assistant", "solve"), ("user", "more"), ("assistant", "rows " * 60)]
    blocks = source([long], made, 48)
    (found,) = Demonstrations(encoder, SHOW).of(stage.objective.collate(blocks.take([0]), [0]))
    assert made.decode(found.context) == "<s>user\nthe mean</s>\n<s>assistant\n"
    only = source([[("user", "the mean"), ("assistant", "rows " * 60)]], made, 48)
    assert not Demonstrations(encoder, SHOW).of(stage.objective.collate(only.take([0]), [0]))


def test_the_last_message_before_an_answer_shows_it_whoever_said_it() -> None:
    made = tokenizer()
    chat = [("user", "the mean"), ("tool", "solve"), ("assistant", "rows")]
    batch = stages.stage(tiny.model("gpt2"), 1, "causal").objective.collate(source([chat], made).take([0]), [0])
    (found,) = Demonstrations(Encoder(made, "decoder"), SHOW).of(batch)
    assert "<s>tool\nsolve\n\nAn answer:\nrows\n\nYours:</s>" in made.decode(found.shown)


def test_a_memory_of_another_model_is_refused() -> None:
    stage, sdft = prepared(tiny.model("llama")), method()
    stages.begin([sdft], stage)
    other = method()
    other.load_memory(sdft.memory())
    with pytest.raises(MethodError, match="'sdft' cannot load its memory"):
        stages.begin([other], prepared(tiny.model("gpt2")))
    assert not build({"name": "sdft"}).memory()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_low_rank_matrices_are_learnt_from_a_plain_teacher(rate: float) -> None:
    model = tiny.model("llama", dropout=0.0)
    stage, sdft = prepared(model, steps=3), method(rate=rate)
    before, teachers = stages.weights(model), []
    lora = build({"name": "lora", "r": 2, "lora_dropout": 0.0})
    stages.learn(
        [sdft, lora],
        stage,
        each=lambda *_: teachers.append(stages.weights(sdft._teacher)),
    )
    moved = [name for name, value in before.items() if not torch.equal(value, stage.model.state_dict()[name])]
    assert moved
    for name, value in teachers[-1].items():
        assert torch.equal(value, before.get(name, value)) == (rate == 0 or name not in moved)


@pytest.mark.parametrize(
    ("architecture", "objective", "others", "says"),
    [
        ("t5", "text-to-text", [], "takes a decoder"),
        ("gpt2", "causal", ["progressive_prompts"], "has the plain model teach"),
    ],
)
def test_refused(architecture: str, objective: str, others: list[str], says: str) -> None:
    methods = [method(), *map(build, others)]
    with pytest.raises(MethodError, match=says):
        check_methods(methods[:1], stages.setting(tiny.model(architecture), methods, objective))


def test_a_template_without_ends_is_refused() -> None:
    bare = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    with pytest.raises(DataError, match="does not end each message with a special token"):
        Demonstrations(Encoder(tokenizer(bare), "decoder"), SHOW)


def test_the_text_for_the_teacher_shows_the_answer_once() -> None:
    with pytest.raises(MethodError, match=r"option 'prompt': write \{demonstration\} once"):
        method(prompt="Answer.")
