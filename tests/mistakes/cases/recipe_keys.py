"""Keys and values of the recipe."""

from mistakes import Case, both, domain, general, group, recipe, without

MAPPING = "must be a mapping of keys"
QUOTES = "write it in quotes"

CASES = [
    Case("mistypes a key", group("evaluation", blokcs=3), says=("evaluation.blokcs", "blocks")),
    Case("mistypes a group", recipe("domain", []), says=("domain", "domains")),
    Case("mistypes a key of a domain", domain(txt_column="x"), says=("domains.0.txt_column", "text_column")),
    Case("writes a word for a number", group("data", block_size="many"), says=("data.block_size", "many")),
    Case("asks for no held-out rows", group("evaluation", blocks=0), says=("evaluation.blocks", "0")),
    Case("asks for less than no held-out rows", group("evaluation", blocks=-3), says=("evaluation.blocks", "-3")),
    Case("asks for half a held-out row", group("evaluation", blocks=8.5), says=("evaluation.blocks", "8.5")),
    Case(
        "answers true where a number is asked for", group("evaluation", blocks=True), says=("evaluation.blocks", "true")
    ),
    Case("gives a list for a number", group("evaluation", blocks=[8]), says=("evaluation.blocks", "whole number")),
    Case("scores no rows at a time", group("evaluation", batch_size=0), says=("evaluation.batch_size", "1 or more")),
    Case("asks for no fine-tuning", group("evaluation", end_task_seeds=0), says=("evaluation.end_task_seeds", "0")),
    Case(
        "mistypes when end tasks are asked",
        group("evaluation", end_tasks="evry"),
        says=("evaluation.end_tasks", "'every'"),
    ),
    Case(
        "mistypes which columns are scored", group("evaluation", columns="sene"), says=("evaluation.columns", "'seen'")
    ),
    Case(
        "scores inside a stage after every 0 steps",
        group("evaluation", every=0),
        says=("evaluation.every", "1 or more"),
    ),
    Case(
        "answers maybe where yes or no is asked for",
        group("evaluation", alone="maybe"),
        says=("evaluation.alone", "true or false"),
    ),
    Case("has rows of no tokens", group("data", block_size=0), says=("data.block_size", "8 or more")),
    Case("has rows of four tokens", group("data", block_size=4), says=("data.block_size", "8 or more")),
    Case("has rows of endless tokens", group("data", block_size=float("inf")), says=("data.block_size", "finite")),
    Case("masks everything", group("data", mask_probability=1), says=("data.mask_probability", "below 1")),
    Case("masks nothing", group("data", mask_probability=0), says=("data.mask_probability", "above 0")),
    Case(
        "masks what is not a number",
        group("data", mask_probability=float("nan")),
        says=("data.mask_probability", "finite"),
    ),
    Case("masks 15 instead of 0.15", group("data", mask_probability=15), says=("data.mask_probability", "15")),
    Case("takes a negative seed", group("run", seed=-1), says=("run.seed", "0 or more")),
    Case("takes a word as the seed", group("run", seed="lucky"), says=("run.seed", "whole number")),
    Case("takes half a seed", group("run", seed=0.5), says=("run.seed", "whole number")),
    Case("keeps no stages", group("run", keep_stages=0), says=("`run.keep_stages`", "or 1 or more (got 0)")),
    Case("keeps the first stages", group("run", keep_stages="first"), says=("run.keep_stages", "first")),
    Case("writes one note without a list", group("run", notes="mine"), says=("run.notes", "must be a list")),
    Case("writes a number as a note", group("run", notes=[5]), says=("run.notes.0", QUOTES)),
    Case("leaves the model out", without("model"), says=("The recipe needs `model`",)),
    Case("leaves the domains out", without("domains"), says=("The recipe needs `domains`",)),
    Case("leaves a domain's path out", without("domains.0.path"), says=("`domains.0`", "needs a `path`")),
    Case("leaves a domain's name out", without("domains.0.name"), says=("The recipe needs `domains.0.name`",)),
    Case("names no domains", recipe("domains", []), says=("domains",)),
    Case("writes null for the domains", recipe("domains", None), says=("domains", "must be a list")),
    Case(
        "writes one domain without a list",
        recipe("domains", {"name": "a", "path": "a.jsonl"}),
        says=("domains", "must be a list"),
    ),
    Case("lists paths as domains", recipe("domains", ["a.jsonl", "b.jsonl"]), says=("domains.0", MAPPING, "a.jsonl")),
    Case("leaves an item of the domains empty", recipe("domains.1", None), says=("domains.1", MAPPING)),
    Case("leaves a group empty", recipe("data", None), says=("`data`", MAPPING, "None")),
    Case("writes a list for a group", recipe("evaluation", [8]), says=("`evaluation`", MAPPING)),
    Case("leaves the training arguments empty", recipe("train", None), says=("`train`", MAPPING)),
    Case("writes the training arguments as a list", recipe("train", [{"max_steps": 4}]), says=("`train`", MAPPING)),
    Case("mistypes the objective", recipe("objective", "causl"), says=("objective", "'causal'")),
    Case("mistypes what an optimizer begins with", recipe("optimizer", "keep"), says=("optimizer", "'carry'")),
    Case("holds everything out", domain(validation=1.0), says=("domains.0.validation", "between 0 and 1")),
    Case("holds out less than nothing", domain(validation=-0.1), says=("domains.0.validation", "between 0 and 1")),
    Case("holds nothing out with 0", domain(validation=0.0), says=("domains.0.validation", "null")),
    Case("holds out 20 instead of 0.2", domain(validation=20), says=("domains.0.validation", "between 0 and 1")),
    Case("answers no to holding out", domain(validation=False), says=("domains.0.validation",)),
    Case("reads no documents", domain(max_documents=0), says=("domains.0.max_documents", "1 or more")),
    Case("shuffles less than no blocks", domain(shuffle_buffer=-1), says=("domains.0.shuffle_buffer", "0 or more")),
    Case("mistypes what a document is", domain(documents="lines"), says=("domains.0.documents", "'line'")),
    Case("streams sometimes", domain(streaming="sometimes"), says=("domains.0.streaming", "true or false")),
    Case("gives general text training arguments", general(train={"max_steps": 3}), says=("general.train", "remove")),
    Case(
        "leaves the general text's path out",
        recipe("general", {"validation": 0.2}),
        says=("`general`", "needs a `path`"),
    ),
    Case("mistypes a key of the general text", general(txt_column="x"), says=("general.txt_column", "text_column")),
    Case("writes an option below a word", recipe("objective", {"name": "causal"}), says=("objective",)),
    Case("puts a run's key at the top", recipe("seed", 3), says=("Unknown key `seed`",)),
    Case("puts a training argument at the top", recipe("max_steps", 3), says=("Unknown key `max_steps`",)),
    Case("sets a key of a later version", group("run", colour="blue"), says=("Unknown key `run.colour`",)),
    Case("sets two wrong keys", both(group("run", colour="blue"), group("data", blok_size=3)), says=("Unknown key",)),
]
