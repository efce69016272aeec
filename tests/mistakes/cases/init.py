"""Writing a first recipe with init."""

from mistakes import Case, file, jsonl


def case(name: str, *words: str, says: tuple[str, ...], **more: object) -> Case:
    return Case(name, command=("init", "mine.yaml", *words), says=says, **more)  # type: ignore[arg-type]


T5 = ("--model", "MODELS/t5")
FOLDER = file("data/readme", "")
CHATS = jsonl("chats.jsonl", [{"messages": [{"role": "user", "content": "Hello."}]}] * 3)

CASES = [
    Case("writes a recipe over another", command=("init", "recipe.yaml"), says=("exists already", "init FILE")),
    Case(
        "writes a recipe into a folder",
        command=("init", "data"),
        spoil=FOLDER,
        says=("is a folder", "data/recipe.yaml"),
    ),
    case("names a corpus without a domain's name", "--domain", "a.jsonl", says=("--domain", "contracts=contracts")),
    case("names two corpora alike", "--domain", "a=a.jsonl", "--domain", "a=b.jsonl", says=("'a' more than once",)),
    case("tells names apart by case alone", "--domain", "a=a.jsonl", "--domain", "A=b.jsonl", says=("more than case",)),
    case("gives a domain a name with a slash", "--domain", "a/b=a.jsonl", says=("a domain's name", "a/b")),
    case("gives a domain a name of the tables", "--domain", "general=a.jsonl", says=("general=", "is taken")),
    case("mistypes the path of a first corpus", "--domain", "a=aa.jsonl", says=("aa.jsonl", "no such file")),
    case("mistypes the path of general text", "--general", "generl.jsonl", says=("generl.jsonl", "no such file")),
    case("asks a model that is not there", "--model", "./nowhere", says=("./nowhere", "no local folder")),
    case("asks a folder without a model", "--model", "data", says=("data",), spoil=FOLDER),
    case("asks for a task that there is not", "--task", "chat", says=("`--task` is 'chat'", "sft")),
    case(
        "asks for answers where there is only text",
        "--domain",
        "a=a.jsonl",
        "--task",
        "sft",
        says=("`--task sft`", "'text'"),
    ),
    case(
        "gives an encoder-decoder chats",
        *T5,
        "--domain",
        "a=chats.jsonl",
        says=("learns only prompts and answers", "'messages'"),
        spoil=CHATS,
    ),
    case("asks an encoder-decoder to learn text", *T5, "--task", "pretrain", says=("encoder-decoder", "'sft'")),
    case("gives an encoder-decoder plain text", *T5, "--domain", "a=a.jsonl", says=("prompts and answers", "'text'")),
    case(
        "gives a corpus of one line",
        *("--domain", "a=one.txt", "--general", "general.jsonl"),
        says=("4 passes over it make", "hardly anything can be learnt"),
        spoil=file("one.txt", "One line.\n"),
        code=0,
        writes=("mine.yaml",),
    ),
]
