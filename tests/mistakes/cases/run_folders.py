"""Run folders, damaged ones too; learning one more domain, and exporting."""

import json
from pathlib import Path
from typing import Any

from cli_project import Project, Spoil
from mistakes import Case, both, file, recipe, run

# -- Run folders, damaged ones too -------------------------------------------------------------------------------------


RESUME, REPORT = ("resume", "runs/first"), ("report", "runs/first")
ONCE_MORE = ("runs/first/*",)


def flipped(name: str) -> Spoil:
    """One bit of a file of the run is another one."""

    def spoil(project: Project) -> None:
        path = project.run_folder / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return spoil


def content(name: str, text: str) -> Spoil:
    """A file of the run holds something else."""
    return lambda project: (project.run_folder / name).write_text(text, encoding="utf-8")


def gone(name: str) -> Spoil:
    """A file of the run is not there."""
    return lambda project: (project.run_folder / name).unlink()


def results(change: Any) -> Spoil:
    """Somebody has edited the results, and taken them from the seal."""

    def spoil(project: Project) -> None:
        path = project.run_folder / "results.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        change(raw)
        path.write_text(json.dumps(raw), encoding="utf-8")
        (path.parent / "seal.json").unlink(missing_ok=True)

    return spoil


def a_folder(name: str) -> Spoil:
    """A folder stands where a file of the run was."""

    def spoil(project: Project) -> None:
        (project.run_folder / name).unlink()
        (project.run_folder / name).mkdir()

    return spoil


def linked_lock(project: Project) -> None:
    """The lock leads to a file of the user's."""
    (project.folder / "mine.txt").write_text("mine", encoding="utf-8")
    (project.run_folder / ".lock").unlink(missing_ok=True)
    (project.run_folder / ".lock").symlink_to(project.folder / "mine.txt")


def half_started(project: Project) -> None:
    """What a kill during the very first write leaves."""
    project.run_folder.mkdir(parents=True)
    (project.run_folder / ".partial.recipe.yaml.0123").write_text("model: gp", encoding="utf-8")


def same_scores(project: Any, outcome: Any) -> None:
    """The results are those of the run that nothing happened to."""
    found = [json.loads((place / "results.json").read_text()) for place in (project.run_folder, _whole(project))]
    assert [found[0][key] for key in ("matrices", "summary")] == [found[1][key] for key in ("matrices", "summary")]


def _whole(project: Any) -> Path:
    return Path(project.finished_folder) / "runs" / "first"


def with_environment(project: Any, outcome: Any) -> None:
    """It is there again, and the scores are the same."""
    assert (project.run_folder / "environment.json").is_file()
    same_scores(project, outcome)


def finished(project: Any, outcome: Any) -> None:
    """The run has been made."""
    assert (project.run_folder / "results.json").is_file()


CASES = [
    Case("resumes a run that is not there", command=("resume", "runs/none"), says=("runs/none", "recipe.yaml")),
    Case(
        "resumes a run with more steps",
        command=("resume", "runs/first", "train.max_steps=5"),
        says=("'train.max_steps=5'", "`everlearn learn runs/first --more NAME train.max_steps=…`"),
    ),
    Case("reports a run that is not there", command=("report", "runs/none"), says=("runs/none",)),
    Case("runs a recipe twice", run, says=("already", "everlearn resume", "run.name")),
    Case(
        "resumes a stage instead of its run",
        file("runs/first/recipe.yaml", "model: gpt2"),
        command=("resume", "runs/first/stage-01-a"),
        says=("stage-01-a is not a run folder", "The run is runs/first."),
    ),
    Case(
        "learns from a model as if it were a run",
        command=("learn", "MODELS/llama", "--domain", "c=c.jsonl"),
        says=("It is a model alone", "`everlearn init --model", "`--with-memory`"),
    ),
    Case(
        "runs another recipe into the same folder",
        both(run, recipe("run.seed", 1)),
        says=("another recipe", "other values are set for `run.seed`)", "run.name", "`everlearn resume runs/first`"),
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
        "names a column of the new domain like a key",
        command=("learn", "runs/none", "--domain", "c=c.jsonl", "text_column=title"),
        says=("Unknown key `text_column`", "`--text-column title`"),
    ),
    Case(
        "names a key of the new domain without the domain",
        command=("learn", "runs/none", "--domain", "c=c.jsonl", "documents=file"),
        says=("Unknown key `documents`", "`domains.c.documents=…`"),
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
    Case(
        "has a score with one bit flipped, and resumes",
        both(run, flipped("evaluation/stage-01/a.safetensors")),
        RESUME,
        says=("evaluation/stage-01/a.safetensors is damaged", "measured again"),
        code=0,
        works="it is named and measured again, with the same result",
        check=same_scores,
        writes=ONCE_MORE,
    ),
    Case(
        "has results with one bit flipped, and reports them",
        both(run, flipped("results.json")),
        REPORT,
        says=("results.json is damaged", "not what was saved"),
    ),
    Case(
        "has a recipe with one bit flipped, and resumes",
        both(run, flipped("recipe.yaml")),
        RESUME,
        says=("recipe.yaml is damaged", "seal.json"),
    ),
    Case(
        "has a stage with one bit flipped, and resumes",
        both(run, flipped("stage-01-a/model.safetensors")),
        RESUME,
        says=("stage-01-a/model.safetensors is damaged", "delete stage-01-a"),
    ),
    Case(
        "has the facts of a stage with one bit flipped, and resumes",
        both(run, flipped("stage-01-a/stage.json")),
        RESUME,
        says=("stage-01-a/stage.json is damaged",),
    ),
    Case("has a seal that is a list", both(run, content("seal.json", "[]")), RESUME, says=("seal.json is damaged",)),
    Case(
        "has the seal of a stage that is null",
        both(run, content("stage-01-a/seal.json", "null")),
        RESUME,
        says=("stage-01-a/seal.json is damaged",),
    ),
    Case(
        "has a time that is a list",
        both(run, content("evaluation/stage-01/_time.json", "[]"), content("results.json", "{}")),
        RESUME,
        says=("_time.json is damaged",),
    ),
    Case(
        "has a string where a table of scores belongs",
        both(run, results(lambda raw: raw["matrices"].update(loss="none"))),
        REPORT,
        says=("results.json cannot be used", "`matrices.loss`", "'none'"),
    ),
    Case(
        "has a number where the domains belong",
        both(run, results(lambda raw: raw.update(domains=3))),
        REPORT,
        says=("results.json cannot be used", "`domains`", "3"),
    ),
    Case(
        "has a score that is a word",
        both(run, results(lambda raw: raw["matrices"]["loss"]["cells"][0].__setitem__(2, "low"))),
        REPORT,
        says=("results.json cannot be used", "`matrices.loss.cells.0.2`", "'low'"),
    ),
    Case(
        "has a folder where the environment was, and resumes",
        both(run, a_folder("environment.json")),
        RESUME,
        says=("environment.json",),
    ),
    Case("has a lock that is a link", both(run, linked_lock), RESUME, says=(".lock is a link", "Remove it")),
    Case(
        "has lost the environment to a kill, and resumes",
        both(run, gone("environment.json")),
        RESUME,
        code=0,
        works="it is written again",
        check=with_environment,
        writes=ONCE_MORE,
    ),
    Case(
        "has a folder in which a run was killed at its first write, and runs",
        half_started,
        ("run", "recipe.yaml", "train.max_steps=1"),
        code=0,
        works="the run is made there",
        check=finished,
        writes=ONCE_MORE,
    ),
]


# -- Learning one more domain, and exporting ---------------------------------------------------------------------------


LEARN = ("learn", "runs/first", "--domain", "c=c.jsonl")
TASK = ("--end-task", "t=train.jsonl,test.jsonl")


def case(name: str, *words: str, says: tuple[str, ...], learn: tuple[str, ...] = LEARN) -> Case:
    return Case(name, run, command=(*learn, *words), says=says)


OUT = ("runs/first", "out")


CASES_LEARNING_MORE = [
    case("changes the model when learning more", "model.path=other", says=("`model.path`", "middle of a run", "stage")),
    case("changes the tokenizer when learning more", "model.tokenizer=x", says=("`model.tokenizer`", "last model")),
    case("changes the method when learning more", "method=das", says=("`method`", "memory of the earlier domains")),
    case("changes the rows when learning more", "data.block_size=64", says=("`data.block_size`", "same settings")),
    case("changes the objective when learning more", "objective=causal", says=("`objective`", "earlier domains")),
    case("changes what is measured when learning more", "evaluation.blocks=2", says=("could not be compared",)),
    case("changes the seed when learning more", "run.seed=2", says=("`run.seed`", "when the run began")),
    case("changes the precision when learning more", "train.bf16=true", says=("`train.bf16`", "processes")),
    case("changes an earlier domain when learning more", "domains.a.path=x", says=("`domains.a.path`", "domains.c.")),
    case("replaces the domains when learning more", "domains=[]", says=("`domains`", "stay as they are")),
    case("mistypes a group when learning more", "trian.max_steps=2", says=("trian.max_steps", "'train'")),
    case("mistypes an argument when learning more", "train.max_step=2", says=("max_step", "max_steps")),
    case("mistypes a key of the new domain", "domains.c.streamin=true", says=("streamin", "'streaming'")),
    case("streams the new domain in words", "domains.c.streaming=perhaps", says=("`domains.c.streaming`", "perhaps")),
    case("asks a task that is not given when learning more", "end_tasks.t.label_column=y", says=("end_tasks.t.",)),
    case(
        "mistypes a column of a task when learning more", *TASK, "end_tasks.t.label_colum=y", says=("'label_column'",)
    ),
    case(
        "names a label column that is not there, for one domain more",
        *TASK,
        "end_tasks.t.label_column=y",
        says=("'y'", "label"),
    ),
    case("names a text column that is not there", "domains.c.text_column=body", says=("'body'", "text")),
    case("writes an override of learning without a value", "train.max_steps", says=("key=value",)),
    Case("exports a run that is not there", command=("export", "runs/none", "out"), says=("runs/none", "no stage")),
    Case("exports onto the run itself", run, command=("export", "runs/first", "runs/first"), says=("exists already",)),
    Case("asks for an adapter where none was trained", run, command=("export", *OUT, "--adapter"), says=("inc_lora",)),
    Case(
        "pushes without saying whose", run, command=("export", *OUT, "--push", "mine"), says=("`--push`", "owner/mine")
    ),
    Case("pushes to what is no name", run, command=("export", *OUT, "--push", "a b/c"), says=("`--push`", "a b/c")),
    Case("lets everybody see nothing", run, command=("export", *OUT, "--public"), says=("`--public`", "`--push`")),
    Case(
        "goes on from a run into another folder",
        run,
        command=("learn", "runs/first", "--domain", "c=c.jsonl", "--into", "runs/next"),
        says=("`--into`", "is resumed in place"),
    ),
    Case(
        "learns from a hub id without saying where to",
        command=("learn", "owner/name", "--domain", "c=c.jsonl"),
        says=("owner/name", "--into"),
    ),
    Case(
        "mistypes a key of quantization_config",
        recipe("model", {"path": "MODELS/roberta", "quantization_config": {"load_in_4bits": True}}),
        says=("load_in_4bits", "Did you mean 'load_in_4bit'"),
    ),
    Case(
        "does not say into how many bits",
        recipe("model", {"path": "MODELS/roberta", "quantization_config": {"bnb_4bit_quant_type": "nf4"}}),
        says=("quantization_config", "how many bits"),
    ),
]
CASES += CASES_LEARNING_MORE
