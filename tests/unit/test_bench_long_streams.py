"""Long streams on a grid's page: transfer by order and forgetting at equal gap, from cells made by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from everlearn.comparison.runs import Run
from everlearn.grid.page import GridPage
from everlearn_bench.suites import find_suite
from everlearn_bench.transfer_study.long_streams import LongStreams
from grid_cells import cell_of

COUNT = 12
M2D2 = find_suite("m2d2")
SIMILAR, RANDOM = "Fine-tuning, order 0 (similar)", "Fine-tuning, order 11 (random-1)"


def streamed(order: int, seed: int, count: int = COUNT) -> Run:
    """Each domain is learnt by 1 + seed/10 bits per byte; a later stage costs 0.02, and 0.1 once the eighth is learnt.

    Before its own stage a domain gains 0.05, in order 11 (the first random one) 0.15.
    """
    names = [f"d{(number + 5 * (order > 0)) % count}" for number in range(count)]
    values = np.full((count + 1, count), 4.0)
    for place in range(count):
        values[1 : place + 1, place] -= 0.15 if order else 0.05
        for row in range(place + 1, count + 1):
            gap = row - place - 1
            values[row, place] = 3.0 - seed / 10 + 0.02 * gap + 0.1 * (gap > 0 and row >= 8)
    bits = {
        name: {"base": 4.0, "learnt": float(values[place + 1, place]), "final": float(values[-1, place])}
        for place, name in enumerate(names)
    }
    return cell_of(
        suite="m2d2", entry="sequential", title="Fine-tuning", order=order, seed=seed, domains=names,
        bits_per_byte=bits, matrix={"rows": ["base", *names], "columns": names, "values": values.tolist()},
        settings={"model": "small"},
    )  # fmt: skip


def alone(seed: int) -> Run:
    """0.7 bits per byte better than the base model, and a tenth a seed."""
    end = 3.3 - seed / 10
    bits = {f"d{number}": {"base": 4.0, "learnt": end, "final": end} for number in range(COUNT)}
    return cell_of(
        suite="m2d2", entry="separate", title="One model per domain", order=None, seed=seed, domains=list(bits),
        bits_per_byte=bits, settings={"model": "small"},
    )  # fmt: skip


CELLS = [*(streamed(order, seed) for order in (0, 11) for seed in range(3)), *map(alone, range(3))]


def test_transfer_has_a_row_for_each_order_and_one_of_models_alone() -> None:
    table, _ = LongStreams(M2D2, CELLS).tables()
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    assert list(rows) == [
        "Fine-tuning, order 0 (similar)",
        "Fine-tuning, order 11 (random-1)",
        "One model per domain (DAPT)",
    ]
    fg = sum(0.02 * (COUNT - 1 - place) + 0.1 for place in range(COUNT - 1)) / (COUNT - 1)
    lc = 1.1 - fg * (COUNT - 1) / COUNT
    backward = np.mean(
        [
            np.mean([1.1 - 0.02 * (row - place) - 0.1 * (row >= 8) for row in range(place + 1, COUNT + 1)])
            for place in range(1, COUNT)
        ]
    )
    # What is best of a domain is its own stage; the mean of later ones against it is backward less what was learnt.
    wanted = [1.1, 0.3, lc, fg, fg, backward, backward - 1.1]
    for label, forward in ((SIMILAR, 0.05), (RANDOM, 0.15)):
        assert rows[label] == [f"{value:+.3f}".replace("-", "\u2212") for value in (*wanted, forward)]
    assert rows["One model per domain (DAPT)"] == ["+0.800", *["–"] * 7]
    (_, first), *_ = table.rows
    assert first[0].detail
    assert first[1].detail == "(+0.300) [+0.300, +0.300]", "both sides differ by seed alike"


def test_forgetting_is_compared_at_equal_gap_and_over_all_orders() -> None:
    found = LongStreams(M2D2, CELLS)
    _, table = found.tables()
    rows = {name: [cell.text for cell in cells] for name, cells in table.rows}
    names = {name.rpartition(":")[0] for name in rows}
    assert names == {SIMILAR, RANDOM, "All 2 orders of Fine-tuning"}
    # Checkpoints 2 to 4, 5 to 7, 8 to 10, 11 and 12; the last two forget more.
    assert rows[f"{SIMILAR}: 5 to 7"][1] == "0.000"
    assert rows[f"{SIMILAR}: 11 to 12"][1] == "+0.100"
    assert rows["All 2 orders of Fine-tuning: 11 to 12"][2] == "+0.100", "with a term of each domain"
    plates = [plate for plate in found.plates() if "by the domains learnt since" in plate.caption]
    assert len(plates) == 3
    assert "bits/byte" in plates[0].svg


def test_the_score_matrix_is_the_mean_of_seeds() -> None:
    similar, random = list(LongStreams(M2D2, CELLS).plates())[:2]
    assert f"{SIMILAR}: bits/byte of each text after each domain, mean of 3 seeds" in similar.svg
    assert f"{RANDOM}: bits/byte" in random.svg
    own = re.findall(r'<td class="[^"]*own[^"]*">([\d.]+)</td>', similar.svg)
    assert own == ["2.900"] * COUNT, "3.0, 2.9 and 2.8"
    assert ">4.000</td>" in similar.svg, "the base model"


def test_a_matrix_of_many_domains_is_a_picture() -> None:
    first, _ = LongStreams(M2D2, [streamed(0, 1, count=24)]).plates()
    assert "data:image/png" in first.svg
    assert "25 × 24" in first.caption
    assert "seed 1" in first.caption


def test_without_seeds_in_common_nothing_stands_beside_models_alone() -> None:
    table, _ = LongStreams(M2D2, [streamed(0, 0), alone(1)]).tables()
    (_, cells), _ = table.rows
    assert [cell.text for cell in cells][:2] == ["+1.000", "–"]
    assert cells[0].detail == "(+1.000)", "one run has no interval"


def test_short_streams_have_none_of_it() -> None:
    short = [streamed(0, seed, count=6) for seed in range(2)]
    found = LongStreams(M2D2, short)
    assert not found
    assert found.tables() == list(found.plates()) == []
    assert "Transfer" not in GridPage(M2D2, short).markdown()


@pytest.mark.parametrize("writer", ["md", "html", "tex"])
def test_they_are_on_the_page_of_a_grid(writer: str) -> None:
    text = GridPage(M2D2, CELLS).written(writer)
    assert "Transfer" in text
    assert "Do later stages forget more?" in text
    if writer == "html":
        assert text.count("by the domains learnt since") >= 3
