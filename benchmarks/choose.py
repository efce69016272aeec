"""Choose what single rows of a suite's table have of their own, each with the same number of trials.

    python benchmarks/choose.py TRIALS.yaml --data DATA [--rows a,b] [--domains c,d] [--output TUNED.yaml]

TRIALS.yaml names a suite, a settings file, the domains that are chosen on (in this order), a seed that no table has,
and for each row the keys and values that are tried, the published one among them:

    suite: standard-cl
    settings: small.yaml
    domains: [dbpedia, amazon]
    seed: 99
    rows:
      lora: {train.learning_rate: [1.0e-3, 3.0e-3, 1.0e-2]}
      lora+migu: {like: lora, method.migu.threshold: [0.4, 0.7, 0.9]}

`like` begins with what was chosen for another row. Scores are of development examples (``dev``), never of those that
the tables are made of. Chosen is the value with the highest accuracy at the end; with `within: 0.02`, of the values
whose accuracy is at most that much below the best of plain training, the one after which general text has drifted
least (of several, and where there is none, the most accurate). Every trial is written down beside the choice, in
TUNED.json; TUNED.yaml is the settings file with the choices as `grid.rows`. A trial that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from everlearn import files
from everlearn.comparison.runs import Run
from everlearn.errors import EverlearnError, RecipeError, did_you_mean, first_line
from everlearn.evaluation.results import GridCell
from everlearn.grid.identity import where_differ
from everlearn.grid.numbers import numbers
from everlearn.grid.rows import entry_of
from everlearn.grid.runs import Job, RunFactory
from everlearn.methods.sequential import PLAIN
from everlearn.model.loading import quiet
from everlearn_bench.suites import find_suite, read_overlay

KEYS = ("suite", "settings", "domains", "seed", "rows")
SHOWN = ("accuracy", "accuracy_learnt", "accuracy_forgetting", "bits_drift")


def development(recipe: dict[str, Any]) -> dict[str, str]:
    """Changes that make end tasks measure the part beside their test part that is held out of the training part."""
    return {f"end_tasks.{t['name']}.test": str(Path(t["test"]).with_name("dev.jsonl")) for t in recipe["end_tasks"]}


def read_plan(place: Path) -> dict[str, Any]:
    """What TRIALS.yaml says.

    Raises:
        RecipeError: it is not there, no YAML, lacks a key, or a row is `like` one that does not come before it.
    """
    try:
        settings = yaml.safe_load(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{place} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{place} is no YAML: {first_line(error)}.") from None
    missing = [key for key in KEYS if not isinstance(settings, dict) or not settings.get(key)]
    if missing:
        raise RecipeError(f"{place} has no `{missing[0]}`; it takes {', '.join(KEYS)}.")
    known: list[str] = []
    for row, tries in settings["rows"].items():
        if not isinstance(tries, dict) or not all(
            isinstance(values, list) or key == "like" for key, values in tries.items()
        ):
            raise RecipeError(f"{place}, `rows.{row}`: keys and lists of values to try (got {tries!r}).")
        if "like" in tries and tries["like"] not in known:
            raise RecipeError(f"{place}, `rows.{row}.like`: '{tries['like']}' is no row before it.")
        known.append(row)
    return dict(settings)


class Trials:
    """What TRIALS.yaml asks for, and what is known of it."""

    def __init__(self, place: Path, data: Path, output: Path, runs: Path, domains: Sequence[str] = ()) -> None:
        self.plan = read_plan(place)
        self.settings_file = place.parent / self.plan["settings"]
        overlay = read_overlay(self.settings_file)
        self.suite = find_suite(self.plan["suite"]).on(overlay, data)
        self.bench = RunFactory(self.suite, runs)
        self.domains = tuple(domains or self.plan["domains"])
        plain = self.bench.plain()
        self.changes = development(
            self.suite.recipe(plain.domains, method=plain.methods, seed=0, name="x", folder=runs)
        )
        self.output, self.log = output, output.with_suffix(".json")
        shared = {key: value for key, value in overlay.recipe.items() if key != "model"}
        grid = overlay.grid.model_dump(mode="json", exclude={"rows"}, exclude_defaults=True)
        self.made_of = {
            "seed": self.plan["seed"],
            "domains": list(self.domains),
            "suite": self.suite.name,
            "suite_keys": dict(overlay.suite),
            "grid": grid,
            "recipe": shared,
        }
        self.results: dict[str, Any] = self.known()

    def known(self) -> dict[str, Any]:
        """Trials that are there.

        Raises:
            RecipeError: they were made with other settings.
        """
        if not self.log.is_file():
            return {}
        kept = files.read_json(self.log)
        for key in sorted({*kept["made_of"], *self.made_of}):
            there, here = kept["made_of"].get(key), self.made_of.get(key)
            if there != here:
                key, there, here = where_differ(key, there, here)
                raise RecipeError(
                    f"{self.log} holds trials with `{key}` {there!r}; here it is {here!r}. Name another --output and "
                    "other --runs, or remove both."
                )
        return dict(kept["rows"])

    def keep(self) -> None:
        """Write down what is known."""
        files.write_json(self.log, {"made_of": self.made_of, "rows": self.results})

    def measured(self, row: str, own: dict[str, Any]) -> dict[str, float]:
        """Numbers of one trial."""
        entry = entry_of(row, self.suite)
        label = "-".join([row, *(f"{key.split('.')[-1]}={value}" for key, value in own.items())])
        changes = {**entry.changes, **self.settings.rows.get(row, {}), **own, **self.changes}
        methods = tuple(self.settings.spec(method["name"]) | method for method in entry.methods)
        job = Job(min(self.suite.orders), self.plan["seed"], self.domains, methods, changes)
        results, facts = entry.make(self.bench, job, self.bench.runs / label)
        own = GridCell(
            suite=self.suite.name, row=row, title=entry.title, order=job.order, seed=job.seed, settings={}, **facts
        )
        run = Run(label, entry.title, results.model_copy(update={"grid": own}).model_dump(mode="json"))
        return {name: round(value, 5) for name, value in numbers(run).items() if name in SHOWN}

    @property
    def settings(self) -> Any:
        """What all trials share."""
        return self.bench.settings

    def row(self, row: str) -> None:
        """Try the values of a row, one key after the other, and choose."""
        if row not in self.plan["rows"]:
            raise RecipeError(f"`--rows`: there is no row '{row}'.{did_you_mean(row, self.plan['rows'])}")
        tries = dict(self.plan["rows"][row])
        like = tries.pop("like", None)
        if like and "chosen" not in self.results.get(like, {}):
            raise RecipeError(f"`--rows`: '{row}' begins with what was chosen for '{like}'. Choose that first.")
        chosen = dict(self.results[like]["chosen"]) if like else {}
        trials = self.results.setdefault(row, {"trials": []})["trials"]
        for key, values in tries.items():
            tried = []
            for value in values:
                own = chosen | {key: value}
                known = next((trial for trial in trials if trial["changes"] == own), None)
                if known is None:
                    known = {"changes": own, **self.measured(row, own)}
                    trials.append(known)
                    self.keep()
                    print(row, json.dumps(known), flush=True)
                tried.append(known)
            chosen[key] = self.best(tried)["changes"][key]
        self.results[row]["chosen"] = chosen
        self.keep()

    def best(self, tried: list[dict[str, Any]]) -> dict[str, Any]:
        """The trial to take."""
        within = self.plan.get("within")
        good: list[dict[str, Any]] = []
        if within is not None and PLAIN in self.results:
            least = max(trial["accuracy"] for trial in self.results[PLAIN]["trials"]) - within
            good = [trial for trial in tried if trial["accuracy"] >= least]
        return min(good, key=lambda trial: trial["bits_drift"]) if good else max(tried, key=lambda t: t["accuracy"])

    def write(self) -> None:
        """The settings file with what was chosen."""
        raw = yaml.safe_load(self.settings_file.read_text())
        raw["model"] = os.path.relpath(self.suite.overlay.recipe["model"], self.output.parent)
        rows = raw.setdefault("grid", {}).setdefault("rows", {})
        for row, outcome in self.results.items():
            rows[row] = {**rows.get(row, {}), **outcome.get("chosen", {})}
        head = f"# Written by benchmarks/choose.py: {self.settings_file.name} with what was chosen for each row.\n"
        self.output.write_text(head + yaml.safe_dump(raw, sort_keys=False))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", help="Only these, with commas.")
    parser.add_argument("--domains", help="Choose on these, with commas, instead of the file's.")
    parser.add_argument("--output", type=Path, help="TUNED.yaml; beside TRIALS.yaml when left out.")
    parser.add_argument("--runs", type=Path, default=Path("runs/choose"))
    options = parser.parse_args(arguments)
    quiet()
    output = options.output or options.trials.with_name(f"{options.trials.stem}-tuned.yaml")
    try:
        domains = options.domains.split(",") if options.domains else ()
        trials = Trials(options.trials, options.data, output, options.runs, domains)
        for row in options.rows.split(",") if options.rows else trials.plan["rows"]:
            trials.row(row)
            trials.write()
    except EverlearnError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
