"""SAPT-LoRA: one attention over the domains' blocks, held where it was by pseudo-samples of earlier domains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hard_attention_checks import reading
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.composition.sapt_lora import SAPTLoRA
from everlearn.methods.engine.attachment import attached

R, ALPHA = 2, 6.0


def method(**options: Any) -> SAPTLoRA:
    return SAPTLoRA(**({"r": R, "lora_alpha": ALPHA, "bottleneck": 5, "samples": 6, "pseudo_batch": 4} | options))


def learnt(sapt: SAPTLoRA, model: nn.Module, objective: str, domains: int = 3) -> Any:
    for index in range(1, domains + 1):
        at = stages.stage(model, index, objective, steps=2)
        stages.learn([sapt], at, lr=0.1)
    return at


def attention(sapt: SAPTLoRA, words: Tensor, domains: int, projection: dict[str, Tensor] | None = None) -> Tensor:
    """softmax(K q / √d) of one text's word embeddings [S, E], written out in float64; oldest domain first."""
    shared = {name: value.double() for name, value in (projection or sapt._projection).items()}
    e = torch.stack([column.max() for column in words.double().T])
    z = shared["1.weight"] @ (shared["0.weight"] @ e)
    z = z / (1 + torch.exp(-z))
    q = (z - z.mean()) / (z.var(correction=0) + 1e-5).sqrt() * shared["3.weight"] + shared["3.bias"]
    keys = [one["key"].double() for one in list(sapt._learnt.values())[:domains]]
    exponents = torch.stack([((key * q).sum() / len(q) ** 0.5).exp() for key in keys])
    return exponents / exponents.sum()


@torch.no_grad()
def test_every_layer_adds_the_blocks_that_the_text_attends_to() -> None:
    """Row by row against a plain model whose weights have s Σ_i a_i B_i A_i added, in float64."""
    sapt, model = method(), tiny.model("t5")
    with torch.enable_grad():
        at = learnt(sapt, model, "text-to-text")
    model = model.double()
    batch = next(at.batches(3))
    tested = sapt.test_model(copy.deepcopy(model), reading(at, None))
    found = at.objective.forward(tested, batch).losses
    paths = [path for path, _ in model.named_modules() if path.endswith((".q", ".v"))]
    for row in range(3):
        real = batch["attention_mask"][row] > 0
        mixed = attention(sapt, model.shared.weight[batch["input_ids"][row][real]], 3)
        merged = copy.deepcopy(model)
        for number, path in enumerate(paths):
            for weight, one in zip(mixed, sapt._learnt.values(), strict=True):
                a, b = (one[f"layers.{number}.lora_{which}.own.weight"].double() for which in "AB")
                merged.get_submodule(path).weight += weight * ALPHA / R * b @ a
        inputs = {name: value[row : row + 1] for name, value in batch.items()}
        logits = merged(**at.objective.inputs(inputs)).logits[0]
        expected = F.cross_entropy(logits, inputs["labels"][0], reduction="none")
        torch.testing.assert_close(found[row].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [("t5", "text-to-text"), ("llama", "causal")])
def test_the_attention_of_earlier_domains_is_held(architecture: str, objective: str) -> None:
    """Mean attention vectors and the divergence from them, with the pseudo-samples that were drawn, in float64."""
    sapt, model = method(), tiny.model(architecture)
    learnt(sapt, model, objective, 2)
    words = model.get_input_embeddings().weight

    def texts(ids: Tensor, document: Tensor) -> list[Tensor]:
        """What each query is of: a row, or in a decoder a document up to each token."""
        if architecture == "t5":
            return [words[row[of >= 0]] for row, of in zip(ids, document, strict=True)]
        found = []
        for row, of in zip(ids, document, strict=True):
            found += [words[row[: s + 1][of[: s + 1] == of[s]]] for s in range(len(row))]
        return found

    for domain in ("d2",):  # whose projection is the last one
        kept = sapt._pseudo[domain]
        assert len(kept["input_ids"]) == 6
        with torch.no_grad():
            each = [attention(sapt, text, 2) for text in texts(kept["input_ids"], kept["document"])]
        torch.testing.assert_close(kept["attention"].double(), torch.stack(each).mean(0), atol=1e-6, rtol=1e-5)
    assert sapt._pseudo["d1"]["attention"].tolist() == [1.0]

    at = stages.stage(model, 3, objective)
    expected = []

    def look(protection: Any, batch: dict[str, Tensor]) -> None:
        module = attached(model, "sapt_lora")
        sapt._learnt["d3"] = {"key": module.key.detach()}
        projection = {name: value.detach() for name, value in module.project.state_dict().items()}
        total = torch.zeros((), dtype=torch.float64)
        for domain in ("d1", "d2"):
            lesson = sapt._lesson(at, domain)
            target = F.pad(lesson["attention"], (0, 3 - len(lesson["attention"]))).double()
            terms = []
            for text in texts(lesson["input_ids"], lesson["document"]):
                a = attention(sapt, text, 3, projection)
                terms.append(sum(p * (p.log() - q.log()) for p, q in zip(target, a, strict=True) if p > 0))
            total = total + torch.stack(terms).mean()
        del sapt._learnt["d3"]
        expected.append(0.1 * total.detach())

    parts = stages.learn([sapt], at, lr=0.1, each=look)
    found = torch.stack([part["sapt_lora/align"] for part in parts]).double()
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=1e-4)
    assert found[0] > 0


def test_earlier_blocks_and_keys_never_move_and_the_projection_goes_on() -> None:
    sapt, model = method(), tiny.model("t5")
    start = stages.weights(model)
    learnt(sapt, model, "text-to-text", 2)
    before = {name: value.clone() for name, value in sapt.memory().tensors.items()}
    at = stages.stage(model, 3, "text-to-text")
    projections: list[dict[str, Tensor]] = []

    def look(*_: Any) -> None:
        module = attached(model, "sapt_lora")
        projections.append({name: value.clone() for name, value in module.project.state_dict().items()})
        assert all(p.grad is None for p in module.parameters() if not p.requires_grad)

    stages.learn([sapt], at, lr=0.1, weight_decay=0.1, each=look)
    after = sapt.memory().tensors
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    for name, value in before.items():
        assert torch.equal(after[name], value) is not name.startswith("projection/")
    assert all(torch.equal(projections[0][n], before[f"projection/{n}"]) for n in projections[0])


def test_without_alignment_nothing_of_a_text_is_kept() -> None:
    sapt, model = method(align=0), tiny.model("t5")
    assert not sapt.needs.old_data
    at = learnt(sapt, model, "text-to-text", 2)
    assert all(value.is_floating_point() for value in sapt.memory().tensors.values())
    assert "sapt_lora/align" not in stages.learn([sapt], stages.stage(model, 3, "text-to-text"))[0]
    assert at.index == 2


def test_a_decoder_writes_its_own_pseudo_samples_the_same_for_the_same_seed() -> None:
    kept = []
    for seed in (0, 0, 1):
        sapt, model = method(pseudo="generated", pseudo_tokens=9, top_k=20), tiny.model("gpt2")
        assert not sapt.needs.old_data
        at = stages.stage(model, 1, "causal", steps=2, seed=seed)
        stages.learn([sapt], at)
        kept.append(sapt._pseudo["d1"]["input_ids"])
        assert "sapt_lora/align" in stages.learn([sapt], stages.stage(model, 2, "causal", steps=2, seed=seed))[0]
    assert kept[0].shape == (6, 9)
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])
    assert len({tuple(row) for row in kept[0].tolist()}) > 1
    assert sapt.cost(model).outside(12) == len(kept[0]) / 3, "a forward pass over each"
    assert method().cost(model).outside(12) == method(pseudo="generated", align=0).cost(model).outside(12) == 0


def test_what_does_not_fit_is_refused() -> None:
    for architecture, objective in (("t5", "text-to-text"), ("roberta", "masked")):
        setting = stages.setting(tiny.model(architecture), [], objective)
        with pytest.raises(MethodError, match=r"does not write its own inputs.*Set `pseudo: stored`\."):
            method(pseudo="generated").check(setting)
        method(pseudo="generated", align=0).check(setting)
