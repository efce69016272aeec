"""What two models differ in (diff)."""

from mistakes import Case, both, file, run

BASE = "MODELS/llama"
LAST = "runs/first/stage-02-b"
TEXT = ("--text", "a.jsonl")


def case(name: str, *words: str, says: tuple[str, ...], **more: object) -> Case:
    return Case(name, command=("diff", *words), says=says, **more)  # type: ignore[arg-type]


CASES = [
    case("compares with a model that is not there", BASE, "MODELS/lama", *TEXT, says=("AFTER is", "Did you mean")),
    case("compares with a run, not a model", "MODELS/roberta", "runs/first", *TEXT, says=("a run", LAST), spoil=run),
    case("compares models of two kinds", BASE, "MODELS/roberta", *TEXT, says=("causal", "masked", "one kind")),
    case("compares on nothing", BASE, BASE, says=("nothing to compare on", "--text PATH")),
    case("compares on a text that is not there", BASE, BASE, "--text", "aa.jsonl", says=("aa.jsonl", "a.jsonl")),
    case("calls two texts alike", BASE, BASE, *TEXT, "--text", "a=b.jsonl", says=("called 'a'", "NAME=PATH")),
    case(
        "compares encoder-decoders on text",
        "old=MODELS/t5",
        "new=MODELS/t5",
        *TEXT,
        says=("encoder-decoder", "--task FILE"),
    ),
    case(
        "compares on a text shorter than a row",
        *(BASE, BASE, "--text", "short.txt"),
        says=("'short'", "fewer than a row", "--block-size"),
        spoil=file("short.txt", "Too short.\n"),
    ),
    case(
        "compares on longer rows than a model reads",
        f"old={BASE}",
        f"new={BASE}",
        *TEXT,
        "--block-size",
        "4096",
        says=("4096",),
    ),
    case("compares on no row", BASE, BASE, *TEXT, "--blocks", "0", says=("--blocks", "greater than")),
    case("tolerates less than nothing", BASE, BASE, *TEXT, "--tolerate", "-1", says=("--tolerate", "equal to 0")),
    case("compares on a device that there is not", BASE, BASE, *TEXT, "--device", "gpu", says=("--device", "cpu")),
    case("writes a comparison below a file", BASE, BASE, *TEXT, "-o", "a.jsonl/x.html", says=("--output",)),
    case("asks a task that is not there", BASE, BASE, "--task", "tasks.yaml", says=("tasks.yaml",)),
    case(
        "asks models as they are a task that fine-tunes",
        *(BASE, BASE, "--task", "task.yaml"),
        says=("classification", "--task", "everlearn evaluate"),
        spoil=file("task.yaml", "{name: topics, train: train.jsonl, test: test.jsonl}\n"),
    ),
    case(
        "compares with a damaged checkpoint",
        *(LAST, LAST, *TEXT),
        says=("config.json", "Restore it"),
        spoil=both(run, file("runs/first/stage-02-b/config.json", "{}")),
    ),
]
