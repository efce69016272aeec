"""Sweeps."""

from mistakes import Case


def case(name: str, *words: str, says: tuple[str, ...]) -> Case:
    return Case(name, command=("sweep", "recipe.yaml", *words), says=says)


CASES = [
    case("sweeps a method that there is not", "--methods", "ewc,dass", says=("`--methods` names 'dass'", "mean 'das'")),
    case("sweeps an option that there is not", "--methods", "ewc:strengh=3", says=("strengh", "strength")),
    case("gives a swept method a bare value", "--methods", "ewc:3", says=("'ewc:3'", "ewc:strength=10")),
    case("gives a swept option a word for a number", "--methods", "ewc:strength=much", says=("strength", "much")),
    case("leaves a bracket of swept methods open", "--methods", "[ewc", says=("`--methods`", "'[[ewc]'")),
    case("sweeps no method", "--methods", "", says=("`--methods`", "one or more")),
    case("sweeps an empty combination of methods", "--methods", "[]", says=("empty list",)),
    case("sweeps a number as a method", "--methods", "7", says=("7, which is neither",)),
    case("sweeps options without a method", "--methods", "{strength: 3}", says=("neither a method's name nor",)),
    case("combines a method with an arrangement", "--methods", "[das,pool]", says=("'pool'", "no method")),
    case("gives the base model an option", "--methods", "none:x=1", says=("'none'", "'x'")),
    case("sweeps a seed that is a word", "--seeds", "1,two", says=("`--seeds` is '1,two'", "1,2,3")),
    case("sweeps a seed below zero", "--seeds", "-1", says=("`--seeds` is '-1'",)),
    case("sweeps an order that lacks a domain", "--orders", "a", says=("'a'", "each of a, b once")),
    case("sweeps an order with a domain twice", "--orders", "a,b;a,a", says=("'a,a'", "each of a, b once")),
    case("sweeps an order with another's domain", "--orders", "a,d", says=("'d'", "no domain")),
    case("draws more orders than there are", "--orders", "random:9", says=("'random:9'", "1 to 2")),
    case("does not say how many orders to draw", "--orders", "random:", says=("'random:'", "how many")),
    case("sweeps a key without values", "--set", "train.learning_rate", says=("'train.learning_rate'", "1e-4,3e-4")),
    case("sweeps a key over nothing", "--set", "train.learning_rate=", says=("`--set` is ''", "one or more")),
    case("mistypes a swept key", "--set", "train.learning_rat=1,2", says=("train.learning_rat", "learning_rate")),
    case("sweeps steps over a word", "--set", "train.max_steps=many", says=("train.max_steps", "many")),
    case("sweeps seeds by the key of the recipe", "--set", "run.seed=1,2", says=("`run.seed`", "--seeds")),
    case("sweeps methods by the key of the recipe", "--set", "method=das,ewc", says=("`method`", "--methods")),
    case(
        "sweeps an option of no entry's method", "--set", "method.migu.threshold=0,0.5", says=("no entry has 'migu'",)
    ),
    case("sweeps the names of a domain", "--set", "domains.a.name=c", says=("`domains.a.name`", "single keys")),
    case(
        "sweeps a domain by its number",
        *("--set", "domains.0.max_documents=3"),
        says=("`domains.0.max_documents`", "domains.a.max_documents"),
    ),
    case("sweeps a task that is not there", "--set", "end_tasks.t.max_train=3", says=("`end_tasks.t.max_train`",)),
    case(
        "sweeps one key twice",
        *("--set", "train.max_steps=1", "--set", "train.max_steps=2"),
        says=("`train.max_steps` more than once",),
    ),
    case("compares a sweep with what it has not", "--reference", "das", says=("`--reference` is 'das'", "sequential")),
    case("writes a sweep as a spreadsheet", "-o", "table.xls", says=("table.xls", ".md")),
    case("mistypes a key of a swept recipe", "data.blok_size=3", says=("data.blok_size", "block_size")),
    case(
        "sweeps one method that does not fit",
        *("--methods", "sequential,replay:source=general"),
        says=("replay-sourcegeneral: ", "general"),
    ),
    case(
        "sweeps blocks that are longer than the model reads",
        *("--set", "data.block_size=32,4096"),
        says=("sequential-data.block_size4096: ", "`data.block_size` is 4096"),
    ),
]
