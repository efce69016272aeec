"""Run folders."""

from mistakes import Case, both, file, recipe, run

CASES = [
    Case("resumes a run that is not there", command=("resume", "runs/none"), says=("runs/none", "recipe.yaml")),
    Case("reports a run that is not there", command=("report", "runs/none"), says=("runs/none",)),
    Case("runs a recipe twice", run, says=("already", "everlearn resume", "run.name")),
    Case(
        "runs another recipe into the same folder",
        both(run, recipe("run.seed", 1)),
        says=("another recipe", "run.name"),
    ),
    Case(
        "runs into a folder of other files",
        file("runs/first/precious.txt", "mine"),
        says=("runs/first", "not a run folder"),
    ),
    Case(
        "learns a domain without saying from what",
        command=("learn", "runs/none", "--domain", "c"),
        says=("--domain", "'c'", "="),
    ),
    Case(
        "learns with half an end task",
        command=("learn", "runs/none", "--domain", "c=c.jsonl", "--end-task", "t=train.jsonl"),
        says=("--end-task", "t=train.jsonl"),
    ),
    Case(
        "learns a domain with a slash in its name",
        command=("learn", "runs/none", "--domain", "c/d=c.jsonl"),
        says=("name", "c/d"),
    ),
    Case(
        "learns a domain twice",
        run,
        command=("learn", "runs/first", "--domain", "a=c.jsonl"),
        says=("'a'", "already", "another name"),
    ),
    Case(
        "learns from a corpus that is not there",
        run,
        command=("learn", "runs/first", "--domain", "c=d.jsonl"),
        says=("d.jsonl",),
    ),
]
