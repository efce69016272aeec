"""Analyses: importance, output magnitudes, prediction ranks and codelengths, against slow references; their pages."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stages
import tiny
from cli_project import Project
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.diagnostics.analyses.activations import sections, tables
from everlearn.diagnostics.analyses.codelength import _of_stage
from everlearn.diagnostics.analyses.importance import sections as importance_sections
from everlearn.diagnostics.analyses.importance import tables as importance_tables
from everlearn.diagnostics.importance_maps import chance, compare_maps, kind_of_site, occupied_share
from everlearn.diagnostics.pages import write_page
from everlearn.diagnostics.prediction_ranks import _median, keywords, occurrences, ranks_of
from everlearn.diagnostics.row_activations import ALL, Magnitudes, alike, mean_magnitudes
from everlearn.evaluation import Conditions
from everlearn.evaluation.results import StageFacts, read
from everlearn.learner import ContinualLearner
from everlearn.methods import Memory, build
from everlearn.model.anatomy import anatomy
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint
from everlearn.report.figures import draw
from everlearn.report.figures.violins import Violins, _density

HEADS = [torch.tensor([0.0, 0.5, 0.95, 0.9]), torch.tensor([0.2, 0.5, 0.95, 0.95])]
MAPS = {
    name: {
        "layers.0.attention.heads": HEADS[i],
        "layers.0.ffn.neurons": torch.linspace(0, 0.5 + 0.4 * i, 64),
        "layers.1.ffn.neurons": torch.full((64,), 0.5 + 0.1 * i),
    }
    for i, name in enumerate(("general", "first"))
}


def test_saturation_counts_what_is_left() -> None:
    found = occupied_share(MAPS)
    assert (found.stages, found.kinds) == (["general", "first"], ["heads", "neurons"])
    assert found.free[0] == pytest.approx([(1 + 0.5 + 0.05 + 0.1) / 4, (0.8 + 0.5 + 0.05 + 0.05) / 4])
    assert found.free[1] == pytest.approx([(0.75 + 0.5) / 2, (0.55 + 0.4) / 2])
    assert found.protected == [[0.5, 0.5], [0.0, pytest.approx(1 / 128)]]


def test_chance_is_the_known_decay_of_independent_maps() -> None:
    """Numerical means of 1 − max of |tanh z| over 1, 2, 3 … independent normal z."""
    z = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = [float((1 - z[:, :k].abs().tanh().amax(1)).mean()) for k in (1, 2, 3, 4)]
    assert chance(4) == pytest.approx(expected, abs=0.01)
    assert expected[0] == pytest.approx(0.44, abs=0.01)


def test_chance_knows_how_maps_were_normalised() -> None:
    assert chance(2, "rank") == pytest.approx([1 / 2, 1 / 3], abs=0.01)
    z = torch.randn(200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert chance(1, "relu_tanh") == pytest.approx([float((1 - z.clamp(min=0).tanh()).mean())], abs=0.01)


def test_maps_that_do_not_accumulate_are_each_beside_one_random_map() -> None:
    """As with `dga`: the map from before the first domain is the first domain's own."""
    maps = {"general": MAPS["general"], "first": MAPS["general"], "second": MAPS["first"]}
    found = occupied_share(maps, grows=False)
    assert found.stages == ["first", "second"]
    assert found.chance == pytest.approx([0.44, 0.44], abs=0.01)
    assert [table.header[0] for table in importance_tables(found, None)] == ["While learning", "While learning"]


@pytest.mark.parametrize(
    ("spec", "how"),
    [("das", ("tanh_abs", True)), ({"name": "das", "normalise": "rank"}, ("rank", True)), ("dga", ("tanh_abs", False))],
)
def test_settings_come_from_the_method(spec: Any, how: tuple[str, bool]) -> None:
    method, maps = build(spec), {"layers.0.ffn.neurons": torch.rand(4)}
    assert method.importance() is None
    method.load_memory(
        Memory(
            {f"{kind}/{name}": x for kind in ("general", "accumulated") for name, x in maps.items()}, {"domains": []}
        )
    )
    found = method.importance()
    assert found is not None
    assert (found.normalise, found.grows) == how
    assert found.general == found.accumulated == maps


def test_most_methods_measure_no_importance() -> None:
    assert build("replay").importance() is None


def test_kinds_have_one_number() -> None:
    sites = ("layers.0.attention.heads", "layers.0.ffn.neurons", "layers.0.ffn.output")
    assert [kind_of_site(site) for site in sites] == ["heads", "neurons", "outputs"]


def test_cosine_of_maps_and_its_random_baseline() -> None:
    found = compare_maps(MAPS)
    a, b = HEADS[0].double(), HEADS[1].double()
    wanted = float(a @ b / (a.norm() * b.norm()))
    assert found.cosine["heads"][0][1] == pytest.approx(wanted)
    assert found.cosine["heads"][1][0] == pytest.approx(wanted)
    assert found.cosine["heads"][0][0] == pytest.approx(1)
    mean, highest = found.random["neurons"]
    assert 0.6 < mean < highest < 1, "maps of noise are alike, because they are never negative"


def test_page_and_tables_say_the_same(tmp_path: Path) -> None:
    filled, alike = occupied_share(MAPS), compare_maps(MAPS)
    page = write_page(tmp_path / "page.html", "a <run>", importance_sections(MAPS, filled, alike)).read_text(
        encoding="utf-8"
    )
    assert "a &lt;run&gt;" in page
    assert page.count("<script>") == 1
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "heads, after general: each head" in page
    assert "neurons, after first: quantiles over the units of a layer" in page
    titles = [table.title for table in importance_tables(filled, alike)]
    assert all(title in page for title in titles)
    assert len(titles) == 4
    assert len(importance_tables(filled, None)) == 2


COMPONENTS = {"a.query": "query", "b.query": "query", "a.in": "feed_forward_in"}


def random_rows(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {path: torch.rand(10 if "in" in path else 7, generator=generator) for path in COMPONENTS}


@pytest.mark.parametrize(
    ("architecture", "objective"), [("roberta", "masked"), ("gpt2", "causal"), ("t5", "text-to-text")]
)
def test_means_of_outputs_in_float64(architecture: str, objective: str) -> None:
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, objective)
    batches = list(itertools.islice(stage.batches(7), 2))  # of 4 and 3 rows
    found = mean_magnitudes(model.train(), batches, stage.objective)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    seen: dict[str, list[torch.Tensor]] = {path: [] for path in stage.anatomy.linears}
    for path, outputs in seen.items():
        double.get_submodule(path).register_forward_hook(
            lambda _, __, out, outputs=outputs: outputs.extend(out.detach().flatten(0, 1))
        )
    with torch.no_grad():
        for batch in batches:
            stage.objective.forward(double, batch)
    assert found.keys() == seen.keys()
    for path, outputs in seen.items():
        wanted = torch.stack(outputs).abs().mean(0)
        torch.testing.assert_close(found[path].double(), wanted, rtol=1e-4, atol=1e-5)


def test_overlap_and_correlation_by_hand() -> None:
    halves = {name: (random_rows(2 * i), random_rows(2 * i + 1)) for i, name in enumerate(("x", "y", "z"))}
    found = alike(Magnitudes("Outputs", COMPONENTS, halves), 0.7)

    def top(values: list[float]) -> set[int]:
        order = sorted(range(len(values)), key=lambda i: (values[i], i))
        return set(order[math.floor(0.7 * len(values)) :])

    def pair(path: str, a: str, b: str) -> tuple[float, float]:
        overlaps, correlations = [], []
        for i in (0, 1):
            one, two = halves[a][i][path].tolist(), halves[b][1 - i][path].tolist()
            overlaps.append(len(top(one) & top(two)) / len(top(one)))
            correlations.append(statistics.correlation(one, two))
        return statistics.mean(overlaps), statistics.mean(correlations)

    for part, paths in ((ALL, list(COMPONENTS)), ("query", ["a.query", "b.query"]), ("feed_forward_in", ["a.in"])):
        for (i, a), (j, b) in itertools.product(enumerate(halves), repeat=2):
            wanted = [statistics.mean(each) for each in zip(*(pair(path, a, b) for path in paths), strict=True)]
            assert found.overlap[part][i][j] == pytest.approx(wanted[0])
            assert found.correlation[part][i][j] == pytest.approx(wanted[1], abs=1e-6)
        kept = [(7 - 4) / 7 if "query" in path else 3 / 10 for path in paths]
        assert found.chance[part] == pytest.approx(statistics.mean(kept))


def test_what_is_the_same_twice_is_wholly_alike() -> None:
    rows = random_rows(1)
    found = alike(Magnitudes("Rows that moved furthest", COMPONENTS, {"x": (rows, rows)}), 0.5)
    assert found.overlap[ALL] == [[1.0]]
    assert found.correlation[ALL] == [[pytest.approx(1.0)]]
    assert [table.rows[0][1][-1].text for table in tables([found])] == ["1.000", "–"], "no other to compare with"


def test_violins_are_as_wide_as_there_are_values() -> None:
    values = np.random.default_rng(0)
    narrow, wide = values.gamma(40, 1 / 40, 500), values.gamma(2, 0.5, 500)
    (plate,) = draw("violins", Violins("mean |y|", ["narrow", "wide"], [narrow, wide], "x"))
    assert f"narrow: median {np.median(narrow):.2f}" in plate.svg
    assert f"wide: median {np.median(wide):.2f}" in plate.svg
    places, density = _density(wide, 3.0)
    assert density[np.abs(places - 0.5).argmin()] > 3 * density[np.abs(places - 2.5).argmin()], "the mode is at 0.5"
    assert list(draw("violins", Violins("", [], [], ""))) == []
    assert draw("violins", Violins("", ["zeros"], [[0.0, 0.0]], ""))


def test_a_run_and_its_page(everlearn: Project) -> None:
    everlearn.recipe["method"] = {"name": "migu", "threshold": 0.5}
    everlearn.recipe["train"]["max_steps"] = 1
    assert everlearn("run", "recipe.yaml").code == 0
    everlearn.fails("analyse", "activations", "runs/first", "--blocks", "1", says=("`--blocks` is 1", "2 or more"))
    shown = everlearn("analyse", "activations", "runs/first", "--blocks", "8", "--json")
    assert shown.code == 0, shown.err
    base, after, moved = json.loads(shown.out)["magnitudes"]
    assert base["title"] == "Outputs of the base model"
    assert after["title"] == "Outputs of the model after b"
    assert (base["names"], moved["names"], base["threshold"]) == (["a", "b"], ["a", "b"], 0.5)
    assert base["chance"][ALL] == pytest.approx(0.5, abs=0.05)

    # the rows that moved, read again from the weights
    learner = ContinualLearner.open(everlearn.run_folder)
    models = [learner.model_after(k) for k in range(3)]
    shares = []
    for path in (path for path, each in anatomy(models[0]).linears.items() if each.component == "feed_forward_in"):
        tops = []
        for before, model in itertools.pairwise(models):
            old, new = (each.get_submodule(path).weight.detach().double().numpy() for each in (before, model))
            change = [math.dist(x, y) for x, y in zip(old, new, strict=True)]
            order = sorted(range(len(change)), key=lambda i: (np.float32(change[i]), i))
            tops.append(set(order[len(change) // 2 :]))
        shares.append(len(tops[0] & tops[1]) / len(tops[0]))
    assert moved["overlap"]["feed_forward_in"][0][1] == pytest.approx(statistics.mean(shares), abs=0.02)

    page = (everlearn.run_folder / "analysis-activations.html").read_text(encoding="utf-8")
    assert "<h1>first: activations</h1>" in page
    for words in ("Outputs of the base model", "Rows that moved furthest", "By component", "Correlation of the rows"):
        assert words in page
    assert page.count("<script>") == 1
    assert "What importance" not in page


@pytest.mark.parametrize(
    ("method", "moved"), [({"name": "inc_lora", "merge": False}, ["query", "value"]), ("elle", [])]
)
def test_layers_that_stay_or_grow_are_left_out(everlearn: Project, method: Any, moved: list[str]) -> None:
    everlearn.recipe["method"] = method
    everlearn.recipe["train"]["max_steps"] = 1
    assert everlearn("run", "recipe.yaml").code == 0
    shown = everlearn("analyse", "activations", "runs/first", "--blocks", "8", "--json")
    assert shown.code == 0, shown.err
    found = {each["title"]: each for each in json.loads(shown.out)["magnitudes"]}
    rows = found.pop("Rows that moved furthest", None)
    assert list(rows["overlap"] if rows else []) == [*([ALL] if moved else []), *moved]
    assert len(found) == 2


def test_rows_that_are_all_equal_have_no_correlation(tmp_path: Path) -> None:
    rows = {path: torch.ones(7) for path in COMPONENTS}
    measured = Magnitudes("Outputs", COMPONENTS, {"x": (rows, rows), "y": (rows, rows)})
    found = alike(measured, 0.5)
    assert found.correlation[ALL] == [[None, None], [None, None]]
    assert json.dumps(vars(found), allow_nan=False)
    assert "–" in write_page(tmp_path / "p.html", "x", sections([measured], [found])).read_text("utf-8")


FILL = "it knew what the model learns before a domain keeps "
TEXTS = {
    "graphs": [FILL + "graphs nodes edges and graphs nodes edges again it knew"] * 6,
    "plots": [FILL + "plots figures axes and plots figures it knew"] * 4 + [FILL + "graphs are before a plots"] * 2,
}


def packed(name: str, kind: str = "decoder") -> PackedBlocks:
    return PackedBlocks.from_blocks(list(tiny.pack(map(Document, TEXTS[name]), 48, kind=kind)), 0, name)


def counted(text: str, ngram: str) -> int:
    return text.count(" " + ngram)


def test_keywords_have_the_largest_tf_idf_against_the_other_sets():
    sets = {name: packed(name) for name in TEXTS}
    tokenizer = tiny.tokenizer()
    found = keywords(sets, tokenizer, top=3, longest=2)
    (graphs,) = tokenizer(" graphs", add_special_tokens=False)["input_ids"]
    (nodes,) = tokenizer(" nodes", add_special_tokens=False)["input_ids"]
    text = ["".join(tokenizer.decode(block["input_ids"])) for block in sets["graphs"].take(range(len(sets["graphs"])))]
    joined = " ".join(text)
    # `nodes` stands in no document of the other set, so it weighs more than `graphs`, which stands in some.
    assert (nodes,) in found["graphs"]
    others = sets["plots"].arrays
    documents = {
        (row, int(segment)): set(others["input_ids"][row][others["segments"][row] == segment].tolist())
        for row in range(len(others["input_ids"]))
        for segment in np.unique(others["segments"][row])
    }
    df = sum(graphs in words for words in documents.values())
    assert 0 < df < len(documents)
    weight = {
        "nodes": counted(joined, "nodes") * math.log(1 + len(documents)),
        "graphs": counted(joined, "graphs") * math.log((1 + len(documents)) / (1 + df)),
    }
    assert weight["nodes"] > weight["graphs"]
    every = keywords(sets, tokenizer, top=100, longest=1)["graphs"]
    assert every.index((nodes,)) < every.index((graphs,))
    # What nearly every document of the other set has weighs little.
    (model,) = tokenizer(" model", add_special_tokens=False)["input_ids"]
    assert every.index((model,)) > every.index((graphs,))
    assert all(len(ngram) <= 2 for each in found.values() for ngram in each)


def test_contexts_end_just_before_and_lie_in_one_document():
    blocks = packed("graphs")
    words = keywords({"graphs": blocks, "plots": packed("plots")}, tiny.tokenizer())["graphs"]
    places = occurrences(blocks, words, 1000)
    ids, segments = blocks.arrays["input_ids"], blocks.arrays["segments"]
    assert places == sorted(set(places))
    for row, at, length in places:
        assert tuple(ids[row, at : at + length].tolist()) in words
        assert len(set(segments[row, at - 8 : at + length].tolist())) == 1
    some = occurrences(blocks, words, 5)
    assert len(some) == 5
    assert set(some) <= set(places)
    assert occurrences(blocks, [], 5) == []


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
def test_ranks_are_those_of_a_pass_of_its_own(architecture):
    model, tokenizer = tiny.model(architecture), tiny.tokenizer()
    blocks = packed("graphs", "decoder" if architecture == "gpt2" else "encoder")
    objective = make_objective(None, model, tokenizer)
    how = Conditions("base", tokenizer, objective, batch_size=3)
    places = occurrences(blocks, keywords({"graphs": blocks, "plots": packed("plots")}, tokenizer)["graphs"], 7)
    found = ranks_of(Checkpoint(model, objective), blocks, places, how)
    for rank, (row, at, length) in zip(found, places, strict=True):
        ids = torch.from_numpy(blocks.arrays["input_ids"][row].astype(np.int64))
        with torch.no_grad():
            if architecture == "gpt2":
                start = int(np.flatnonzero(blocks.arrays["segments"][row] == blocks.arrays["segments"][row][at])[0])
                logits = model(ids[None, start:at]).logits[0, -1]
            else:
                shown = ids.clone()
                shown[at : at + length] = tokenizer.mask_token_id
                logits = model(shown[None]).logits[0, at]
        assert rank == 1 + sum(float(each) > float(logits[ids[at]]) for each in logits)


def test_places_of_one_row_are_drawn_together() -> None:
    """Forty rows of which each repeats one value nine times tell no more than forty values."""
    values = np.random.default_rng(0).normal(size=40)
    alone = _median(values, range(40), "a")
    repeated = _median(np.repeat(values, 9), np.repeat(np.arange(40), 9).tolist(), "a")
    assert repeated.value == pytest.approx(alone.value, abs=0.2)
    widths = [each.interval[1] - each.interval[0] for each in (alone, repeated) if each.interval is not None]
    assert 0.7 < widths[1] / widths[0] < 1.4


def test_each_line_counts_for_its_steps_and_the_first_pass_alone():
    losses = {4: 3.0, 6: 2.0, 10: 1.0, 20: 0.1}
    found = _of_stage("a", losses, 10, 4.0)
    nats = (4 * 3.0 + 2 * 2.0 + 4 * 1.0) / 10
    assert found.nats == pytest.approx(nats)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / 4)
    assert (found.first, found.last) == pytest.approx((3 / math.log(2) / 4, 1 / math.log(2) / 4))
    assert (found.steps, found.once) == (10, True)


def test_what_is_not_known_is_said():
    found = _of_stage("a", {5: 2.0, 10: 1.0}, None, None)
    assert (found.nats, found.bits_per_byte, found.once) == (1.5, None, False)
    assert not _of_stage("a", {5: 2.0}, 3, None).once, "the only line reaches into the second pass"


def test_stages_of_earlier_versions_do_not_know_their_passes(tmp_path):
    facts = {"domain": "a", "index": 1, "steps": 3, "seconds": 1, "training_seconds": 1, "peak_memory_bytes": 1}
    (tmp_path / "stage.json").write_text(json.dumps({**facts, "tokens": 5}))
    assert read(StageFacts, tmp_path / "stage.json").pass_steps is None
