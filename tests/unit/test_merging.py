"""Models made of several: merging methods, and WiSE-FT after each domain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import stages
import tiny
from everlearn.errors import MethodError, RecipeError
from everlearn.merging import MERGE_METHODS, TensorGroup, make_merge_method
from everlearn.merging.task_vectors import largest_of
from everlearn.methods import build
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.stage import Checkpoints
from everlearn.model.weight_movement import LoadedWeights

# -- Merging methods against slow references written from their papers, in numpy and float64 ---------------------------


SHAPES = {"a": (7, 5), "b": (11,), "c": (3, 4, 2)}


def checkpoint(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


BASE = checkpoint(0)
MODELS = [{n: BASE[n] + 0.1 * t for n, t in checkpoint(seed).items()} for seed in (1, 2, 3)]


def merged(name: str, models=MODELS, base=BASE, losses=None, fisher=None, **options) -> dict[str, np.ndarray]:
    """What a merging method makes of all tensors, in numpy."""
    method = make_merge_method(name, options)
    method.check(len(models))
    method.begin([LoadedWeights(m) for m in models], LoadedWeights(base) if method.needs_base else None, losses)
    return {
        n: method.merged(
            TensorGroup(
                n,
                [m[n].double() for m in models],
                base[n].double() if method.needs_base else None,
                None if fisher is None else [f[n].double() for f in fisher],
            )
        ).numpy()
        for n in SHAPES
    }


def flat(tensors) -> np.ndarray:
    """A whole model as the papers see it: one vector."""
    return np.concatenate([np.asarray(tensors[n], np.float64).ravel() for n in SHAPES])


def close(found: dict[str, np.ndarray], wanted: np.ndarray) -> None:
    np.testing.assert_allclose(flat(found), wanted, rtol=1e-12, atol=1e-14)


THETA0, THETAS = flat(BASE), [flat(model) for model in MODELS]
TAUS = [theta - THETA0 for theta in THETAS]


def test_means():
    close(merged("mean"), sum(THETAS) / 3)
    close(merged("mean", weights=[1, 2, 5]), (THETAS[0] + 2 * THETAS[1] + 5 * THETAS[2]) / 8)


@pytest.mark.parametrize("size", [1e308, 5e-300])
def test_the_size_of_weights_does_not_matter_where_ratios_do(size):
    close(merged("mean", weights=[size, size, size / 2]), (2 * THETAS[0] + 2 * THETAS[1] + THETAS[2]) / 5)
    for method in ("ties", "dare"):
        options = {"elect": True, "drop": 0} if method == "dare" else {"keep": 0.6}
        wanted = flat(merged(method, weights=[1, 1, 0.5], **options))
        close(merged(method, weights=[size, size, size / 2], **options), wanted)
    running = THETAS[0]
    for n, theta in enumerate(THETAS[1:], 2):
        running = running + (theta - running) / n
    close(merged("mean"), running)
    for alpha in (0, 0.3, 1):
        close(merged("wise_ft", MODELS[:1], alpha=alpha), (1 - alpha) * THETA0 + alpha * THETAS[0])


@pytest.mark.parametrize("decay", ["linear", "cosine", "sqrt"])
@pytest.mark.parametrize("to", [0.0, 0.1])
def test_wsm_weighs_updates_as_the_decay_does(decay, to):
    count = 5
    c = make_merge_method("wsm", {"decay": decay, "to": to}).coefficients(count)
    assert sum(c) == pytest.approx(1)
    for i in range(count):
        x = i / count
        shape = {"linear": 1 - x, "cosine": 0.5 * (1 + math.cos(math.pi * x)), "sqrt": 1 - math.sqrt(x)}[decay]
        assert sum(c[i:]) == pytest.approx(to + (1 - to) * shape), "the weight of update i"
    if (decay, to) == ("linear", 0.0):
        close(merged("wsm"), sum(THETAS) / 3)


def test_wsm_is_training_with_the_decayed_rate_where_gradients_do_not_change():
    """θⱼ = θ₀ + u₁ + … + uⱼ; with decayed rates the same updates would be w₁ u₁ + … + w_k u_k."""
    stages = [{n: BASE[n] + sum(m[n] - BASE[n] for m in MODELS[:j]) for n in SHAPES} for j in range(4)]
    w = [0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(4)]
    wanted = THETA0 + sum(w[i + 1] * tau for i, tau in enumerate(TAUS))
    np.testing.assert_allclose(flat(merged("wsm", stages, decay="cosine")), wanted, rtol=1e-6, atol=1e-6)


def test_cocktail_weighs_by_losses_on_the_target():
    losses = [3.0, 1.0, 2.0]
    w = np.exp([-each / 5.0 for each in losses])
    close(merged("cocktail", losses=losses), sum(x * t for x, t in zip(w / w.sum(), THETAS, strict=True)))
    w = np.exp([-3.0, -1.0])
    others = (w[0] * THETAS[0] + w[1] * THETAS[1]) / w.sum()
    close(merged("cocktail", losses=losses, temperature=1, alpha=0.5), 0.5 * THETAS[2] + 0.5 * others)


def test_fisher_merging_and_wise_ft_with_fisher():
    fishers = [{n: t.square() for n, t in checkpoint(seed).items()} for seed in (7, 8)]
    two, floor, alpha = [BASE, MODELS[0]], 0.01, 0.3
    least = {n: floor * float(sum(f[n].double().mean() for f in fishers)) / 2 for n in SHAPES}
    f0, f1 = (flat({n: t.double().clamp(min=least[n]) for n, t in f.items()}) for f in fishers)
    wanted = ((1 - alpha) * f0 * THETA0 + alpha * f1 * THETAS[0]) / ((1 - alpha) * f0 + alpha * f1)
    close(merged("fisher", two, fisher=fishers, weights=[1 - alpha, alpha], floor=floor), wanted)
    tiny = [{n: 2.0**-30 * t for n, t in f.items()} for f in fishers]
    close(merged("fisher", two, fisher=tiny, weights=[1 - alpha, alpha], floor=floor), wanted)  # ratios alone count
    nothing = [{n: torch.zeros_like(t) for n, t in f.items()} for f in fishers]
    close(merged("fisher", two, fisher=nothing, weights=[1, 3]), (THETA0 + 3 * THETAS[0]) / 4)
    close(merged("fisher", two, weights=[1, 3]), (THETA0 + 3 * THETAS[0]) / 4)  # no Fisher information of a buffer


def test_task_arithmetic():
    close(merged("task_arithmetic"), THETA0 + 0.4 * sum(TAUS))
    close(merged("task_arithmetic", weights=[1, -1, 0.5], scale=0.7), THETA0 + 0.7 * (TAUS[0] - TAUS[1] + TAUS[2] / 2))
    close(merged("task_arithmetic", scale=1, since="before"), THETAS[-1])


def ties(taus, keep, scale, zero=0.0, weights=(1, 1, 1), parts=None) -> np.ndarray:
    """Algorithm 1, place by place; `parts` are the slices that trimming goes over."""
    trimmed = []
    for tau in taus:
        kept = np.zeros_like(tau)
        for part in parts or [slice(None)]:
            least = sorted(np.abs(tau[part]), reverse=True)[max(1, round(keep * len(tau[part]))) - 1]
            kept[part] = np.where(np.abs(tau[part]) >= least, tau[part], 0)
        trimmed.append(kept)
    result = np.zeros_like(taus[0])
    for p in range(len(result)):
        gamma = np.sign(sum(w * t[p] for w, t in zip(weights, trimmed, strict=True))) or zero
        agree = [(w, t[p]) for w, t in zip(weights, trimmed, strict=True) if np.sign(t[p]) == gamma and gamma]
        if agree:
            result[p] = sum(w * x for w, x in agree) / sum(w for w, _ in agree)
    return THETA0 + scale * result


SLICES = [slice(start, end) for start, end in itertools.pairwise(np.cumsum([0, 35, 11, 24]))]


def test_ties():
    close(merged("ties"), ties(TAUS, 0.2, 1))
    close(merged("ties", keep=0.5, scale=0.7), ties(TAUS, 0.5, 0.7))
    close(merged("ties", trim="tensor", keep=0.3), ties(TAUS, 0.3, 1, parts=SLICES))
    close(merged("ties", weights=[1, 2, 3], keep=0.6), ties(TAUS, 0.6, 1, weights=(1, 2, 3)))
    steps = [after - before for after, before in zip(THETAS, [THETA0, *THETAS], strict=False)]
    close(merged("ties", since="before", keep=1), ties(steps, 1, 1))


def test_ties_at_places_where_vectors_cancel_out():
    exact = {n: torch.zeros(shape) for n, shape in SHAPES.items()}
    steps = {"a": (0.25, -0.25, 0), "b": (0.25, -0.25, 0), "c": (0.25, -0.25, 0.25)}
    opposite = [{n: torch.full(SHAPES[n], float(steps[n][i])) for n in SHAPES} for i in range(3)]
    c = np.concatenate([np.full(35, 0.0), np.full(11, 0.0), np.full(24, 0.25)])
    close(merged("ties", opposite, exact, keep=1), c)
    with_sign = np.full(70, 0.25)
    close(merged("ties", opposite, exact, keep=1, zero="plus"), with_sign)
    close(merged("ties", opposite, exact, keep=1, zero="majority"), with_sign)
    mirrored = [{n: -m[n] for n in SHAPES} for m in opposite]
    close(merged("ties", mirrored, exact, keep=1, zero="majority"), -with_sign)
    close(merged("ties", mirrored, exact, keep=1, zero="plus"), np.where(c, -0.25, 0.25))


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.2, 0.5, 1])
@pytest.mark.parametrize("kind", ["normal", "few values", "tiny", "nothing"])
def test_the_largest_are_found_without_sorting(share, kind):
    values = torch.randn(3001, generator=torch.Generator().manual_seed(1))
    values = {"normal": values, "few values": values.round(), "tiny": values * 1e-41, "nothing": values * 0}[kind]
    parts = [values[:1000].view(10, 100), values[1000:]]
    least = largest_of(lambda: iter(parts), share)
    wanted = values.abs().sort(descending=True).values[max(1, round(share * 3001)) - 1]
    assert torch.equal(least, wanted)


def test_dare_drops_and_rescales():
    found = flat(merged("dare", MODELS[:1], drop=0.5)) - THETA0
    kept = found != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(found[kept], 2 * TAUS[0][kept], rtol=1e-9)
    np.testing.assert_array_equal(flat(merged("dare", MODELS[:1], drop=0.5)) - THETA0, found)
    assert (flat(merged("dare", MODELS[:1], drop=0.5, seed=1)) != THETA0 + found).any()
    plain = flat(merged("dare", MODELS[:1], drop=0.5, rescale="none")) - THETA0
    np.testing.assert_allclose(2 * plain, found, rtol=1e-9, atol=1e-15)
    norm = flat(merged("dare", MODELS[:1], drop=0.5, rescale="norm")) - THETA0
    for part in SLICES:
        assert np.abs(norm[part]).sum() == pytest.approx(np.abs(TAUS[0][part]).sum())
    close(merged("dare", drop=0, scale=0.5, weights=[1, 2, 3]), THETA0 + 0.5 * (TAUS[0] + 2 * TAUS[1] + 3 * TAUS[2]))
    close(merged("dare", drop=0, elect=True), ties(TAUS, 1, 1))


def test_dare_keeps_the_expectation():
    draws = [flat(merged("dare", MODELS[:1], drop=0.8, seed=seed)) for seed in range(400)]
    error = np.abs(np.mean(draws, 0) - THETAS[0]) / np.abs(TAUS[0])
    assert error.max() < 4 * math.sqrt(0.8 / 0.2 / 400), "four standard errors"


@pytest.mark.parametrize("count", [2, 3])
def test_model_stock(count):
    found = merged("model_stock", MODELS[:count])
    for n in SHAPES:
        base = BASE[n].double().numpy().ravel()
        taus = [m[n].double().numpy().ravel() - base for m in MODELS[:count]]
        cosines = [a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in itertools.combinations(taus, 2)]
        cos = sum(cosines) / len(cosines)
        t = count * cos / (1 + (count - 1) * cos)
        wanted = base + max(t, 0) * (sum(taus) / count)
        np.testing.assert_allclose(found[n].ravel(), wanted, rtol=1e-12, atol=1e-14)


def test_model_stock_at_its_ends():
    same = [MODELS[0], MODELS[0]]
    np.testing.assert_allclose(flat(merged("model_stock", same)), THETAS[0], rtol=1e-12)
    apart = [{n: BASE[n] + s * checkpoint(1)[n] for n in SHAPES} for s in (1, -1)]
    np.testing.assert_allclose(flat(merged("model_stock", apart)), THETA0, atol=1e-6)
    np.testing.assert_allclose(flat(merged("model_stock", [BASE, MODELS[0]])), (THETA0 + THETAS[0]) / 2, rtol=1e-12)


def test_slerp():
    first, second = checkpoint(4), checkpoint(5)
    for t in (0, 0.25, 1):
        found = merged("slerp", [first, second], t=t)
        for n in SHAPES:
            a, b = first[n].double().numpy(), second[n].double().numpy()
            angle = math.acos((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))
            wanted = (math.sin((1 - t) * angle) * a + math.sin(t * angle) * b) / math.sin(angle)
            np.testing.assert_allclose(found[n], wanted, rtol=1e-9, atol=1e-12)
    half = merged("slerp", [first, first | {"a": 3 * first["a"]}])
    np.testing.assert_allclose(half["a"], 2 * first["a"].double(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "count", "options", "says"),
    [
        ("tie", 2, {}, ["no merging method 'tie'", "Did you mean 'ties'?"]),
        ("ties", 2, {"kep": 0.2}, ["no option 'kep'", "Did you mean 'keep'?"]),
        ("ties", 2, {"keep": 0}, ["option 'keep'", "above 0", "got 0"]),
        ("ties", 2, {"keep": True}, ["option 'keep'", "number"]),
        ("ties", 2, {"trim": "layer"}, ["option 'trim'", "'model' or 'tensor'"]),
        ("ties", 2, {"weights": [1, 0]}, ["option 'weights'", "above 0"]),
        ("dare", 2, {"elect": True, "weights": [1, -1]}, ["option 'elect'", "`weights` above 0"]),
        ("mean", 2, {"weights": [-1, 2]}, ["option 'weights'", "0 or more"]),
        ("mean", 3, {"weights": [1, 2]}, ["'weights'", "each of 3", "there are 2"]),
        ("mean", 1, {}, ["takes 2 or more", "there are 1"]),
        ("slerp", 3, {}, ["takes 2 checkpoints;", "there are 3"]),
        ("wise_ft", 2, {}, ["takes 1 checkpoint beside the base model", "there are 2"]),
        ("model_stock", 2, {"t": 1}, ["no option 't'"]),
    ],
)
def test_mistakes_are_sentences(name, count, options, says):
    with pytest.raises(RecipeError) as error:
        make_merge_method(name, options).check(count)
    for part in says:
        assert part in str(error.value)
    assert (
        str(error.value).rstrip("?").endswith(".") or "Did you mean" in str(error.value) or "Known" in str(error.value)
    )


def test_every_merging_method_says_what_it_is():
    from everlearn.cli.merge import command

    listed = command.__annotations__["method"]
    for name, method in MERGE_METHODS.items():
        assert method.__doc__
        assert method.paper.startswith("https://")
        assert name in str(listed)
        assert all(field.description for field in method.Config.model_fields.values()), name


# -- WiSE-FT after every domain against the paper's equation, in float64 -----------------------------------------------


def stream(options: dict[str, object], domains: int = 3) -> tuple[list[dict], list[dict]]:
    """Weights after each domain, 0 the base model, and what each domain's training ended in."""
    model, ended = tiny.model(), []
    models = [tiny.model()]
    weights = [stages.weights(model)]
    for index in range(1, domains + 1):
        stage = stages.stage(model, index, steps=2)
        stage.checkpoints = Checkpoints(index, lambda number: models[number])
        last: dict[str, torch.Tensor] = {}

        method = build({"name": "wise_ft", **options})
        final = method.final_weights

        def watched(at, final=final, last=last):
            last.update(stages.weights(at.model))
            return final(at)

        method.final_weights = watched  # type: ignore[method-assign]
        stages.learn([method], stage)
        ended.append(last)
        weights.append(stages.weights(model))
        copy = tiny.model()
        copy.load_state_dict(model.state_dict())
        models.append(copy)
    return weights, ended


@pytest.mark.parametrize("anchor", ["before", "base"])
def test_a_domain_ends_on_the_line(anchor: str) -> None:
    weights, ended = stream({"alpha": 0.3, "anchor": anchor})
    for index, trained in enumerate(ended, 1):
        old = weights[0 if anchor == "base" else index - 1]
        for name, value in weights[index].items():
            wanted = 0.7 * old[name].double() + 0.3 * trained[name].double()
            torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-7)
    moved = [not torch.equal(after, weights[0][name]) for name, after in weights[1].items()]
    assert all(moved)


def test_the_running_average_is_the_mean_of_what_the_stages_ended_in() -> None:
    weights, ended = stream({"alpha": "1/n"})
    for index in (1, 2, 3):
        for name, value in weights[index].items():
            wanted = sum(trained[name].double() for trained in ended[:index]) / index
            torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-7)
    assert build("model_average").config.alpha == "1/n"
    assert build("model_average").title == "Running average"


def test_beside_what_begins_a_domain_with_another_model_it_is_refused() -> None:
    model = tiny.model()

    def check(alpha: float, anchor: str, other: dict[str, object]) -> None:
        methods = [build({"name": "wise_ft", "alpha": alpha, "anchor": anchor}), build(other)]
        check_methods(methods, stages.setting(model, methods))

    for other in ({"name": "selective_init"}, {"name": "ensemble", "combine": "mean"}):
        with pytest.raises(MethodError, match=f"'wise_ft' interpolates between.*'{other['name']}'.*Set `anchor: base`"):
            check(0.5, "before", other)
        check(0.5, "base", other)
        check(1, "before", other)
    check(0.5, "before", {"name": "selective_init", "samples": 0})
    check(0.5, "before", {"name": "ensemble", "combine": "mean", "start": "previous"})


def test_what_it_needs() -> None:
    assert not build("wise_ft").needs.base_model
    assert build({"name": "wise_ft", "anchor": "base"}).needs.base_model
    for alpha in (1.5, "1/m"):
        with pytest.raises(MethodError, match=r"'wise_ft', option 'alpha'"):
            build({"name": "wise_ft", "alpha": alpha})
