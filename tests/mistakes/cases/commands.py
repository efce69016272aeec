"""Commands: diff, init and sweep."""

from mistakes import Case, both, file, jsonl, run

# -- What two models differ in (diff) ----------------------------------------------------------------------------------


BASE = "MODELS/llama"
LAST = "runs/first/stage-02-b"
TEXT = ("--text", "a.jsonl")


def of_diff(name: str, *words: str, says: tuple[str, ...], **more: object) -> Case:
    return Case(name, command=("diff", *words), says=says, **more)  # type: ignore[arg-type]


CASES = [
    of_diff("compares with a model that is not there", BASE, "MODELS/lama", *TEXT, says=("AFTER is", "Did you mean")),
    of_diff("compares with a run, not a model", "MODELS/roberta", "runs/first", *TEXT, says=("a run", LAST), spoil=run),
    of_diff("compares models of two kinds", BASE, "MODELS/roberta", *TEXT, says=("causal", "masked", "one kind")),
    Case(
        "names one of two models", command=("diff", BASE), says=("'AFTER': The later", "`everlearn diff BEFORE AFTER`")
    ),
    of_diff("compares on nothing", BASE, BASE, says=("nothing to compare on", "--text PATH", "--on RUN")),
    of_diff("compares on a text that is not there", BASE, BASE, "--text", "aa.jsonl", says=("aa.jsonl", "a.jsonl")),
    of_diff("calls two texts alike", BASE, BASE, *TEXT, "--text", "a=b.jsonl", says=("called 'a'", "NAME=PATH")),
    of_diff(
        "compares encoder-decoders on text",
        "old=MODELS/t5",
        "new=MODELS/t5",
        *TEXT,
        says=("encoder-decoder", "--task FILE"),
    ),
    of_diff(
        "compares on a text shorter than a row",
        *(BASE, BASE, "--text", "short.txt"),
        says=("'short'", "fewer than a row", "--block-size"),
        spoil=file("short.txt", "Too short.\n"),
    ),
    of_diff(
        "compares on longer rows than a model reads",
        f"old={BASE}",
        f"new={BASE}",
        *TEXT,
        "--block-size",
        "4096",
        says=("4096",),
    ),
    of_diff("compares on no row", BASE, BASE, *TEXT, "--blocks", "0", says=("--blocks", "greater than")),
    of_diff("tolerates less than nothing", BASE, BASE, *TEXT, "--tolerate", "-1", says=("--tolerate", "equal to 0")),
    of_diff("compares on a device that there is not", BASE, BASE, *TEXT, "--device", "gpu", says=("--device", "cpu")),
    of_diff("writes a comparison below a file", BASE, BASE, *TEXT, "-o", "a.jsonl/x.html", says=("--output",)),
    of_diff("asks a task that is not there", BASE, BASE, "--task", "tasks.yaml", says=("tasks.yaml",)),
    of_diff(
        "asks models as they are a task that fine-tunes",
        *(BASE, BASE, "--task", "task.yaml"),
        says=("classification", "--task", "everlearn evaluate"),
        spoil=file("task.yaml", "{name: topics, train: train.jsonl, test: test.jsonl}\n"),
    ),
    of_diff(
        "compares with a damaged checkpoint",
        *(LAST, LAST, *TEXT),
        says=("config.json", "Restore it"),
        spoil=both(run, file("runs/first/stage-02-b/config.json", "{}")),
    ),
]


# -- Writing a first recipe with init ----------------------------------------------------------------------------------


def of_init(name: str, *words: str, says: tuple[str, ...], **more: object) -> Case:
    return Case(name, command=("init", "mine.yaml", *words), says=says, **more)  # type: ignore[arg-type]


T5 = ("--model", "MODELS/t5")
FOLDER = file("data/readme", "")
CHATS = jsonl("chats.jsonl", [{"messages": [{"role": "user", "content": "Hello."}]}] * 3)

CASES_INIT = [
    Case(
        "writes a recipe over another and mistypes a corpus",
        command=("init", "recipe.yaml", "--domain", "a=aa.jsonl"),
        says=("aa.jsonl", "no such file"),
    ),
    Case("writes a recipe over another", command=("init", "recipe.yaml"), says=("exists already", "init FILE")),
    Case(
        "writes a recipe into a folder",
        command=("init", "data"),
        spoil=FOLDER,
        says=("is a folder", "data/recipe.yaml"),
    ),
    of_init("names a corpus without a domain's name", "--domain", "a.jsonl", says=("--domain", "contracts=contracts")),
    of_init("names two corpora alike", "--domain", "a=a.jsonl", "--domain", "a=b.jsonl", says=("'a' more than once",)),
    of_init(
        "tells names apart by case alone", "--domain", "a=a.jsonl", "--domain", "A=b.jsonl", says=("more than case",)
    ),
    of_init("gives a domain a name with a slash", "--domain", "a/b=a.jsonl", says=("a domain's name", "a/b")),
    of_init("gives a domain a name of the tables", "--domain", "general=a.jsonl", says=("general=", "is taken")),
    of_init("mistypes the path of a first corpus", "--domain", "a=aa.jsonl", says=("aa.jsonl", "no such file")),
    of_init("mistypes the path of general text", "--general", "generl.jsonl", says=("generl.jsonl", "no such file")),
    of_init("asks a model that is not there", "--model", "./nowhere", says=("./nowhere", "no local folder")),
    of_init("asks a folder without a model", "--model", "data", says=("data",), spoil=FOLDER),
    of_init("asks for a task that there is not", "--task", "chat", says=("`--task` is 'chat'", "sft")),
    of_init(
        "asks for answers where there is only text",
        "--domain",
        "a=a.jsonl",
        "--task",
        "sft",
        says=("`--task sft`", "'text'"),
    ),
    of_init(
        "gives an encoder-decoder chats",
        *T5,
        "--domain",
        "a=chats.jsonl",
        says=("learns only prompts and answers", "'messages'"),
        spoil=CHATS,
    ),
    of_init("asks an encoder-decoder to learn text", *T5, "--task", "pretrain", says=("encoder-decoder", "'sft'")),
    of_init(
        "gives an encoder-decoder plain text", *T5, "--domain", "a=a.jsonl", says=("prompts and answers", "'text'")
    ),
    of_init(
        "gives a corpus of one line",
        *("--domain", "a=one.txt", "--general", "general.jsonl"),
        says=("4 passes over it make", "hardly anything can be learnt"),
        spoil=file("one.txt", "One line.\n"),
        code=0,
        writes=("mine.yaml",),
    ),
]


# -- Sweeps ------------------------------------------------------------------------------------------------------------


def of_sweep(name: str, *words: str, says: tuple[str, ...]) -> Case:
    return Case(name, command=("sweep", "recipe.yaml", *words), says=says)


CASES_SWEEPS = [
    of_sweep(
        "sweeps a method that there is not", "--methods", "ewc,dass", says=("`--methods` names 'dass'", "mean 'das'")
    ),
    of_sweep("sweeps an option that there is not", "--methods", "ewc:strengh=3", says=("strengh", "strength")),
    of_sweep("gives a swept method a bare value", "--methods", "ewc:3", says=("'ewc:3'", "ewc:strength=10")),
    of_sweep("gives a swept option a word for a number", "--methods", "ewc:strength=much", says=("strength", "much")),
    of_sweep("leaves a bracket of swept methods open", "--methods", "[ewc", says=("`--methods`", "'[[ewc]'")),
    of_sweep("sweeps no method", "--methods", "", says=("`--methods`", "one or more")),
    of_sweep("sweeps an empty combination of methods", "--methods", "[]", says=("empty list",)),
    of_sweep("sweeps a number as a method", "--methods", "7", says=("7, which is neither",)),
    of_sweep("sweeps options without a method", "--methods", "{strength: 3}", says=("neither a method's name nor",)),
    of_sweep("combines a method with an arrangement", "--methods", "[das,pool]", says=("'pool'", "not a method")),
    of_sweep("gives the base model an option", "--methods", "none:x=1", says=("'none'", "'x'")),
    of_sweep("sweeps a seed that is a word", "--seeds", "1,two", says=("`--seeds` is '1,two'", "1,2,3")),
    of_sweep("sweeps a seed below zero", "--seeds", "-1", says=("`--seeds` is '-1'",)),
    of_sweep("sweeps an order that lacks a domain", "--orders", "a", says=("'a'", "each of a, b once")),
    of_sweep("sweeps an order with a domain twice", "--orders", "a,b;a,a", says=("'a,a'", "each of a, b once")),
    of_sweep("sweeps an order with another's domain", "--orders", "a,d", says=("'d'", "no domain")),
    of_sweep("draws more orders than there are", "--orders", "random:9", says=("'random:9'", "1 to 2")),
    of_sweep("does not say how many orders to draw", "--orders", "random:", says=("'random:'", "number of orders")),
    of_sweep(
        "sweeps a key without values", "--set", "train.learning_rate", says=("'train.learning_rate'", "1e-4,3e-4")
    ),
    of_sweep("sweeps a key over nothing", "--set", "train.learning_rate=", says=("`--set` is ''", "one or more")),
    of_sweep("mistypes a swept key", "--set", "train.learning_rat=1,2", says=("train.learning_rat", "learning_rate")),
    of_sweep("sweeps steps over a word", "--set", "train.max_steps=many", says=("train.max_steps", "many")),
    of_sweep("sweeps seeds by the key of the recipe", "--set", "run.seed=1,2", says=("`run.seed`", "--seeds")),
    of_sweep("sweeps methods by the key of the recipe", "--set", "method=das,ewc", says=("`method`", "--methods")),
    of_sweep(
        "sweeps an option of no entry's method", "--set", "method.migu.threshold=0,0.5", says=("no entry has 'migu'",)
    ),
    of_sweep("sweeps the names of a domain", "--set", "domains.a.name=c", says=("`domains.a.name`", "single keys")),
    of_sweep(
        "sweeps a domain by its number",
        *("--set", "domains.0.max_documents=3"),
        says=("`domains.0.max_documents`", "domains.a.max_documents"),
    ),
    of_sweep("sweeps a task that is not there", "--set", "end_tasks.t.max_train=3", says=("`end_tasks.t.max_train`",)),
    of_sweep(
        "sweeps one key twice",
        *("--set", "train.max_steps=1", "--set", "train.max_steps=2"),
        says=("`train.max_steps` more than once",),
    ),
    of_sweep(
        "compares a sweep with what it has not", "--reference", "das", says=("`--reference` is 'das'", "sequential")
    ),
    of_sweep("writes a sweep as a spreadsheet", "-o", "table.xls", says=("table.xls", ".md")),
    of_sweep("mistypes a key of a swept recipe", "data.blok_size=3", says=("data.blok_size", "block_size")),
    of_sweep(
        "sweeps one method that does not fit",
        *("--methods", "sequential,replay:source=general"),
        says=("replay-sourcegeneral: ", "general"),
    ),
    of_sweep(
        "sweeps blocks that are longer than the model reads",
        *("--set", "data.block_size=32,4096"),
        says=("sequential-data.block_size4096: ", "`data.block_size` is 4096"),
    ),
]
CASES += CASES_INIT
CASES += CASES_SWEEPS
