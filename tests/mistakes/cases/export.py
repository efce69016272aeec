"""Export, and learning from one."""

from mistakes import Case, recipe, run

OUT = ("runs/first", "out")

CASES = [
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
        says=("`--into`", "goes on where it is"),
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
