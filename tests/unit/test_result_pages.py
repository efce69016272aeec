"""Pages of the documentation against cells, tables and what is tried."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import data_shapes_page
from everlearn.evaluation import METRICS, Cell, percentiles, resample
from everlearn.grid.archive import KeptCell, find_cells
from everlearn.merging import MERGE_METHODS

ROOT = Path(__file__).parents[2]
PLAIN, GENERAL = "sequential", "general"
PARTS = {
    "results": "# Small rows",
    "answers-results": "## Prompts and answers",
    "general-results": "## With a general text",
    "released-results": "## As released, with importance on 192 rows",
    "das-results": "## DAS as released, on a masked model",
    "slow-results": "## RecAdam as released, at its own rate",
    "encoder-results": "## Lifelong-MoE on a masked model",
    "decoder-writes-results": "## LFPT5 on a decoder",
    "written-results": "## What LFPT5 writes with an encoder-decoder",
}
"""Folder of cells → the heading of its part of the page."""


@dataclass(frozen=True)
class Scores:
    """What a row did, in bits per byte."""

    title: str
    average: float
    learnt: float | None
    forgotten: float | None
    gained: float | None


@cache
def scores(folder: str) -> Mapping[str, Scores]:
    """Return the scores of every cell of a folder by the name of its row."""
    cells = [cell.value for cell in find_cells(ROOT / "benchmarks" / "small-rows" / folder).values()]
    return {cell["grid"]["row"]: of(cell) for cell in cells}


def of(cell: dict[str, Any]) -> Scores:
    """Return the scores of a cell from its matrix of measurements, rather than from what it sums up itself."""
    matrix = cell["matrices"]["bits_per_byte"]
    value = {(row, column): mean for row, column, mean, *_ in matrix["cells"]}
    rows, columns = matrix["rows"], [name for name in matrix["columns"] if name != GENERAL]
    learnt_at = matrix.get("learnt_at", dict(zip(columns, columns, strict=True)))
    in_turn = "learnt_at" not in matrix and rows == ["base", *columns]
    known = all(learnt_at.values())
    return Scores(
        cell["grid"]["title"],
        fmean(value[rows[-1], column] for column in columns),
        fmean(value["base", c] - value[learnt_at[c], c] for c in columns) if known else None,
        value[rows[-1], columns[0]] - value[columns[0], columns[0]] if in_turn else None,
        value["base", GENERAL] - value[rows[-1], GENERAL] if (rows[-1], GENERAL) in value else None,
    )


def part(folder: str) -> str:
    """Return the part of the page about a folder's cells."""
    page = (ROOT / "docs/results/small-rows.md").read_text(encoding="utf-8")
    return next(text for text in re.split(r"(?m)^(?=##? )", page) if text.startswith(f"{PARTS[folder]}\n"))


def written(value: float | None, sign: str) -> str:
    """Return a number as tables have it."""
    if value is None:
        return "–"
    return f"{value:{sign}.4f}".replace("-", "−") if round(value, 4) else "0.0000"


@pytest.mark.parametrize("folder", PARTS)
def test_the_table_has_every_cell_and_its_numbers(folder: str) -> None:
    table = re.search(r"### Held-out text.*?\n\n(.*?)\n\n", part(folder), re.DOTALL)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]
    shown = {title: numbers[:3] for title, *numbers in rows}
    expected = {
        each.title.removesuffix(" (samples 192)"): [
            written(each.average, ""),
            written(each.learnt, "+"),
            written(each.forgotten, "+"),
        ]
        for each in scores(folder).values()
    }
    assert shown == expected


def test_the_protocol_of_pretraining_has_the_numbers_of_its_cell() -> None:
    (found,) = find_cells(ROOT / "benchmarks/small-rows/pretraining-results").values()
    page = (ROOT / "docs/results/small-rows.md").read_text(encoding="utf-8")
    scored = {(row, task): each for row, task, *each in found.value["matrices"]["accuracy"]["cells"]}
    tasks, rows = found.value["matrices"]["accuracy"]["columns"], ["base", "sympy", "networkx", "pandas"]
    for task in tasks:
        numbers = [scored[row, task][0] for row in rows]
        assert f"| {task} | {' | '.join(f'{100 * number:.1f}' for number in numbers)} |" in page
        assert all(high - low > max(numbers) - min(numbers) for _, low, high in (scored[row, task] for row in rows))
    bits = {(row, column): mean for row, column, mean, *_ in found.value["matrices"]["bits_per_byte"]["cells"]}
    gained = fmean(bits["base", domain] - bits[domain, domain] for domain in rows[1:])
    lost = fmean(bits["pandas", domain] - bits[domain, domain] for domain in rows[1:3])
    assert f"a domain gains {gained:.3f} bits per byte, and earlier ones lose {lost:.3f}" in page


def sentences() -> Iterator[tuple[str, str]]:
    """Yield the folder and the words of every statement of the page that has a number or a comparison."""
    rows, answers = scores("results"), scores("answers-results")
    general, released = scores("general-results"), scores("released-results")
    plain, asked = rows[PLAIN], answers[PLAIN]

    def kept(name: str, rows: Mapping[str, Scores] = rows) -> str:
        return f"{100 * learnt(rows[name]) / learnt(rows[PLAIN]):.0f}"

    def left(name: str) -> str:
        return f"{100 * forgotten(answers[name]) / forgotten(asked):.0f} %"

    yield "results", f"**Plain training** learns {learnt(plain):.2f} bits per byte and forgets nothing"
    yield "results", f"helps that of sympy (−{-forgotten(plain):.2f})"
    yield "results", f"**Lifelong-MoE** {kept('lifelong_moe')} % of it"
    yield "results", f"keeps the model from learning ({kept('kd_representations')} %)"
    yield "results", f"it learns {kept('kd_contrast')} and {kept('kd_seed')} %"
    yield "results", f"**AdapterCL** learns {kept('adapter_cl')} %"
    yield "results", f"**logit distillation** ({kept('kd_logits')} %), **running averages** ({kept('model_average')} %)"
    yield "results", f"**Reptile** ({kept('reptile')} %) and **WiSE-FT** ({kept('wise_ft')} %) learn less"
    yield "results", f"**The infinite schedule** learns {kept('infinite_schedule')} %"
    yield "results", f"**MoCL** and **Progressive Prompts** learn {kept('mocl_by_domain')} and"
    yield "results", f"and {kept('progressive_prompts_by_domain')} % where the domain of a text is known at test"
    yield "results", f"**self-generated replay** {kept('replay_generated')} %"
    yield "results", f"**Distillation as released** learns {kept('kd_released')} %"
    yield "results", f"reads the domains {-learnt(rows['side_tuning_released']):.2f} bits per byte worse than the base"
    yield "results", f"**Compositional modules** learn {kept('compositional_modules')} %."
    yield "results", f"reads sympy {-forgotten(rows['compositional_modules']):.2f} bits per byte"
    yield "results", f"**PiSSA**, which trains the principal components of each weight alone, learns {kept('pissa')} %."
    yield "results", f"**InfLoRA** learns {kept('inf_lora')} %, O-LoRA with squares {kept('o_lora_squared')} %."
    yield "results", f"changes the score of the first by {abs(forgotten(rows['inf_lora'])):.3f}."
    yield "answers-results", f"forgets {forgotten(asked):.2f} of the {learnt(asked):.2f} bits per byte"
    yield "answers-results", f"**Replay of 2 %** leaves {left('replay_sample')} of this forgetting"
    yield "answers-results", f"one after another) {left('siatl')}."
    yield "answers-results", f"learns {kept('ulmfit_classifier_released', answers)} %, and the second task"
    yield "answers-results", f"the first (by {-forgotten(answers['ulmfit_classifier_released']):.2f} bits per byte)"
    yield "general-results", f"plain training helps it too ({gained(general[PLAIN]):.2f} bits per byte)"
    yield "general-results", f"learns {kept('sparse_memory', general)} % of what plain training does"
    yield "general-results", f"helps the general text by {gained(general['sparse_memory']):.2f} bits per byte"
    yield "general-results", f"**LoRA-Null-v2** learns {kept('lora_null_v2', general)} %"
    yield "general-results", f"changes its score by {gained(general['lora_null_v2']):.3f}."
    theirs, ours, alone = (released[name] for name in ("ewc_released-samples192", "ewc-samples192", PLAIN))
    better = alone.average - theirs.average
    yield "released-results", f"learns {kept('ewc_released-samples192', released)} % and then is {better:.3f} bits"
    better = alone.average - ours.average
    yield "released-results", f"**EWC** {kept('ewc-samples192', released)} % and {better:.3f}."
    yield "released-results", f"differ by {abs(theirs.average - ours.average):.3f} at the end"
    das, masked = scores("das-results"), scores("das-results")[PLAIN]
    yield "das-results", f"nothing here ({learnt(masked):.2f} bits per byte) and forgets {forgotten(masked):.2f}."
    own, published = das["das-samples192"], das["das_released-samples192"]
    yield "das-results", f"**DAS** learns {learnt(own):.2f} and forgets {forgotten(own):.2f}."
    ends = f"ends {published.average - masked.average:.3f} worse"
    yield "das-results", f"learns {learnt(published):.2f}, forgets {forgotten(published):.2f} and {ends}"
    plain, experts = (scores("encoder-results")[name] for name in (PLAIN, "lifelong_moe"))
    yield "encoder-results", f"learns {learnt(plain):.2f} bits per byte and forgets {forgotten(plain):.2f}"
    kept_of, left_of = learnt(experts) / learnt(plain), forgotten(experts) / forgotten(plain)
    yield "encoder-results", f"{100 * kept_of:.0f} % of it and forgets {forgotten(experts):.2f}, {100 * left_of:.0f} %"
    yield "encoder-results", f"ends {plain.average - experts.average:.3f} better"
    replayed, without = (scores("decoder-writes-results")[name] for name in ("lfpt5", "lfpt5-pseudo0-divergence0"))
    ends = f"ends {replayed.average - without.average:.3f} worse"
    share = 100 * learnt(replayed) / learnt(without)
    yield "decoder-writes-results", f"learns {share:.0f} % of what it learns without, and {ends}"
    helps = f"by {-forgotten(replayed):.3f} bits per byte, without by {-forgotten(without):.3f}"
    yield "decoder-writes-results", f"with replay less ({helps})"
    yield "decoder-writes-results", f"The prompt learns {learnt(without):.2f} bits per byte at most"
    published, more = (scores("written-results")[name] for name in ("lfpt5-lm0.25", "lfpt5-lm25"))
    assert forgotten(more) > 2 * forgotten(published)
    yield "written-results", f"the prompt learns {100 * learnt(more) / learnt(published):.0f} %"
    slow = scores("slow-results")
    alone_slowly, recadam = slow[PLAIN], slow["recadam_released"]
    helps = f"and networkx helps sympy ({forgotten(alone_slowly):.2f})".replace("-", "−")
    yield "slow-results", f"learns {learnt(alone_slowly):.2f} bits per byte, {helps}"
    helps = f"and networkx helps sympy less ({forgotten(recadam):.2f})".replace("-", "−")
    ends = f"It ends {recadam.average - alone_slowly.average:.3f} worse"
    yield "slow-results", f"learns {kept('recadam_released', slow)} % of it, {helps}. {ends}"
    for row in (theirs, ours):
        helped = f"by {-forgotten(row):.2f} bits per byte, plain training {-forgotten(alone):.2f})"
        yield "released-results", f"networkx helps sympy more ({helped}"


def test_lfpt5_wrote_what_the_page_says() -> None:
    text = " ".join(part("written-results").split())
    cells = [cell.value for cell in find_cells(ROOT / "benchmarks/small-rows/written-results").values()]
    for name, cell in ((cell["grid"]["row"], cell) for cell in cells):
        (note,) = [note for note in cell["notes"] if "'lfpt5'" in note]
        found = re.search(r"of 64 .* only 0 .* have ([\d.]+) tokens on average; (\d) ran to", note)
        assert found is not None, name
        assert f"They have {found[1]} tokens on average" in text
        assert {"lfpt5-lm0.25": "0", "lfpt5-lm25": "8"}[name] == found[2]


def test_reading_comprehension_has_the_numbers_of_its_cells() -> None:
    page = " ".join((ROOT / "docs/results/reading.md").read_text(encoding="utf-8").split())
    found = [cell.value for cell in find_cells(ROOT / "benchmarks/reading/results").values()]
    rows = {cell["grid"]["row"]: of(cell) for cell in found}
    fast, slow = (rows[f"sequential-learning_rate{rate}"] for rate in ("0.0003", "0.0001"))
    kept = rows["forget_me_not-samples64"]
    assert len(rows) == 3
    for cell, row in zip(found, rows.values(), strict=True):
        title = row.title.removesuffix(" (samples 64)")
        numbers = written(row.average, ""), written(learnt(row), "+"), "–", written(-gained(row), "+")
        assert f"| {title} | {' | '.join(numbers)} |" in page
        accuracy = {(at, task): scored for at, task, *scored in cell["matrices"]["choice_accuracy"]["cells"]}
        for at, name in (("base", "The source model"), ("pubmed", title)):
            shown = (accuracy[at, f"{task}-questions"] for task in ("pubmed", "books"))
            cells = (f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]" for mean, low, high in shown)
            assert f"| {name} | {' | '.join(cells)} |" in page
    assert f"learns {learnt(fast):.3f} bits per byte of the target and loses {-gained(fast):.3f} of the source" in page
    assert f"learns {learnt(kept):.3f} and loses {-gained(kept):.3f}, half as much" in page
    assert f"learns {learnt(slow):.3f} and loses nothing of the source in bits (−{gained(slow):.3f})" in page


def learnt(row: Scores) -> float:
    """Return what a row that learns domains in turn learnt."""
    assert row.learnt is not None
    return row.learnt


def gained(row: Scores) -> float:
    """Return what a row that was measured on general text learnt of it."""
    assert row.gained is not None
    return row.gained


def forgotten(row: Scores) -> float:
    """Return what a row that learns domains in turn forgot."""
    assert row.forgotten is not None
    return row.forgotten


@pytest.mark.parametrize(("folder", "words"), list(sentences()))
def test_sentences_have_the_numbers_of_the_cells(folder: str, words: str) -> None:
    assert words.replace("-0.", "−0.") in " ".join(part(folder).split())


def test_what_the_page_calls_plain_training_is_plain_training() -> None:
    rows = scores("results")
    for name in ("selective_init", "forever", "reptile_released"):
        assert replace(rows[name], title="") == replace(rows[PLAIN], title="")
    assert replace(rows["stream_schedule"], title="") == replace(rows["infinite_schedule"], title="")
    assert all(rows[name].average < rows[PLAIN].average for name in ("replay", "replay_sample", "pool", "ewc_separate"))
    assert rows["elle"].average == pytest.approx(rows[PLAIN].average, abs=0.002)
    assert rows["separate"].average > rows[PLAIN].average
    assert rows["ensemble"].average > rows["separate"].average


def test_continual_t0_forgets_as_much_as_plain_training() -> None:
    rows = scores("answers-results")
    assert forgotten(rows["continual_t0"]) == pytest.approx(forgotten(rows[PLAIN]), rel=0.01)


def test_the_curves_of_the_threshold_and_of_the_rate_are_those_of_their_cells() -> None:
    page = (ROOT / "docs/results/small-rows.md").read_text(encoding="utf-8")
    text = page.partition("## MIGU's threshold")[2].partition("\n## ")[0]
    words = " ".join(text.split())
    curves = {}
    for name in ("full", "rates", "lora"):
        points = {}
        for own in (
            cell.value for cell in find_cells(ROOT / f"benchmarks/small-rows/threshold-results/{name}").values()
        ):
            value = own["grid"]["options"].get("domains.pandas.train.learning_rate", 1e-3)
            for method in own["methods"]:
                value = method["options"].get("threshold", value)
            new, old = (
                bits(own, "pandas", "base") - bits(own, "pandas"),
                bits(own, "torch") - bits(own, "torch", "torch"),
            )
            points[value] = (new, old, of(own).average)
            assert "| {:g} | {:.4f} | {:.4f} | {:.4f} |".format(value, *points[value]) in text
        curves[name] = dict(sorted(points.items()))
    full, rates, lora = curves.values()
    thresholds = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]
    assert list(full) == list(lora) == thresholds
    for curve in (full, lora, dict(reversed(rates.items()))):
        falls = all(one[0] > two[0] and one[1] > two[1] for one, two in pairwise(curve.values()))
        assert falls, "learns less and forgets less"

    def shares(curve: dict[float, tuple[float, float, float]], threshold: float) -> list[float]:
        return [100 * number / whole for number, whole in zip(curve[threshold][:2], curve[0][:2], strict=True)]

    assert (
        "at the paper's 0.7, {:.0f} % of the learning and {:.0f} % of the forgetting".format(*shares(full, 0.7))
        in words
    )
    assert "at 0.99 {:.0f} % and {:.0f} %".format(*shares(full, 0.99)) in words
    assert (
        "at 0.7, {:.0f} % of the learning and {:.0f} % of the forgetting are left".format(*shares(lora, 0.7)) in words
    )
    best = {name: min(curve.items(), key=lambda point: point[1][2]) for name, curve in curves.items()}
    assert f"best at {best['full'][0]:g}." in words
    assert f"best at {best['lora'][0]:g}, and" in words
    assert "at 3.5e-4 learns {:.3f} and forgets {:.3f}, MIGU at".format(*rates[3.5e-4]) in words
    assert "MIGU at 0.8 learns {:.3f} and forgets {:.3f}.".format(*full[0.8]) in words
    assert f"average at the end is {best['rates'][1][2]:.3f}, MIGU's {best['full'][1][2]:.3f}" in words
    assert full[0][1] == pytest.approx(forgotten(scores("answers-results")[PLAIN])), "0 is plain training"
    assert rates[1e-3] == pytest.approx(full[0])


def test_numbers_about_the_analyses_stand_in_their_tables() -> None:
    page = (ROOT / "docs/results/analyses.md").read_text(encoding="utf-8")
    text, heading, tables = page.partition("\n## ")
    statements = text[text.index("* **Codelength**") :]
    numbers = re.findall(r"\d+\.\d{2,}|\d+ %", statements)
    assert len(numbers) >= 20
    for number in numbers:
        assert f" {number}" in tables or number == "30 %"


def test_numbers_about_merging_stand_in_its_table() -> None:
    text, table = (ROOT / "docs/results/merging.md").read_text(encoding="utf-8").split("<!-- measured -->")
    rows = {line.split(" | ")[0].strip("| "): line for line in table.splitlines() if re.search(r"\d", line)}
    gains = {row: float(line.rstrip(" |").rpartition(" ")[2]) for row, line in rows.items()}
    last = gains.pop("after restaurants")
    for number in re.findall(r"\d\.\d{3}", text):
        assert number in table
    merges = sorted(gain for row, gain in gains.items() if "of the stages" in row)
    assert len(merges) == len(MERGE_METHODS)
    assert merges[:2] == [gains["DARE, 3 of the stages"], gains["TIES, 3 of the stages"]]
    assert last < merges[2] == 0.174
    assert merges[-1] == 0.211


def test_every_mutant_of_the_record_is_counted_and_every_survivor_named() -> None:
    page = (ROOT / "docs/results/mutation.md").read_text(encoding="utf-8")
    verdicts: dict[str, str] = {}
    for group in ("penalties", "evaluation"):
        verdicts |= json.loads((ROOT / f"benchmarks/mutation/{group}.json").read_text(encoding="utf-8"))
    files = [name.partition(".x")[0].removeprefix("everlearn.") for name in verdicts]
    noticed = Counter(file for file, verdict in zip(files, verdicts.values(), strict=True) if verdict == "noticed")
    for file, mutants in Counter(files).items():
        assert (ROOT / "src/everlearn" / f"{file.replace('.', '/')}.py").is_file()
        assert f"| `{file}` | {mutants} | {noticed[file]} | {mutants - noticed[file]} |" in page
    assert f"{len(verdicts)} mutants" in page
    assert f"{noticed.total()} were noticed" in page
    unnoticed = [name for name, verdict in verdicts.items() if verdict != "noticed"]
    assert len(unnoticed) < len(verdicts) / 5
    for name in unnoticed:
        assert f"`{name.removeprefix('everlearn.')}`" in page, "every survivor is named, with the reason"


def test_what_rounding_a_stage_costs_is_as_measured() -> None:
    found = json.loads((ROOT / "docs/results/stage-dtype.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    kept, rounded = (found["bits_per_byte"][name] for name in ("float32", "bfloat16"))
    assert f"{100 * found['returned_to_the_base']:.0f} % of the weights that had moved" in page
    assert f"were {100 * found['error_of_the_change']:.0f} % as large as all" in page
    assert found["model"] == "smollm2"
    assert f"(SmolLM2-135M, {found['steps']} steps\nat a learning rate of 5e-5)" in page
    assert found["learning_rate"] == 5e-5
    assert f"{rounded['german'] - kept['german']:.4f} bits" in page
    assert abs(rounded["general"] - kept["general"]) < 5e-5


# -- M2D2 at a twentieth of the text -----------------------------------------------------------------------------------


def shown_of(cell: dict[str, Any]) -> list[str]:
    """Return the numbers of a row of the table, from the cell's matrix alone."""
    domains, last = cell["domains"], cell["domains"][-1]

    forward = [fmean(bits(cell, c, "base") - bits(cell, c, r) for r in domains[:i]) for i, c in enumerate(domains) if i]
    changes = (
        fmean(bits(cell, c, "base") - bits(cell, c, c) for c in domains),
        fmean(bits(cell, c, last) - bits(cell, c, c) for c in domains[:-1]),
        fmean(bits(cell, c, "base") - bits(cell, c, last) for c in domains),
        fmean(forward),
        bits(cell, GENERAL, last) - bits(cell, GENERAL, "base"),
    )
    return [f"{fmean(bits(cell, c, 'base') for c in domains):.3f}", *(f"{x:+.3f}".replace("-", "−") for x in changes)]


def test_the_cells_of_m2d2_at_a_twentieth_are_rows_and_sentences_of_the_page() -> None:
    text = (ROOT / "docs/results/m2d2.md").read_text(encoding="utf-8").partition("## At a twentieth of the text")[2]
    said, _, table = text.partition("\n### ")
    words = " ".join(said.split())
    titles = {0: "similar order", 1: "super-domains swapped", 11: "random order 1", 12: "random order 2"}
    causal = {cell.value["grid"]["order"]: shown_of(cell.value) for cell in cells_of_m2d2("causal")}
    others = {title: shown_of(next(iter(cells_of_m2d2(folder))).value) for folder, title in OTHER_CELLS.items()}
    rows = {titles[order]: row for order, row in sorted(causal.items())} | {
        f"{title}, similar order": row for title, row in others.items()
    }
    assert [f"| {title} | {' | '.join(row)} |" for title, row in rows.items()] == table.splitlines()[4:-2]
    similar, swapped, one, two = ([each.lstrip("+−") for each in causal[order]] for order in titles)
    assert f"({swapped[1]} instead of {similar[1]})" in words
    assert f"({swapped[2]} instead of {similar[2]})" in words
    assert f"has gained {swapped[3]} instead of {similar[3]}" in words
    assert f"a domain has gained {swapped[4]}, and lost {similar[4]} in the similar order" in words
    assert f"learn {one[1]} and {two[1]}, and forget {one[2]} and {two[2]}: one lies between" in words
    assert two[2] < similar[2] < one[2] < swapped[2]
    for title in ("32 rows a step", "2 rows a step"):
        learnt, lost, general = (others[title][place][1:] for place in (1, 2, 5))
        assert f"{learnt} is learnt and {lost} forgotten, and {general} of general text is lost" in words
        assert others[title][3][1:] < similar[3]
    unlike = others["three domains with a quarter of their documents"]
    assert f"{unlike[1][1:]} is learnt and {unlike[2][1:]} forgotten, from less text" in words
    widths = [others[f"{width} wide"] for width in (64, 128, 256)]
    parts = [f"{100 * float(row[2]) / float(row[1]):.0f} %" for row in widths]
    said_of_widths = f"({', '.join(row[1][1:] for row in widths)}) and the larger the part that it forgets again"
    assert f"{said_of_widths} ({', '.join(parts)})" in words
    for title in ("masked", "masked, the demo's encoder"):
        assert f"learns {others[title][1][1:]} and forgets {others[title][2][1:]}" in words


OTHER_CELLS = {
    "batch-32": "32 rows a step",
    "batch-2": "2 rows a step",
    "unlike": "three domains with a quarter of their documents",
    "width-64": "64 wide",
    "width-128": "128 wide",
    "width-256": "256 wide",
    "masked": "masked",
    "masked-docs": "masked, the demo's encoder",
}
"""Folder of the cells of M2D2 in the similar order → how they differ."""


def cells_of_m2d2(folder: str) -> Iterable[KeptCell]:
    return find_cells(ROOT / "benchmarks/m2d2/tiny-results" / folder).values()


# -- BIG-bench between super-domains ----------------------------------------------------------------------------------


@cache
def asked() -> dict[str, Any]:
    """Return the cell of the run that is asked BIG-bench."""
    (found,) = find_cells(ROOT / "benchmarks/m2d2/big-bench-results").values()
    return found.value


def test_the_tables_of_big_bench_are_those_of_its_cell() -> None:
    page = (ROOT / "docs/results/big-bench.md").read_text(encoding="utf-8")
    for measure, digits, sign in (("normalised", 1, "+"), ("bits_per_byte", 4, "")):
        matrix = asked()["matrices"][measure]
        scored = {(row, column): value for row, column, value, *_ in matrix["cells"]}
        for column in matrix["columns"]:
            (line,) = re.findall(rf"(?m)^\| {re.escape(column).replace('_', '.{0,2}')} \|.*$", page)
            shown = [cell.strip().partition(" ")[0] for cell in line.strip("|").split("|")][1:]
            expected = [f"{scored[row, column]:{sign}.{digits}f}".replace("-", "−") for row in matrix["rows"]]
            assert shown[: len(expected)] == expected


def test_what_big_bench_lost_is_beyond_its_interval_where_the_page_says_so() -> None:
    page = " ".join((ROOT / "docs/results/big-bench.md").read_text(encoding="utf-8").split())
    drift = asked()["summary"]["normalised"]["general_drift"]
    beyond = {task for task, own in drift.items() if own["low"] > 0 or own["high"] < 0}
    assert len(drift) == 5
    assert not beyond
    assert "**No task changed by more than its interval**" in page
    widths = [own["high"] - own["low"] for own in drift.values()]
    assert f"which is {min(widths):.0f} to {max(widths):.0f} points wide" in page


def test_sentences_about_big_bench_have_the_numbers_of_the_cell() -> None:
    page = " ".join((ROOT / "docs/results/big-bench.md").read_text(encoding="utf-8").split())
    scored = {(row, task): own for row, task, *own in asked()["matrices"]["normalised"]["cells"]}
    rows = asked()["matrices"]["normalised"]["rows"]
    for task in ("physics", "cs_algorithms", "general_knowledge"):
        assert all(low < 0 < high for _, low, high in (scored[row, task] for row in rows))
    first, last = (scored[row, "arithmetic"] for row in (rows[0], rows[-1]))
    assert first[1] < 0 < first[2]
    assert last[2] < 0
    assert 40 * (0.1 + 0.9 * last[0] / 100) == pytest.approx(1)
    overlap = [scored[row, "few_shot_nlg"][0] for row in (rows[0], rows[-1])]
    assert "ROUGE-L of {:.1f} % and end with {:.1f} %".format(*overlap) in page
    learnt = [bits(asked(), text, before) - bits(asked(), text, text) for before, text in pairwise(rows)]
    assert "learnt by {:.2f}, {:.2f} and {:.2f} bits per byte".format(*learnt) in page
    assert all(bits(asked(), text) > bits(asked(), text, "base") for text in rows[1:3])
    assert f"general text by {bits(asked(), GENERAL) - bits(asked(), GENERAL, 'base'):.2f} worse" in page


def test_every_page_of_results_is_listed_in_a_table() -> None:
    text = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs/results").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in text
    for table in re.split(r"\n(?!\|)", text):
        if rows := table.splitlines()[1:]:
            assert len(rows) > 1, "a blank line ends a table"
            assert rows[1].startswith("|---")


# -- every shape of data on the page of supported data is tried --------------------------------------------------------


@pytest.mark.parametrize("shape", data_shapes_page.SHAPES)
def test_the_page_says_what_is_read(shape: str) -> None:
    assert data_shapes_page.row(shape) == data_shapes_page.committed()[shape]


def test_the_page_has_no_other_shapes() -> None:
    assert set(data_shapes_page.committed()) == set(data_shapes_page.SHAPES)


# -- the first look of benchmarks/glue: its README has the numbers of the cells beside it ------------------------------

PLACE = Path(__file__).parents[2] / "benchmarks" / "glue"


@pytest.mark.parametrize("task", ["sst-2", "qqp"])
def test_the_readme_has_the_numbers_of_its_cells(task: str) -> None:
    cell = Cell.load(PLACE / "heads" / f"{task}.safetensors")
    found = resample([cell], [METRICS["accuracy"]], seed=0)["accuracy"]
    (low,), (high,) = percentiles(found.samples)
    constant = np.bincount(cell["truth"]).max() / len(cell)
    shown = f"| {task} | {100 * found.values[0]:.1f} [{100 * low:.1f}, {100 * high:.1f}] | {100 * constant:.1f} |"
    assert shown in (PLACE / "README.md").read_text(encoding="utf-8")
    assert low > constant


# -- docs/results/scenarios.md against its cells and its record: tables, pictures, and every number of its sentences ---

RESULTS = ROOT / "docs/results"
CONSTANT = "sequential-lr_scheduler_typeconstant-warmup_steps0-learning_rate0.0001"
ROWS = {
    "base model": "none",
    "base → A, base → B": "separate",
    "A → B": "sequential",
    "A → A + B": "cumulative",
    "A + B": "pool",
    "mean of the two of base → A, base → B": "merged",
    "warm-up and cosine in each domain": "sequential",
    "cosine in each domain, no warm-up": "sequential-warmup_steps0",
    "warm-up in the first domain, then constant at a tenth": "infinite_schedule",
    "constant at a tenth, no warm-up": CONSTANT,
}
"""What the page calls a row → its name in the cells."""


@cache
def cells() -> Mapping[str, list[dict[str, Any]]]:
    """Return the cells of each row, by seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    every = [cell.value for cell in find_cells(ROOT / "benchmarks/scenarios/results").values()]
    for cell in sorted(every, key=lambda each: each["grid"]["seed"] or 0):
        found.setdefault(cell["grid"]["row"], []).append(cell)
    return found


def bits(cell: dict[str, Any], text: str, after: str | None = None) -> float:
    """Return the bits per byte of a text in the last row of a cell's matrix, or in another one."""
    matrix = cell["matrices"]["bits_per_byte"]
    row = after or matrix["rows"][-1]
    return next(value for own, column, value, *_ in matrix["cells"] if (own, column) == (row, text))


def end(row: str, text: str) -> list[float]:
    """Return the bits per byte at the end, by seed."""
    return [bits(cell, text) for cell in cells()[row]]


@cache
def record() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/scenarios/record.json").read_text(encoding="utf-8"))


@cache
def page() -> tuple[str, str]:
    """Return the text, as one line, and what was measured."""
    text, measured = (RESULTS / "scenarios.md").read_text(encoding="utf-8").split("<!-- measured -->")
    return " ".join(text.split()), measured


@pytest.mark.parametrize("title", ROWS)
def test_a_row_of_the_tables_has_the_numbers_of_its_cells(title: str) -> None:
    own = cells()[ROWS[title]]
    lines = [line for line in page()[1].splitlines() if line.startswith(f"| {title} |")]
    assert len(lines) == 1
    a, b, general = ([bits(cell, text) for cell in own] for text in ("papers", "restaurants", "general"))
    every = [a, b, [(x + y) / 2 for x, y in zip(a, b, strict=True)], general]
    shown = [part.strip() for part in lines[0].strip("| ").split(" | ")][2:]
    assert [part.split(" ")[0] for part in shown] == [f"{fmean(values):.3f}" for values in every]
    if len(own) > 1:
        assert [re.findall(r"\d\.\d{3}", part)[1:] for part in shown] == [[f"{v:.3f}" for v in vs] for vs in every]


def test_every_row_that_learns_reads_as_many_tokens() -> None:
    read = {cell["cost"]["tokens"] for row, own in cells().items() for cell in own if row != "none"}
    assert len(read) == 1
    assert set(cells()) == set(ROWS.values()), "every row that was begun is shown"


@pytest.mark.parametrize("text", ["papers", "restaurants", "general"])
def test_content_tokens_and_the_others_add_up_to_all(text: str) -> None:
    for seed, own in record()["content"].items():
        (cell,) = [each for each in cells()["sequential"] if str(each["seed"]) == seed]
        losses = {(row, column): v for row, column, v, *_ in cell["matrices"]["loss"]["cells"]}
        of_content = {(row, column): v for row, column, v, *_ in cell["matrices"]["content_loss"]["cells"]}
        labels = own[text]["labels"]
        for stage, nats in own[text]["nats"].items():
            assert sum(nats) / sum(labels) == pytest.approx(losses[stage, text])
            assert nats[0] / labels[0] == pytest.approx(of_content[stage, text])


@pytest.mark.parametrize("text", ["papers", "restaurants", "Wikipedia"])
def test_the_table_of_content_tokens_is_that_of_the_record(text: str) -> None:
    runs = [run["general" if text == "Wikipedia" else text] for run in record()["content"].values()]
    for kind, said in enumerate(("content tokens", "the others")):
        (line,) = [line for line in page()[1].splitlines() if line.startswith(f"| {text}, {said} |")]
        share, *losses = [part.strip() for part in line.strip("| ").split(" | ")][1:5]
        assert share == f"{100 * fmean(run['labels'][kind] / sum(run['labels']) for run in runs):.0f} %"
        for shown, stage in zip(losses, ("base", "papers", "restaurants"), strict=True):
            assert shown == f"{fmean(run['nats'][stage][kind] / run['labels'][kind] for run in runs):.3f}"


def test_the_violins_are_of_the_record() -> None:
    for number, (title, by_name) in enumerate(record()["rows"]["quantiles"].items(), 1):
        picture = (RESULTS / f"scenarios-{number}.svg").read_text(encoding="utf-8")
        assert f"![{title}: " in page()[1]
        for name, (low, median, high, _) in by_name.items():
            found = re.search(rf"{name}: median ([\d.]+), middle half ([\d.]+) to ([\d.]+)\.", picture)
            assert found is not None
            assert [float(each) for each in found.groups()] == pytest.approx([median, low, high], abs=0.006)


def test_numbers_of_the_sentences_stand_in_the_tables() -> None:
    text, measured = page()
    numbers = re.findall(r"\d\.\d{3}|\d\d %", text)
    assert len(numbers) > 25
    for number in numbers:
        assert f" {number} " in measured, number


def test_what_the_sentences_compare_is_so() -> None:
    """By the rule of the recipe: with both seeds, and by more than 0.01 bits per byte."""
    papers, restaurants, general = (
        {row: end(row, text) for row in cells()} for text in ("papers", "restaurants", "general")
    )
    both = {row: [(a + b) / 2 for a, b in zip(papers[row], restaurants[row], strict=True)] for row in cells()}
    papers["none"] *= 2  # one base model for both seeds

    def differ(of: Mapping[str, list[float]], smaller: str, larger: str) -> bool:
        pairs = list(zip(of[smaller], of[larger], strict=True))
        assert len(pairs) == 2
        return all(larger - smaller > 0.01 for smaller, larger in pairs)

    assert differ(papers, "none", "sequential")
    assert not differ(both, "separate", "pool")
    assert differ(papers, "cumulative", "sequential")
    assert differ(both, "cumulative", "sequential")
    assert differ(restaurants, "sequential", "cumulative")
    assert not differ(both, "merged", "sequential")
    assert not differ(both, "sequential", "merged")
    assert differ(general, "merged", "sequential")
    assert differ(both, "sequential-warmup_steps0", "sequential")
    assert differ(both, "sequential", CONSTANT)
    assert differ(restaurants, "sequential", CONSTANT)
    assert differ(papers, CONSTANT, "sequential")
    assert differ(general, CONSTANT, "sequential")
