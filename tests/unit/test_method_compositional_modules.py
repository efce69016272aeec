"""Compositional modules against a slow float64 stream: what is mixed, chosen, trained, replayed and read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hard_attention_checks import reading
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.composition.compositional_modules import CompositionalModules
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import check_methods

LR, RATE, START, ENTROPY, REPLAY, STEPS, DECIDE = 0.5, 40.0, 0.004, 0.05, 0.7, 7, 4
"""Of the 7 steps of a domain 4 decide: c is left alone in the first 2 of them."""
PARTS = ("down.weight", "down.bias", "up.weight", "up.bias")
Parts = tuple[Tensor, ...]
"""An adapter's tensors, in the order of PARTS."""


def make(**options: Any) -> CompositionalModules:
    fixed = {"reduction_factor": 4, "start": START, "entropy": ENTROPY, "replay": REPLAY, "choice_rate": RATE}
    method = build({"name": "compositional_modules", **fixed, "decide": 0.5, "samples": 5, **options})
    assert isinstance(method, CompositionalModules)
    return method


def adapted(hidden: Tensor, parts: Parts) -> Tensor:
    """A(h) = h + W_up relu(W_down h + b_down) + b_up, [S, H]."""
    down, down_bias, up, up_bias = parts
    return hidden + (hidden @ down.T + down_bias).clamp(min=0) @ up.T + up_bias


class Stream:
    """The reference: adapters by (domain that added them, layer), and which of them each domain has in each layer."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).double().requires_grad_(False)
        self.layers = [block.mlp.c_proj for block in self.model.transformer.h]
        self.adapters: dict[tuple[str, int], Parts] = {}
        self.paths: dict[str, list[str]] = {}

    def nats(self, batch: dict[str, Tensor], mixed: list[list[tuple[Any, Parts]]]) -> Tensor:
        """Nats of every label of one row, with Σ w A(h) in each layer."""
        hooks = [
            layer.register_forward_hook(lambda _, __, h, of=of: sum(w * adapted(h[0], parts) for w, parts in of)[None])
            for layer, of in zip(self.layers, mixed, strict=True)
        ]
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        chances = self.model(**inputs, use_cache=False).logits[0].log_softmax(-1)
        losses = torch.stack(
            [
                -one[label] if label >= 0 else one.sum() * 0
                for one, label in zip(chances, batch["labels"][0], strict=True)
            ]
        )[None]
        for hook in hooks:
            hook.remove()
        return losses

    def loss(self, batch: dict[str, Tensor], domains: list[str], mixed: Any = None) -> list[Tensor]:
        """Nats of each row, read alone, with the adapters of its domain or a mixture."""
        found = []
        for row, domain in enumerate(domains):
            alone = {name: value[row : row + 1] for name, value in batch.items()}
            own = mixed or [[(1.0, self.adapters[owner, n])] for n, owner in enumerate(self.paths[domain])]
            found.append(self.nats(alone, own))
        return found

    def learn(self, at: Any, steps: list[tuple[dict[str, Tensor], Any, list[str]]], fresh: list[Parts]) -> list[Tensor]:
        """One domain by gradient descent; returns the entropy of every step of the decision."""
        everything, entropies = range(len(self.layers)), []
        earlier = [list(dict.fromkeys(path[n] for path in self.paths.values())) for n in everything]
        deciding = DECIDE if self.paths else 0
        new = [tuple(part.double().clone().requires_grad_() for part in parts) for parts in fresh]
        c = [torch.tensor([START] * len(of) + [-START]).double().requires_grad_() for of in earlier]
        for step, (batch, view, of_replayed) in enumerate(steps):
            if step == deciding:
                self.paths[at.domain] = [
                    [*of, at.domain][int(values.argmax())] for of, values in zip(earlier, c, strict=True)
                ]
                for n in everything:
                    if self.paths[at.domain][n] == at.domain:
                        self.adapters[at.domain, n] = new[n]
            if step < deciding:
                mixed = []
                for n in everything:
                    w = c[n].exp() / c[n].exp().sum()
                    mixed.append([*zip(w, [*(self.adapters[of, n] for of in earlier[n]), new[n]], strict=True)])
                rows = self.loss(batch, [at.domain] * len(batch["labels"]), mixed)
                entropy = sum(-(w * w.log()) for of in mixed for w, _ in of)
                entropies.append(ENTROPY * entropy.detach())
                moving = [(part, LR) for parts in new for part in parts]
                moving += [(values, LR * RATE) for values in c] if step >= deciding // 2 else []
                total = torch.cat(rows).sum() / (batch["labels"] != -100).sum() + ENTROPY * entropy
            else:
                learning = [self.adapters[owner, n] for n, owner in enumerate(self.paths[at.domain])]
                moving = [(part.requires_grad_(), LR) for parts in learning for part in parts]
                rows = self.loss(batch, [at.domain] * len(batch["labels"]))
                total = torch.cat(rows).sum() / (batch["labels"] != -100).sum()
                if view is not None:
                    old = self.loss({**view.inputs, "labels": view.labels}, of_replayed)
                    means = [nats.sum() / (labels != -100).sum() for nats, labels in zip(old, view.labels, strict=True)]
                    total = total + REPLAY * torch.stack(means).mean()
            gradients = torch.autograd.grad(total, [part for part, _ in moving])
            with torch.no_grad():
                for (part, lr), gradient in zip(moving, gradients, strict=True):
                    part -= lr * gradient
        self.adapters = {key: tuple(part.detach() for part in parts) for key, parts in self.adapters.items()}
        return entropies


def test_a_stream_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four domains: the same choices in every layer, the same adapters afterwards, the same losses on the way."""
    model, method = tiny.model("gpt2"), make()
    reference = Stream(model)
    views = CompositionalModules.views
    for index in (1, 2, 3, 4):
        at = stages.stage(model, index, "causal", steps=STEPS)
        texts = {f"d{i}": [row["input_ids"].tolist() for row in stages.blocks(12, i)] for i in range(1, 5)}
        steps: list[Any] = []
        fresh: list[Parts] = []

        def look(self: Any, stage: Any, batch: Any, steps: Any = steps, texts: Any = texts, fresh: Any = fresh) -> Any:
            if not fresh:
                own = [dict(layer.own.named_parameters()) for layer in attached(stage.model, method.name).layers]
                fresh += [tuple(parts[name].detach().clone() for name in PARTS) for parts in own]
            found = views(self, stage, batch)
            ids = found[0].inputs["input_ids"].tolist() if found else []
            domains = [next(domain for domain, rows in texts.items() if row in rows) for row in ids]
            own = {name: value for name, value in batch.items() if "/" not in name}
            steps.append((own, found[0] if found else None, domains))
            return found

        monkeypatch.setattr(CompositionalModules, "views", look)
        parts = stages.learn([method], at, optimizer=torch.optim.SGD, lr=LR)
        entropies = reference.learn(at, steps, fresh)
        model = at.model
        assert method._paths == reference.paths
        found = [part[f"{method.name}/entropy"].double() for part in parts if f"{method.name}/entropy" in part]
        assert len(found) == len(entropies) == (DECIDE if index > 1 else 0)
        for one, other in zip(found, entropies, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        for (owner, layer), expected in reference.adapters.items():
            for name, value in zip(PARTS, expected, strict=True):
                found_part = method._adapters[f"{owner}/{layer}.{name}"].double()
                torch.testing.assert_close(found_part, value, rtol=1e-3, atol=1e-5)
        assert len(method._adapters) == len(reference.adapters) * len(PARTS)
        assert any(view is not None for _, view, _ in steps) == (index > 1), "every later domain shares an adapter"
        replayed = {domain for _, _, domains in steps for domain in domains}
        path = reference.paths[at.domain]
        sharing = {d for d, of in reference.paths.items() if any(map(str.__eq__, of, path))} - {at.domain}
        assert replayed == sharing
    assert method._paths == {"d1": ["d1", "d1"], "d2": ["d1", "d2"], "d3": ["d3", "d2"], "d4": ["d3", "d1"]}
    batch = next(stages.stage(model, 9, "causal").batches(3))
    for domain in method._paths:
        tested = method.test_model(copy.deepcopy(model).eval(), reading(at, domain))
        expected = torch.cat(reference.loss(batch, [domain] * 3))
        torch.testing.assert_close(at.objective.forward(tested, batch).losses.double(), expected, rtol=1e-4, atol=1e-4)
    assert method.test_model(model, reading(at, None)) is model, "general text is read without adapters"


def learn(method: CompositionalModules, domains: int = 2, architecture: str = "gpt2", **options: Any) -> Any:
    """A stream of a few steps; returns its last stage."""
    model = tiny.model(architecture)
    for index in range(1, domains + 1):
        at = stages.stage(model, index, tiny.objective_of(architecture), **options)
        stages.learn([method], at)
        model = at.model
    return at


def test_without_a_decision_the_sign_of_start_decides() -> None:
    for start, owner in ((0.1, "d1"), (-0.1, "d3")):
        method = make(decide=0, start=start)
        learn(method, 3)
        assert method._paths["d3"] == [owner, owner]


def test_adapters_of_a_domain_that_shares_none_do_not_move() -> None:
    method = make(decide=0, start=-1)
    learn(method, 1)
    before = dict(method._adapters)
    learn(method, 3)
    assert all(torch.equal(method._adapters[name], value) for name, value in before.items())


def test_only_the_latest_adapters_are_tried() -> None:
    """Four adapters in a layer: with `tries: 2` the third is the first that can be reused."""
    method = make(decide=0, start=-1, tries=2)
    learn(method, 4)
    method.config = method.config.model_copy(update={"start": 1.0})
    at = stages.stage(tiny.model("gpt2"), 5, "causal")
    stages.learn([method], at)
    assert method._paths["d5"] == ["d3", "d3"]
    assert any("'d5' reuses an adapter in 2 of 2 layers (of d3)" in note for note in at.notes)


def test_each_row_has_its_adapter_where_a_layer_flattens_rows_too() -> None:
    """As OPT does; and in evaluation all rows are those of the domain that is learnt."""
    method = make(decide=0, start=-1)
    at = stages.stage(learn(method).model, 3, "causal")
    method.attach(at)
    layer = attached(at.model, method.name).layers[0].train()
    layer.choose("d3", ["d3", "d1", "d2"])
    hidden = torch.randn(3, 5, 32)
    apart = torch.cat([each(row[None]) for each, row in zip([layer.own, *layer.earlier], hidden, strict=True)])
    for found in (layer.hook(layer, (), hidden), layer.hook(layer, (), hidden.flatten(0, 1)).view(3, 5, 32)):
        torch.testing.assert_close(found, apart)
    assert torch.equal(layer.eval().hook(layer, (), hidden), layer.own(hidden))


def test_generated_rows_are_no_text_of_the_domain() -> None:
    method = make(pseudo="generated", samples=3)
    at = learn(method)
    assert method._rows is not None
    assert method._rows.domains == ["d1"] * 3 + ["d2"] * 3
    texts = [row["input_ids"].tolist() for row in stages.blocks(12, at.index)]
    assert not any(row["input_ids"].tolist() in texts for row in method._rows.blocks)
    assert not method.needs.old_data


def test_nothing_is_stored_without_replay() -> None:
    method = make(replay=0)
    learn(method, architecture="t5")
    assert not any(key.startswith("rows/") for key in method.memory().tensors)


@pytest.mark.parametrize(
    ("architecture", "objective", "methods", "sentence"),
    [
        ("t5", "text-to-text", [{}], "those of an encoder-decoder differ in width"),
        ("gpt2", "causal", [{}, "derpp"], "'derpp', whose rows would be read with the wrong adapters"),
        ("gpt2", "causal", [{}, "dap_adapter"], "freezes all parameters except its own"),
        ("gpt2", "text-to-text", [{"pseudo": "generated"}], "generates plain text"),
    ],
)
def test_what_cannot_work_is_refused(architecture: str, objective: str, methods: list[Any], sentence: str) -> None:
    made = [build({"name": "compositional_modules", **one} if isinstance(one, dict) else one) for one in methods]
    with pytest.raises(MethodError, match=sentence):
        check_methods(made, stages.setting(tiny.model(architecture), made, objective))


def test_a_memory_of_another_model_is_refused() -> None:
    method = make()
    learn(method)
    for changed in ({"decide": 0.5}, {"reduction_factor": 8}):
        other = make(**changed)
        other.load_memory(method.memory())
        if "decide" in changed:
            other._paths["d1"] = ["d1"]
        with pytest.raises(MethodError, match="do not fit this model"):
            other.attach(stages.stage(tiny.model("gpt2"), 3, "causal"))
