"""``everlearn bench m2d2`` as a user types it: a corpus of three domains in two super-domains."""

from __future__ import annotations

import json

import pytest

import tiny
from cli_project import Project
from everlearn.evaluation import Results
from everlearn.grid import load_results
from grid_cells import cell_of, like, write

SETTINGS = """\
model: models
suite: {{samples: 5, order: {order}}}
data: {{block_size: 32}}
train: {{max_steps: 1, per_device_train_batch_size: 2, save_steps: 1, use_cpu: true}}
evaluation: {{blocks: 2}}
"""


def test_orders_by_name_and_what_results_say(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = everlearn.folder
    monkeypatch.setenv("EVERLEARN_CACHE", str(folder / "cache"))
    for seed, name in enumerate(("law/cases", "law/statutes", "health/notes")):
        (folder / "own" / name).mkdir(parents=True)
        for offset, part in enumerate(("train", "valid", "test")):
            text = "\n".join(tiny.texts(20, 10 * seed + offset, words=30))
            (folder / "own" / name / f"{part}.txt").write_text(text)
    (folder / "mine.txt").write_text("cases\nnotes\nstatutes\n")
    settings = SETTINGS.format(order="mine.txt").replace("models", str(everlearn.models / "llama"))
    (folder / "m2d2.yaml").write_text(settings)
    words = ("bench", "m2d2", "--methods", "sequential", "--seeds", "0", "--data", "own", "--settings", "m2d2.yaml")
    made = everlearn(*words, "--orders", "swapped,file", "--json")
    assert made.code == 0, made.err
    assert {cell["state"] for cell in json.loads(made.out)["cells"]} == {"done"}
    cells = {cell.grid.order: cell for cell in load_results(folder / "bench/m2d2")}
    assert cells[2].domains == ["cases", "notes", "statutes"]
    assert set(cells[1].domains[:2]) == {"cases", "statutes"}
    assert any(note.startswith("Order `file`: cases → notes → statutes") for note in cells[2].notes)
    results = Results.load(folder / "runs/bench-m2d2/sequential-order2-seed0/run")
    assert results.groups == {"cases": "law", "notes": "health", "statutes": "law"}
    page = (folder / "bench/m2d2/index.html").read_text()
    assert "2 (file): cases → notes → statutes" in page
    assert "What became of the text of the domains: " in made.err
    everlearn.fails(
        *words,
        "--orders",
        "0,similer",
        says=("`--orders` names 'similer', which is not an order", "Did you mean 'similar'"),
    )
    everlearn.fails(*words, "--orders", "foo", says=("names 'foo'", "Known: file, random-1,", "similar, swapped"))
    words = (*words[:3], "sequential,small", *words[4:])
    everlearn.fails(
        *words, says=("The row 'small' has a `model.path` of its own", "`grid: {rows: {small: {model.path: …}}}`")
    )


def test_shown_results_have_the_super_domains_of_the_data_that_is_named(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = everlearn.folder, [f"d{number}" for number in range(9)]
    monkeypatch.setenv("EVERLEARN_CACHE", str(folder / "cache"))
    for seed, name in enumerate((*names, "other")):
        place = folder / "own" / ("law" if seed < 4 else "health") / name
        place.mkdir(parents=True)
        for offset, part in enumerate(("train", "valid", "test")):
            (place / f"{part}.txt").write_text("\n".join(tiny.texts(8, 10 * seed + offset, words=30)))
    values = [[4.0 - (row > place) for place in range(9)] for row in range(10)]
    cell = cell_of(
        suite="m2d2", entry="sequential", title="Plain", order=2, seed=0, domains=names,
        bits_per_byte={name: {"base": 4.0, "learnt": 3.0, "final": 3.0} for name in names},
        matrix={"rows": ["base", *names], "columns": names, "values": values},
        settings={"suite": {"domains": names}},
    )  # fmt: skip
    write(folder / "bench/m2d2", cell)
    words = ("bench", "m2d2", "--show", "-o", "page.md")
    assert everlearn(*words).code == 0
    assert "by super-domain" not in (folder / "page.md").read_text()
    assert everlearn(*words, "--data", "own").code == 0
    page = (folder / "page.md").read_text()
    assert "| Plain, order 2 (file): law | 4 | +1.000 (+1.000) |" in page
    assert "| Plain, order 2 (file): health | 5 | +1.000 (+1.000) |" in page
    everlearn.fails(*words, "--data", "none", says=("`data` is 'none', and there is no such folder",))
    write(folder / "bench/m2d2", like(cell, settings={"suite": {"domains": names, "domain": "d0"}}))
    everlearn.fails(*words, "--data", "own", says=("Unknown key `suite.domain` in the settings",))
