"""Every deviation of the released DAS code, one by one, against a slow re-derivation of what that code does.

The references use no hook and no gate: scaling a unit is scaling its weights, so ∂L/∂g = Σ w ∂L/∂w over a head's
columns of the attention's output projection, or over a neuron's or an output's row and bias.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.importance import general_importance
from everlearn.methods.base import Memory
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.masks.contrast import contrast, paired
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.das_options import RELEASED
from everlearn.model.anatomy import anatomy
from everlearn.seeding import seeded

SAMPLES, HEADS, WIDTH, HIDDEN = 10, 4, 8, 32


def _layers(model: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    yield from enumerate(model.get_submodule("roberta.encoder.layer").children())


def _gate_gradients(model: nn.Module, of) -> dict[str, Tensor]:
    """∂L/∂g of every unit from ∂L/∂w, which `of` gives for a parameter."""
    found = {}
    for index, layer in _layers(model):
        o = layer.attention.output.dense.weight
        found[f"layers.{index}.attention.heads"] = (o * of(o)).sum(0).view(HEADS, WIDTH).sum(1)
        for site, dense in (("neurons", layer.intermediate.dense), ("output", layer.output.dense)):
            value = (dense.weight * of(dense.weight)).sum(1) + dense.bias * of(dense.bias)
            found[f"layers.{index}.ffn.{site}"] = value
    return {name: value.detach().double() for name, value in found.items()}


def _squash(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.tanh((value - value.mean()) / value.std()).abs() for name, value in raw.items()}


def _add(total: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _twin(model: nn.Module, dropout: bool) -> nn.Module:
    """Float64 where dropout does not decide; float32 where the same draws of dropout must come out."""
    return copy.deepcopy(model).train() if dropout else copy.deepcopy(model).double().eval()


def _reduced(model: nn.Module, batches, losses, reduce: str) -> dict[str, Tensor]:
    """Row losses of each batch to raw importance, the slow way."""
    total: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters())
    accumulated = {id(p): torch.zeros_like(p) for p in parameters.values()}
    for batch in batches:
        rows = losses(batch)
        if reduce == "abs_per_sample":
            for row in rows:
                gradients = torch.autograd.grad(row, list(parameters.values()), retain_graph=True, allow_unused=True)
                by_id = {id(p): g for p, g in zip(parameters.values(), gradients, strict=True)}
                _add(total, {n: v.abs() for n, v in _gate_gradients(model, lambda p, by=by_id: by[id(p)]).items()})
            continue
        if reduce == "signed_sum":
            model.zero_grad()
        # Released: gradients are never zeroed, and what has accumulated is added after each batch.
        rows.mean().backward()
        for p in parameters.values():
            if p.grad is not None:
                accumulated[id(p)] = p.grad.detach().clone()
        weight = len(rows) if reduce == "signed_sum" else 1
        _add(total, {n: weight * v for n, v in _gate_gradients(model, lambda p: accumulated[id(p)]).items()})
    return total


def _dense(batch: dict[str, Tensor]) -> Tensor:
    return torch.full_like(batch["input_ids"], -100).scatter_(1, batch["positions"], batch["labels"])


def _mlm_rows(model: nn.Module, ids: Tensor, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=ids).logits
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), _dense(batch), reduction="none")
    return losses.sum(1) / (_dense(batch) != -100).sum(1)


# -- importance -----------------------------------------------------------------------------------------------

DOMAIN = [
    {"reduce": "abs_per_sample"},
    {"reduce": "signed_sum"},
    {"reduce": "signed_cumulative"},
    {"domain_input": "plain"},
    {"domain_dropout": True},
    {key: RELEASED[key] for key in ("reduce", "domain_input", "domain_dropout")},
]


@pytest.mark.parametrize("switch", DOMAIN, ids=str)
def test_importance_of_a_domain(switch: dict) -> None:
    model = tiny.model(dropout=0.1)
    stage = stages.stage(model, 1)
    method = DAS(general="none", contrast=0, samples=SAMPLES, **switch)
    stages.hook(method, "end_domain", stage)

    twin = _twin(model, "domain_dropout" in switch)
    text = "plain_ids" if "domain_input" in switch else "input_ids"
    with seeded(stage.seed, "hook", "das", "end_domain", 1):
        batches = list(stage.batches(SAMPLES))
        assert [len(batch["labels"]) for batch in batches] == [4, 4, 2]
        raw = _reduced(
            twin, batches, lambda b: _mlm_rows(twin, b[text], b), str(switch.get("reduce", "abs_per_sample"))
        )
    _same_maps(method, "accumulated", _squash(raw))


def _same_maps(method: DAS, kind: str, expected: dict[str, Tensor]) -> None:
    found = method.memory().tensors
    for name, value in expected.items():
        torch.testing.assert_close(found[f"{kind}/{name}"].double(), value, rtol=2e-3, atol=2e-3)


PROXY = [
    {},
    {"proxy_softmax": "sequence"},
    {"proxy_input": "masked"},
    {"proxy_output": "logits"},
    {"reduce": "signed_cumulative"},
    {key: RELEASED[key] for key in ("reduce", "proxy_softmax", "proxy_input")},
]


def _proxy_rows(model: nn.Module, ids: Tensor, softmax: str, output: str) -> Tensor:
    """The released sums: Σ p (log p − log q) over both other axes, for each row."""
    out = model(input_ids=torch.cat([ids, ids]), output_hidden_states=True)
    first, second = (out.logits if output == "logits" else out.hidden_states[-1]).chunk(2)
    axis = 1 if softmax == "sequence" else 2
    p, q = first.softmax(axis), second.softmax(axis)
    return (p * (p.log() - q.log())).sum((1, 2))


@pytest.mark.parametrize("switch", PROXY, ids=str)
def test_importance_for_general_knowledge(switch: dict) -> None:
    model = tiny.model(dropout=0.1)
    stage = stages.stage(model, 1)
    method = DAS(contrast=0, samples=SAMPLES, **switch)
    stages.hook(method, "begin_domain", stage)

    twin = _twin(model, dropout=True)
    text = "input_ids" if "proxy_input" in switch else "plain_ids"
    options = (str(switch.get("proxy_softmax", "features")), str(switch.get("proxy_output", "hidden")))
    with seeded(stage.seed, "hook", "das", "begin_domain", 1):
        raw = _reduced(
            twin,
            stage.batches(SAMPLES),
            lambda b: _proxy_rows(twin, b[text], *options),
            str(switch.get("reduce", "abs_per_sample")),
        )
    _same_maps(method, "general", _squash(raw))


def test_without_dropout_the_released_proxy_is_noise_and_is_used_all_the_same() -> None:
    """D1: in float64 nothing is left of it; what float32 leaves is squashed to a map like any other."""
    model = tiny.model(dropout=0.1)
    stage = stages.stage(model, 1)
    twin = _twin(model, dropout=False)
    exact = _reduced(
        twin, stage.batches(4), lambda b: _proxy_rows(twin, b["input_ids"], "sequence", "hidden"), "signed_sum"
    )
    options = {"reduce": "signed_cumulative", "text": "masked", "softmax": "sequence"}
    off = general_importance(model, stage.batches(4), stage.objective, dropout=False, **options)
    on = general_importance(model, stage.batches(4), stage.objective, **options)
    for name, value in on.items():
        assert float(exact[name].abs().max()) < 1e-12
        assert float(off[name].abs().max()) < 1e-3 * float(value.abs().max())
    method = DAS(proxy_dropout=False, samples=4)
    check_methods([method], stages.setting(tiny.model(), [method]))
    stages.hook(method, "begin_domain", stage)
    assert all(bool(((value >= 0) & (value < 1)).all()) for value in method.memory().tensors.values())


# -- the mask -------------------------------------------------------------------------------------------------


def _known(model: nn.Module, **options) -> tuple[DAS, dict[str, Tensor]]:
    """DAS with random importance as if from a stage folder."""
    generator = torch.Generator().manual_seed(3)
    maps = {site.name: torch.rand(site.units, generator=generator) for site in anatomy(model).sites}
    method = DAS(**options)
    method.load_memory(Memory({f"accumulated/{name}": value for name, value in maps.items()}, {"domains": ["d0"]}))
    return method, maps


def _table(maps: dict[str, Tensor], inputs: bool) -> dict[str, Tensor]:
    """Whole-parameter factors of every masked parameter: the table of what the released code (or the paper) masks."""
    table = {}
    for index in range(2):
        at = f"roberta.encoder.layer.{index}."
        h = (1 - maps[f"layers.{index}.attention.heads"]).repeat_interleave(WIDTH)
        for name in ("query", "key", "value"):
            weight = h[None, :] if inputs else h[:, None]
            table[f"{at}attention.self.{name}.weight"] = weight.expand(HIDDEN, HIDDEN)
            table[f"{at}attention.self.{name}.bias"] = h
        table[f"{at}attention.output.dense.weight"] = h[None, :].expand(HIDDEN, HIDDEN)
        if inputs:
            table[f"{at}attention.output.dense.bias"] = h
        for module, site, into in (("intermediate", "neurons", HIDDEN), ("output", "output", 64)):
            m = 1 - maps[f"layers.{index}.ffn.{site}"]
            table[f"{at}{module}.dense.weight"] = m[:, None].expand(-1, into)
            table[f"{at}{module}.dense.bias"] = m
    return table


@pytest.mark.parametrize("axis", ["out", "in"])
def test_the_masked_parameters_are_those_of_the_table(axis: str) -> None:
    model = tiny.model()
    method, maps = _known(model, qkv_mask_axis=axis, general="none", contrast=0)
    stage = stages.stage(model, 2)
    stages.begin([method], stage)
    table = _table(maps, inputs=axis == "in")
    factors = method.mask(stage).factors
    assert factors.keys() == table.keys()
    for name, value in table.items():
        assert torch.equal(factors[name].expand_as(value), value), name


def test_inputs_can_be_masked_in_a_fused_projection_and_not_under_other_widths() -> None:
    model = tiny.model("gpt2")
    method, maps = _known(model, qkv_mask_axis="in", general="none", contrast=0)
    stage = stages.stage(model, 2, "causal")
    stages.begin([method], stage)
    h = (1 - maps["layers.0.attention.heads"]).repeat_interleave(WIDTH)
    factors = method.mask(stage).factors
    assert torch.equal(factors["transformer.h.0.attn.c_attn.weight"], h[:, None]), "GPT-2 keeps inputs in rows"
    assert torch.equal(factors["transformer.h.0.attn.c_attn.bias"], h.repeat(3))
    assert torch.equal(factors["transformer.h.0.attn.c_proj.bias"], h)
    wide = tiny.model("llama", head_dim=16)
    method = DAS(qkv_mask_axis="in", general="none")
    with pytest.raises(MethodError, match="qkv_mask_axis"):
        check_methods([method], stages.setting(wide, [method], "causal"))


# -- a whole step ---------------------------------------------------------------------------------------------


def _scaled(model: nn.Module, gates: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the network whose units are multiplied by gates."""
    weights = dict(model.named_parameters())
    for index in range(2):
        at = f"roberta.encoder.layer.{index}."
        name = f"{at}attention.output.dense.weight"
        weights[name] = weights[name] * gates[f"layers.{index}.attention.heads"].repeat_interleave(WIDTH)[None, :]
        for module, site in (("intermediate", "neurons"), ("output", "output")):
            gate = gates[f"layers.{index}.ffn.{site}"]
            weights[f"{at}{module}.dense.weight"] = weights[f"{at}{module}.dense.weight"] * gate[:, None]
            weights[f"{at}{module}.dense.bias"] = weights[f"{at}{module}.dense.bias"] * gate
    return weights


def _represented(model: nn.Module, ids: Tensor, gates: dict[str, Tensor] | None = None) -> Tensor:
    weights = dict(model.named_parameters()) if gates is None else _scaled(model, gates)
    out = torch.func.functional_call(model, weights, (), {"input_ids": ids, "output_hidden_states": True})
    return out.hidden_states[-1].mean(1)


def _slow_contrast(pairs: list[tuple[Tensor, Tensor]], previous: Tensor | None) -> Tensor:
    def s(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp((x @ y) / (x.norm() * y.norm()) / 0.05)

    total = 0.0
    for anchor, positive in pairs:
        below = sum(s(anchor, other) for _, other in pairs)
        below = below + sum(s(anchor, v) for v in previous) if previous is not None else below
        total = total - torch.log(s(anchor, positive) / below)
    return total / len(pairs)


def _slow_step_loss(model: nn.Module, batch: dict[str, Tensor], maps: dict[str, Tensor], options: dict) -> Tensor:
    """Float64, a pass for each view, plain loops."""
    rows = batch["plain_ids"]
    loss = nn.functional.cross_entropy(model(input_ids=batch["input_ids"]).logits.transpose(1, 2), _dense(batch))
    specific = {name: 1 - value for name, value in maps.items()} if options.get("contrast_kind") == "specific" else None
    first = batch["input_ids"] if options.get("anchor") == "masked" else rows
    full, again = _represented(model, first, specific), _represented(model, rows, specific)
    if options.get("pair") == "interleaved":
        # Released: the 2B rows, one copy of the batch after the other, viewed as (B, 2): neighbours become pairs. Its
        # loss takes (z2, z1, z3) and is called with (z1, z2, z3), so the second of a pair is the anchor.
        both = torch.cat([full, again]).view(len(rows), 2, -1)
        pairs = [(both[n, 1], both[n, 0]) for n in range(len(rows))]
    else:
        pairs = list(zip(full, again, strict=True))
    previous = None if options.get("contrast_kind") == "simcse" else _represented(model, rows, maps)
    if previous is not None and options.get("stop_gradient_prev"):
        previous = previous.detach()
    return loss + _slow_contrast(pairs, previous)


STEP = [
    {},
    {"pair": "interleaved"},
    {"qkv_mask_axis": "in"},
    {"apply_to": "gradient"},
    {"anchor": "masked"},
    {"anchor": "masked", "pair": "interleaved"},
    {"contrast_kind": "specific"},
    {"contrast_kind": "simcse"},
    {"stop_gradient_prev": True},
    {key: value for key, value in RELEASED.items() if not key.startswith("proxy_")},
]


@pytest.mark.parametrize("switch", STEP, ids=str)
def test_loss_and_weights_of_one_step(switch: dict) -> None:
    """The loss, its gradient, and what AdamW with weight decay and the mask make of the weights."""
    model = tiny.model()
    method, maps = _known(model, **{"general": "none", **switch})
    stage = stages.stage(model, 2)
    stages.begin([method], stage)
    batch = next(stage.batches(4))
    twin = copy.deepcopy(model).double()
    start = {name: p.detach().clone() for name, p in twin.named_parameters()}
    maps = {name: value.double() for name, value in maps.items()}
    table = _table(maps, inputs=switch.get("qkv_mask_axis") == "in")

    protection = Protection([method], stage)
    loss, _ = protection.loss(model, batch)
    loss.backward()
    protection.after_backward()
    expected = _slow_step_loss(twin, batch, maps, switch)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    if switch.get("apply_to") == "gradient":
        for name, factor in table.items():
            twin.get_parameter(name).grad *= factor
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), twin.get_parameter(name).grad, rtol=2e-3, atol=2e-4)

    # ε so large that rounding of tiny gradients does not decide Adam's sign.
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-2, weight_decay=0.1) for m in (model, twin))
    with protection.update():
        ours.step()
    theirs.step()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if switch.get("apply_to") != "gradient" and name in table:
                parameter.copy_(start[name] + table[name] * (parameter - start[name]))
            torch.testing.assert_close(model.get_parameter(name).double(), parameter, rtol=1e-4, atol=2e-4)


def test_which_of_a_released_pair_asks_is_seen_in_the_gradient() -> None:
    """With the two swapped the expected loss is the same, the gradient of a batch is not: the test above can fail."""
    generator = torch.Generator().manual_seed(0)
    full, again, previous = (torch.randn(4, 16, generator=generator).requires_grad_() for _ in range(3))
    anchors, positives = paired(full, again, "interleaved")
    ours = torch.autograd.grad(contrast(anchors, positives, previous, 0.05), (full, again))
    swapped = torch.autograd.grad(contrast(*paired(full, again, "interleaved")[::-1], previous, 0.05), (full, again))
    largest = max(float(value.abs().max()) for value in ours)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, swapped, strict=True)) > 0.1 * largest
    both = torch.cat([full, again]).double()
    expected = _slow_contrast([(both[n + 1], both[n]) for n in (0, 2, 4, 6)], previous.double())
    for mine, reference in zip(ours, torch.autograd.grad(expected, (full, again)), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-3, atol=1e-4 * largest)


def test_interleaved_pairs_are_never_the_same_text_and_the_second_of_a_pair_is_the_anchor() -> None:
    method, _ = _known(tiny.model(), pair="interleaved")
    stage = stages.stage(tiny.model(), 2)
    batch = next(stage.batches(4))
    hidden = torch.arange(4.0)[:, None, None].expand(4, 24, 2)
    anchors, positives = paired(hidden[:, 0], hidden[:, 0], "interleaved")
    assert anchors[:, 0].tolist() == [1, 3, 1, 3]
    assert positives[:, 0].tolist() == [0, 2, 0, 2]
    assert len(method.views(stage, batch)) == 3
