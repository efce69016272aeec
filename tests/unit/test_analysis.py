"""Analyses of importance: saturation, likeness across domains, and their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from everlearn.diagnostics.analyses.importance import sections, tables
from everlearn.diagnostics.importance_maps import chance, kind_of_site, occupied_share
from everlearn.diagnostics.importance_similarity import compare_maps
from everlearn.diagnostics.pages.analysis import write_page
from everlearn.methods import Memory, build

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
    assert [table.header[0] for table in tables(found, None)] == ["While learning", "While learning"]


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
    page = write_page(tmp_path / "page.html", "a <run>", sections(MAPS, filled, alike)).read_text(encoding="utf-8")
    assert "a &lt;run&gt;" in page
    assert page.count("<script>") == 1
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "heads, after general: each head" in page
    assert "neurons, after first: quantiles over the units of a layer" in page
    titles = [table.title for table in tables(filled, alike)]
    assert all(title in page for title in titles)
    assert len(titles) == 4
    assert len(tables(filled, None)) == 2
