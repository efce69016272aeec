"""Short titles of a grid's rows: what sets them apart, and never the same for two rows."""

from __future__ import annotations

from typing import Any

from everlearn.comparison.runs import Run
from everlearn.grid.row_labels import relabelled
from everlearn.methods import build
from grid_cells import cell_of


def row(name: str, said: str, changes: dict[str, Any] | None = None, title: str | None = None, **options: Any) -> Run:
    """Return the cell of a method, titled by the options that the user gave and the keys that the recipe changes."""
    method = build({"name": name, **options})
    full = " · ".join(
        [title or method.title + (f" ({said})" if said else ""), *(f"{k[6:]} {v}" for k, v in (changes or {}).items())]
    )
    found = cell_of(entry=full, title=full, order=0, seed=1, domains=["a"], bits_per_byte={})
    config = method.config.model_dump(mode="json")
    found.results["methods"] = [{"name": name, "title": method.title, "options": config}]
    found.results["grid"]["options"] = {**options, **(changes or {})}
    return Run(found.name, found.title, found.results)


def labels(*rows: Run) -> list[str]:
    found = relabelled(rows)
    assert [run.title for run in found] == [run.grid.title for run in found]
    assert [run.grid.row for run in found] == [run.grid.row for run in rows], "rows keep their names"
    return [run.title for run in found]


def test_options_are_named_where_rows_of_a_method_differ_in_them() -> None:
    one = row("mas", "strength 0.1, samples 16", strength=0.1, samples=16)
    other = row("mas", "strength 0.2, samples 16", strength=0.2, samples=16)
    assert labels(one, other) == ["MAS (strength 0.1)", "MAS (strength 0.2)"]
    assert labels(one, row("ewc", "strength 5", strength=5)) == ["MAS", "EWC"]


def test_a_key_of_the_recipe_is_named_where_any_rows_differ_in_it() -> None:
    low, high = ({"train.learning_rate": rate, "train.seed": 1} for rate in (1e-4, 3e-4))
    found = labels(row("sequential", "", low), row("sequential", "", high), row("mas", "samples 16", high, samples=16))
    assert found == [
        "Sequential · learning_rate 0.0001",
        "Sequential · learning_rate 0.0003",
        "MAS · learning_rate 0.0003",
    ]


def test_steps_of_equal_compute_are_named_only_where_nothing_else_tells_rows_apart() -> None:
    steps = [{"train.max_steps": count} for count in (40, 35, 30)]
    assert labels(row("sequential", ""), row("mas", "", steps[1])) == ["Sequential", "MAS"]
    found = labels(row("mas", "", steps[1]), row("mas", "", steps[2]), row("ewc", "", steps[0]))
    assert found == ["MAS · max_steps 35", "MAS · max_steps 30", "EWC"]


def test_nothing_is_named_that_the_title_does_not_name() -> None:
    rate = {"train.learning_rate": 0.01}
    published = row("migu", "")
    published.results["grid"]["options"] = rate
    assert labels(published, row("sequential", "")) == ["MIGU", "Sequential"]
    several = row("ewc", "exclude embeddings, head, samples 4", exclude=["embeddings", "head"], samples=4)
    other = row("ewc", "samples 4", samples=4)
    assert labels(several, other) == ["EWC (exclude embeddings, head)", "EWC"]


def test_a_title_of_its_own_stays_and_so_do_titles_that_would_be_the_same() -> None:
    own = row("mas", "", title="MAS of the paper")
    assert labels(own, row("ewc", "samples 4", samples=4)) == ["MAS of the paper", "EWC"]
    twice = [row("ewc", f"samples {count}", samples=4) for count in ("4", "four")]
    assert labels(*twice) == ["EWC (samples 4)", "EWC (samples four)"]
