"""Learning one more domain, and exporting."""

from mistakes import Case, recipe, run

LEARN = ("learn", "runs/first", "--domain", "c=c.jsonl")
TASK = ("--end-task", "t=train.jsonl,test.jsonl")


def case(name: str, *words: str, says: tuple[str, ...], learn: tuple[str, ...] = LEARN) -> Case:
    return Case(name, run, command=(*learn, *words), says=says)


OUT = ("runs/first", "out")


CASES = [
    case("changes the model when learning more", "model.path=other", says=("`model.path`", "middle of a run", "stage")),
    case("changes the tokenizer when learning more", "model.tokenizer=x", says=("`model.tokenizer`", "taught so far")),
    case("changes the method when learning more", "method=das", says=("`method`", "remembers")),
    case("changes the rows when learning more", "data.block_size=64", says=("`data.block_size`", "made alike")),
    case("changes the objective when learning more", "objective=causal", says=("`objective`", "earlier domains")),
    case("changes what is measured when learning more", "evaluation.blocks=2", says=("comparable",)),
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
