"""The command line."""

from __future__ import annotations

import json
from pathlib import Path

from cli_project import Outcome, Project
from mistakes import Case, recipe, run

RUN = ("run", "recipe.yaml")
VALIDATE = ("validate", "recipe.yaml", "--json")
BOTH = [{"name": "das", "samples": 8}, "replay"]


def passed(project: Project, outcome: Outcome) -> None:
    assert json.loads(outcome.out)["ok"]


def page_at_home(project: Project, outcome: Outcome) -> None:
    assert (Path.home() / "page.html").is_file()
    assert not (project.folder / "~").exists()


CASES = [
    Case("mistypes a verb", command=("plna", "recipe.yaml"), says=("plna", "plan")),
    Case("mistypes an option", command=("methods", "--jsno"), says=("--jsno", "--json")),
    Case("forgets the recipe", command=("run",), says=("RECIPE",)),
    Case("mistypes the recipe's name", command=("run", "recip.yaml"), says=("recip.yaml", "recipe.yaml")),
    Case("writes an override without a value", command=(*RUN, "max_steps"), says=("max_steps", "key=value")),
    Case("puts spaces around the equals sign", command=(*RUN, "train.max_steps", "=", "3"), says=("key=value",)),
    Case(
        "writes an override with a space",
        command=(*RUN, "train.max_steps =3"),
        says=("train.max_steps =3", "key=value"),
    ),
    Case("writes an override that begins with a dot", command=(*RUN, ".seed=3"), says=("'.seed=3'", "key=value")),
    Case(
        "writes an override with two dots",
        command=(*RUN, "train..max_steps=3"),
        says=("train..max_steps=3", "key=value"),
    ),
    Case("writes an override without a key", command=(*RUN, "=3"), says=("'=3'", "key=value")),
    Case("writes an override as an option", command=(*RUN, "--train.max_steps=3"), says=("--train.max_steps",)),
    Case("mistypes an override", command=(*RUN, "evaluation.bloks=1"), says=("evaluation.bloks", "blocks")),
    Case(
        "mistypes the group of an override",
        command=(*RUN, "evalution.blocks=1"),
        says=("Unknown key `evalution`", "evaluation"),
    ),
    Case("overrides a key with nothing", command=(*RUN, "train.max_steps="), says=("train.max_steps", "None")),
    Case("gives an override twice", command=(*RUN, "run.seed=1", "run.seed=2"), says=("`run.seed` is given twice",)),
    Case(
        "gives one override in two ways",
        command=(*RUN, "domains.0.path=b.jsonl", "domains.a.path=c.jsonl"),
        says=("domains.a.path", "given twice"),
    ),
    Case("overrides a domain that is not there", command=(*RUN, "domains.z.path=a"), says=("domains.z.path", "'z'")),
    Case(
        "overrides the domain at a position that is not there",
        command=(*RUN, "domains.2.path=a"),
        says=("domains.2.path", "below 2"),
    ),
    Case("counts domains from the end", command=(*RUN, "domains.-1.path=a"), says=("domains.-1.path", "'-1'")),
    Case(
        "overrides something below a number",
        command=(*RUN, "train.max_steps.a=1"),
        says=("train.max_steps.a", "nothing below 4"),
    ),
    Case("leaves a brace of an override open", command=(*RUN, "method={name: das"), says=("method", "not valid YAML")),
    Case("gives an override in braces", command=(*RUN, "train={{x}}"), says=("train", "not valid YAML")),
    Case(
        "overrides with the text of several documents",
        command=(*RUN, "objective=--- a\n--- b"),
        says=("objective", "second document"),
    ),
    Case(
        "overrides an option of one of two methods without saying which",
        recipe("method", BOTH),
        (*RUN, "method.samples=9"),
        says=("method.samples", "below 2"),
    ),
    Case(
        "overrides a method's option at its position",
        recipe("method", ["das", "replay"]),
        (*VALIDATE, "method.0.samples=8"),
        code=0,
        works="DAS measures with 8 rows",
        check=passed,
    ),
    Case(
        "overrides a method's option by its name",
        recipe("method", ["das", "replay"]),
        (*VALIDATE, "method.das.samples=8"),
        code=0,
        works="DAS measures with 8 rows",
        check=passed,
    ),
    Case(
        "mistypes an option of a method in a list",
        recipe("method", ["das", "replay"]),
        (*RUN, "method.0.sample=8"),
        says=("'das'", "'sample'", "'samples'"),
    ),
    Case(
        "asks for a format that is not there", command=("report", "runs/none", "--format", "pdf"), says=("pdf", "html")
    ),
    Case(
        "writes a report as PDF",
        run,
        ("report", "runs/first", "-o", "x.pdf"),
        says=("`--output` is 'x.pdf'", ".html", "--format"),
    ),
    Case(
        "writes a report without an ending",
        run,
        ("report", "runs/first", "-o", "page"),
        says=("`--output` is 'page'", ".html"),
    ),
    Case(
        "asks for Markdown in a file of HTML",
        run,
        ("report", "runs/first", "-o", "x.html", "-f", "markdown"),
        says=("x.html", "markdown"),
    ),
    Case(
        "writes a report below a file",
        run,
        ("report", "runs/first", "-o", "a.jsonl/x.html"),
        says=("a.jsonl", "Not a directory"),
    ),
    Case(
        "writes a report to ~/page.html, which a shell leaves in --output=",
        run,
        ("report", "runs/first", "--output=~/page.html"),
        code=0,
        works="it is in the home folder",
        check=page_at_home,
        writes=("*/home/page.html",),
    ),
    Case(
        "writes a report to a user's home that is not there",
        run,
        ("report", "runs/first", "-o", "~nouser/x.html"),
        says=("~nouser", "no user 'nouser'"),
    ),
    Case("asks about a method that is not there", command=("methods", "ecw"), says=("ecw", "ewc")),
    Case("asks about two methods at once", command=("methods", "ewc", "das"), says=("das",)),
    Case(
        "starts from a recipe that is there already", command=("init", "a.jsonl"), says=("a.jsonl", "not overwritten")
    ),
    Case(
        "starts from a recipe below a file",
        command=("init", "a.jsonl/recipe.yaml"),
        says=("a.jsonl", "Not a directory"),
    ),
    Case("starts from a recipe with a name of 300 letters", command=("init", "x" * 300), says=("too long",)),
    Case("starts from a recipe in /proc", command=("init", "/proc/x.yaml"), says=("/proc", "No such file")),
    Case(
        "compares the blocks of less than no domain",
        command=("analyse", "importance", "runs/none", "--blocks", "-1"),
        says=("--blocks", "0"),
    ),
    Case(
        "asks for an analysis that is not there",
        command=("analyse", "distanec", "runs/none"),
        says=("distanec", "'distance'"),
    ),
    Case(
        "names data where a recipe belongs",
        command=("evaluate", "MODELS/roberta", "--on", "a.jsonl"),
        says=("'a.jsonl' is not valid YAML", "The recipe must be a YAML file."),
    ),
    Case("measures models on no recipe", command=("evaluate", "MODELS/roberta"), says=("--on",)),
    Case(
        "measures a model that is not there", command=("evaluate", "nowhere", "--on", "recipe.yaml"), says=("nowhere",)
    ),
    Case(
        "calls two models the same",
        command=("evaluate", "x=MODELS/roberta", "x=MODELS/roberta", "--on", "recipe.yaml"),
        says=("'x'", "LABEL=PATH"),
    ),
    Case(
        "runs a suite that is not there",
        command=("bench", "six-domain", "--methods", "das"),
        says=("six-domain", "six-domains"),
    ),
    Case(
        "runs a suite with settings that are not there",
        command=("bench", "docs", "--methods", "das", "--settings", "s.yaml"),
        says=("s.yaml",),
    ),
    Case(
        "runs a suite with a seed that is a word",
        command=("bench", "docs", "--methods", "das", "--seeds", "two"),
        says=("`--seeds` is 'two'", "1,2,3"),
    ),
    Case("runs a suite without methods", command=("bench", "docs"), says=("--methods",)),
]
