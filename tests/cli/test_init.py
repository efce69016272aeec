"""`everlearn init`: a short recipe that fits a model and corpora, and the reference with every key."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

import tiny
from cli_project import Project, write_jsonl
from everlearn.commands.recommendation import METHOD, learning_rate, rate_text
from everlearn.config.recipe import Recipe, parse
from everlearn.methods import REGISTRY

ENGLISH = "It is not that the model was wrong, but that this text is from a page which they have not read. "
GERMAN = "Der Ausschuss hat gestern beschlossen, dass die neue Strecke erst im kommenden Jahr gebaut werden soll. "


def written(everlearn: Project, *options: str) -> dict[str, Any]:
    """What `init -` prints, as plain data that makes a recipe."""
    outcome = everlearn("init", "-", *options)
    assert outcome.code == 0, outcome
    raw = yaml.safe_load(outcome.out)
    suite = str((raw.get("general") or {}).get("path", "")).startswith("suite:")
    parse({key: value for key, value in raw.items() if not (suite and key == "general")})  # it takes long to make
    return dict(raw)


def corpus(name: str, sentence: str, count: int = 400) -> str:
    write_jsonl(Path(f"{name}.jsonl"), [{"text": f"{number} {sentence}"} for number in range(count)])
    return f"{name}={name}.jsonl"


def test_without_a_model_or_corpora_an_example_of_25_lines_says_what_to_edit(everlearn: Project) -> None:
    outcome = everlearn("init", "mine.yaml")
    assert outcome.code == 0
    assert "Edit `model` and `domains`" in outcome.out
    text = Path("mine.yaml").read_text()
    assert len(text.splitlines()) <= 25
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("# edit") == 4
    raw = yaml.safe_load(text)
    assert raw["method"] == METHOD[0]
    assert raw["train"]["learning_rate"] == learning_rate("encoder", 125_000_000)
    assert raw["general"]
    assert parse(raw).general is not None
    everlearn.fails("init", "mine.yaml", says=("mine.yaml", "not overwritten"))
    assert Path("mine.yaml").read_text() == text


def test_a_dash_is_standard_output(everlearn: Project) -> None:
    before = sorted(Path().iterdir())
    outcome = everlearn.call("init", "-")
    assert parse(yaml.safe_load(outcome.out))
    assert sorted(Path().iterdir()) == before


def test_nothing_heavy_is_imported_where_no_model_is_asked() -> None:
    code = (
        "import sys; from everlearn.cli import main; code = main(['init', '-']); "
        "sys.exit(code or 'torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("options", [(), ("--domain", "b=a.jsonl")])
def test_every_key_is_there_with_all(everlearn: Project, options: tuple[str, ...]) -> None:
    outcome = everlearn("init", "-", "--all", *options)
    recipe = parse(yaml.safe_load(outcome.out))
    assert [domain.name for domain in recipe.domains] == (["b"] if options else ["reviews", "papers"])
    for group in Recipe.model_fields:
        assert f"{group}:" in outcome.out
    for name in REGISTRY:
        assert f"{{name: {name}" in outcome.out
    short = written(everlearn, *options)
    assert yaml.safe_load(outcome.out) == short | {"model": {"path": short["model"]}}


@pytest.mark.parametrize("group", ["general", "end_tasks", "evaluation", "stop"])
def test_a_commented_group_is_set_by_taking_away_the_signs(everlearn: Project, group: str) -> None:
    before, _, after = everlearn("init", "-", "--all", "--domain", "b=a.jsonl").out.partition(f"# {group}:\n")
    block, _, rest = after.partition("\n\n")
    block = "\n".join(line.removeprefix("# ") for line in block.splitlines())
    raw = yaml.safe_load(f"{before}{group}:\n{block}\n\n{rest}")
    assert group in raw
    raw[group] = raw[group] or {}
    assert getattr(parse(raw), group) is not None


@pytest.mark.parametrize("kind", ["roberta", "llama", "t5"])
def test_what_it_writes_passes_validate(everlearn: Project, kind: str) -> None:
    rows = [{"prompt": f"{text} ", "answer": "yes"} for text in tiny.texts(300)]
    for name in ("first", "second", "known"):
        plain = [{"text": row["prompt"]} for row in rows]
        write_jsonl(Path(f"{name}.jsonl"), rows if kind == "t5" else plain)
    asked = (
        "--model",
        str(everlearn.models / kind),
        "--domain",
        "first=first.jsonl",
        "--domain",
        "second=second.jsonl",
    )
    assert everlearn("init", "mine.yaml", *asked, "--general", "known.jsonl").code == 0
    text = Path("mine.yaml").read_text()
    assert len(text.splitlines()) <= 30, text
    raw = yaml.safe_load(text)
    objectives = {"roberta": "masked", "llama": "causal", "t5": "text-to-text"}
    assert raw["objective"] == objectives[kind]
    assert raw["data"]["block_size"] <= 128, "what the model reads, and few rows of so little text"
    assert raw["train"]["bf16"] in (True, False)
    assert raw["general"]["path"] == "known.jsonl"
    assert raw["domains"][0].get("row_format") == ("prompt-answer" if kind == "t5" else None)
    assert re.search(r"300 documents, [\d,.]+( M)? tokens, about \d+ steps?$", text, re.MULTILINE), text
    outcome = everlearn("validate", "mine.yaml", "data.cache=cache", "--json")
    assert outcome.code == 0, outcome.out
    assert json.loads(outcome.out)["ok"]


def test_addresses_of_a_suite_work_as_in_a_recipe(everlearn: Project) -> None:
    """The model and the corpora that come with everlearn can be tried without a network."""
    raw = written(everlearn, "--model", "suite:docs/base", "--domain", "sympy=suite:docs/sympy/train.jsonl")
    assert (raw["model"], raw["domains"][0]["path"]) == ("suite:docs/base", "suite:docs/sympy/train.jsonl")
    assert raw["objective"] == "masked"
    outcome = everlearn("init", "-", "--model", "suite:dox/base")
    assert outcome.code == 2
    assert "There is no suite 'dox' ('suite:dox/base'). Known: code, docs" in outcome.err


def test_the_learning_rate_follows_the_model_and_the_task(everlearn: Project) -> None:
    write_jsonl(Path("ask.jsonl"), [{"question": f"{text}? ", "answer": "no"} for text in tiny.texts(300)])
    for kind, of in (("roberta", "encoder"), ("llama", "decoder")):
        model = ("--model", str(everlearn.models / kind))
        assert written(everlearn, *model)["train"]["learning_rate"] == learning_rate(of, 30_000)
        raw = written(everlearn, *model, "--domain", "ask=ask.jsonl")
        assert raw["train"]["learning_rate"] == learning_rate(of, 30_000, examples=True)
        assert raw["domains"][0]["row_format"] == "question-answer"


def test_columns_follow_the_task(everlearn: Project) -> None:
    row = {"text": "A text. ", "prompt": "Say it. ", "completion": "It."}
    write_jsonl(Path("both.jsonl"), [row] * 50)
    for task, form in (
        ((), "prompt-completion"),
        (("--task", "pretrain"), None),
        (("--task", "sft"), "prompt-completion"),
    ):
        assert written(everlearn, "--domain", "b=both.jsonl", *task)["domains"][0].get("row_format") == form
    write_jsonl(Path("named.jsonl"), [{"Source": "A text. ", "target": "A word."}] * 50)
    named = written(everlearn, "--domain", "b=named.jsonl")["domains"][0]
    assert (named["text_column"], named["target_column"]) == ("Source", "target")
    write_jsonl(Path("odd.jsonl"), [{"id": "1", "story": "Once upon a time. " * 9}] * 50)
    assert written(everlearn, "--domain", "b=odd.jsonl")["domains"][0]["text_column"] == "story"


def test_general_text_is_offered_where_the_language_fits(everlearn: Project) -> None:
    outcome = everlearn("init", "-", "--domain", corpus("english", ENGLISH))
    assert yaml.safe_load(outcome.out)["general"]["path"] == "suite:docs/general/train.jsonl"
    assert "built-in text" in outcome.err
    outcome = everlearn("init", "-", "--domain", corpus("german", GERMAN))
    assert "general" not in yaml.safe_load(outcome.out)
    assert "# general: " in outcome.out
    assert "the loss of earlier knowledge is not measured" in outcome.err


def test_passes_are_those_of_the_largest_domain(everlearn: Project) -> None:
    small, large = corpus("small", ENGLISH, 50), corpus("large", ENGLISH, 20_000)
    both = written(everlearn, "--domain", small, "--domain", large)
    assert both["train"]["num_train_epochs"] == 1
    assert "train" not in both["domains"][0], "it would go over `train.max_steps` on the command line"
    assert written(everlearn, "--domain", small)["train"]["num_train_epochs"] == 4


def test_what_a_user_should_know_of_the_examples_is_said(everlearn: Project) -> None:
    row = {"prompt": "Answer this question of mine", "input": "a long text to read " * 3, "answer": "an answer"}
    write_jsonl(Path("glued.jsonl"), [row] * 40)
    outcome = everlearn("init", "-", "--domain", "b=glued.jsonl")
    assert "nothing stands between them" in outcome.err
    assert "not read is 'input'" in outcome.err
    assert "so little text" in outcome.err
    long = [{"prompt": "word " * 300, "answer": "an answer"}] * 40
    write_jsonl(Path("long.jsonl"), long)
    model = str(everlearn.models / "roberta")
    assert "what is longer is cut" in everlearn("init", "-", "--model", model, "--domain", "b=long.jsonl").err


@pytest.mark.parametrize("rows", ["csv", "parquet", "txt", "json"])
def test_every_format_is_looked_into(everlearn: Project, rows: str) -> None:
    import pandas

    table = pandas.DataFrame({"number": range(60), "body": [f"{n} {ENGLISH}" for n in range(60)]})
    file = f"table.{rows}"
    if rows == "txt":
        Path(file).write_text("\n".join(table["body"]))
    elif rows == "json":
        table.to_json(file, orient="records")
    else:
        getattr(table, f"to_{rows}")(file)
    expected = {} if rows == "txt" else {"text_column": "body"}
    domain = written(everlearn, "--domain", f"d={file}")["domains"][0]
    assert domain == {"name": "d", "path": file, **expected}


def test_batches_that_fit_the_memory(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ("--model", str(everlearn.models / "llama"))

    def train(free: int | None) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr("everlearn.commands.model_probe.memory_free", lambda: (free, "this machine"))
        outcome = everlearn("init", "-", *model)
        return yaml.safe_load(outcome.out)["train"], outcome.err

    all_rows, _ = train(None)
    assert all_rows["per_device_train_batch_size"] == 16
    assert "gradient_accumulation_steps" not in all_rows
    some, nothing_said = train(16_000_000)
    assert some["per_device_train_batch_size"] * some["gradient_accumulation_steps"] == 16
    assert 1 <= some["per_device_train_batch_size"] < 16
    assert "needs about" not in nothing_said
    least, said = train(1000)
    assert least["per_device_train_batch_size"] == 1
    assert "needs about" in said


def test_in_a_folder_of_markdown_each_file_is_a_document(everlearn: Project) -> None:
    for folder, suffix in (("notes", "md"), ("lines", "txt")):
        Path(folder).mkdir()
        for number in range(30):
            Path(folder, f"{number}.{suffix}").write_text(f"# Note {number}\n\n{ENGLISH * 3}\n\nThe end.\n")
    domains = ("--domain", "a=notes", "--domain", "b=lines")
    notes, lines = written(everlearn, *domains, "--general", "notes")["domains"]
    assert notes == {"name": "a", "path": "notes", "documents": "file"}
    assert lines == {"name": "b", "path": "lines"}
    outcome = everlearn("init", "-", *domains, "--general", "notes")
    assert outcome.out.count("30 documents") == 1
    assert yaml.safe_load(outcome.out)["general"] == {"path": "notes", "documents": "file"}


def test_commands_to_copy_are_written_as_a_shell_reads_them(everlearn: Project) -> None:
    Path("my notes").mkdir()
    outcome = everlearn("init", "my notes/first recipe.yaml")
    assert "everlearn validate 'my notes/first recipe.yaml'" in outcome.out
    assert "# everlearn run 'my notes/first recipe.yaml' " in Path("my notes/first recipe.yaml").read_text()


def test_a_path_that_starts_elsewhere_is_a_path(everlearn: Project) -> None:
    """No id of the hub has letters outside of ASCII, and relative paths start where the command runs."""
    for path in ("données/texte", "data/rows.jsonl"):
        everlearn.fails("init", "-", "--domain", f"a={path}", says=("no such file", "start where the command runs"))


STANZA = "Here is a line of verse.\n" * 4
POEM = "\n".join([STANZA] * 6)


def test_lines_that_are_parts_of_documents_are_not_taken_for_documents(everlearn: Project) -> None:
    Path("poems").mkdir()
    for number in range(30):
        Path("poems", f"{number}.txt").write_text(POEM.replace("Here", f"In {number}"))
    Path("book.txt").write_text("\n".join(textwrap.wrap(ENGLISH * 60, 70)))
    Path("lines.txt").write_text((ENGLISH.strip() + "\n") * 60)
    outcome = everlearn("init", "-", "--domain", "a=poems", "--domain", "b=book.txt", "--domain", "c=lines.txt")
    poems, book, lines = yaml.safe_load(outcome.out)["domains"]
    assert poems == {"name": "a", "path": "poems", "documents": "file"}
    assert (book, lines) == ({"name": "b", "path": "book.txt"}, {"name": "c", "path": "lines.txt"})
    assert [name for name in "abc" if f"The lines of '{name}' look like parts" in outcome.err] == ["b"]


def test_in_a_tree_of_code_a_readme_is_one_document(everlearn: Project) -> None:
    Path("code").mkdir()
    for number in range(30):
        Path("code", f"{number}.py").write_text(f"# {ENGLISH * 3}\n")
    Path("code", "README.md").write_text("# A\n\nfew lines\n")
    Path("code", "package.json").write_text('{"name": "a"}')
    (domain,) = written(everlearn, "--domain", "a=code", "--general", "code")["domains"]
    assert domain == {"name": "a", "path": "code", "documents": "file"}


def test_a_mistyped_folder_of_a_model_is_answered_with_the_one_beside_it(everlearn: Project) -> None:
    Path("my-model").mkdir()
    everlearn.fails(
        "init", "-", "--model", "my-modle", says=("'my-modle'", "no local folder", "Did you mean 'my-model'?")
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--domain", "a"), ("--domain", "'a'", "contracts=contracts.jsonl")),
        (("--domain", "a=a.jsonl", "--domain", "a=b.jsonl"), ("--domain", "'a'", "more than once")),
        (("--domain", "a=a.jsonl", "--domain", "A=b.jsonl"), ("'a'", "'A'", "more than case")),
        (("--domain", "a/b=a.jsonl"), ("a domain's name", "a/b")),
        (("--domain", "general=a.jsonl"), ("general",)),
        (("--domain", "a=owner/nowhere"), ("owner/nowhere", "hub data set")),
        (("--domain", "a=~nobody-of-this-name/x"), ("--domain", "no user")),
        (("--domain", "a=nowhere.jsonl"), ("--domain a", "nowhere.jsonl", "no such file")),
        (("--general", "nowhere.jsonl"), ("--general", "nowhere.jsonl", "no such file")),
        (("--task", "chat"), ("--task", "'chat'", "sft")),
        (("--domain", "a=a.jsonl", "--task", "sft"), ("--task sft", "'text'")),
        (("--model", "T5", "--domain", "a=chats.jsonl"), ("learns only prompts and answers", "'messages'")),
        (("--model", "./nowhere"), ("./nowhere", "no local folder")),
        (("--model", "T5", "--task", "pretrain"), ("--task", "encoder-decoder")),
        (
            ("--model", "T5", "--domain", "a=a.jsonl"),
            ("An encoder-decoder model learns only prompts", "'text'"),
        ),
        (("--domain", "a=empty.txt"), ("empty.txt is empty: it holds no text",)),
        (("--model", "GPT", "--domain", "a=one.txt"), ("--domain a", "one.txt has 1 document", "a row of 32")),
        (
            ("--model", "GPT", "--domain", "a=a.jsonl", "--general", "one.txt"),
            ("--general", "1 document", "of 32"),
        ),
        (("--model", "RUN"), ("`--model` is", "a run and not a model", "stage-01-a")),
    ],
)
def test_a_mistake_is_one_sentence(everlearn: Project, options: tuple[str, ...], says: tuple[str, ...]) -> None:
    write_jsonl(Path("chats.jsonl"), [{"messages": [{"role": "user", "content": "Hello."}]}] * 3)
    Path("empty.txt").write_text("")
    Path("one.txt").write_text("Hello world.")
    Path("runs/first/stage-01-a").mkdir(parents=True)
    Path("runs/first/recipe.yaml").write_text("{}")
    places = {"T5": str(everlearn.models / "t5"), "GPT": str(everlearn.models / "llama"), "RUN": "runs/first"}
    words = [places.get(word, word) for word in options]
    everlearn.fails("init", "mine.yaml", *words, says=says)
    assert not Path("mine.yaml").exists()


def test_of_little_text_rows_are_short_enough_for_what_is_held_out(everlearn: Project) -> None:
    write_jsonl(Path("few.jsonl"), [{"text": text} for text in tiny.texts(12)])
    model = ("--model", str(everlearn.models / "llama"))
    outcome = everlearn("init", "mine.yaml", *model, "--domain", "few=few.jsonl", "--general", "few.jsonl")
    assert outcome.code == 0, outcome.err
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["block_size"] == 32
    outcome = everlearn("validate", "mine.yaml", "data.cache=cache")
    assert outcome.code == 0, outcome


def test_an_adapter_is_asked_through_its_base(everlearn: Project) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = everlearn.models / "llama"
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM"))
    adapted.save_pretrained("adapter")
    corpus("words", " ".join(tiny.texts(1)))
    asked = ("--domain", "words=words.jsonl", "--general", "words.jsonl")
    outcome = everlearn("init", "mine.yaml", "--model", "adapter", *asked)
    assert outcome.code == 0, outcome.err
    assert yaml.safe_load(Path("mine.yaml").read_text())["model"] == "adapter"
    outcome = everlearn("validate", "mine.yaml", "data.cache=cache")
    assert outcome.code == 0, outcome


def test_a_url_stays_one(everlearn: Project) -> None:
    corpus("words", " ".join(tiny.texts(1)))
    url = f"file://{Path('words.jsonl').resolve()}"
    raw = written(everlearn, "--model", str(everlearn.models / "llama"), "--domain", f"words={url}", "--general", url)
    assert raw["domains"][0]["path"] == raw["general"]["path"] == url


def test_notes_name_the_domains_that_they_are_about(everlearn: Project) -> None:
    model = ("--model", str(everlearn.models / "llama"))
    english, german = corpus("english", ENGLISH), corpus("german", GERMAN)
    write_jsonl(Path("ask.jsonl"), [{"question": f"{text}? ", "answer": "nein"} for text in tiny.texts(300)])
    both = everlearn("init", "-", *model, "--domain", german, "--domain", english).err
    assert "'english' looks English" in both
    assert "your text looks English" in everlearn("init", "-", *model, "--domain", english).err
    assert "that of prompts and answers" not in both
    mixed = everlearn("init", "-", *model, "--domain", german, "--domain", "ask=ask.jsonl").err
    text, lower = (rate_text(learning_rate("decoder", 30_000, examples=each)) for each in (False, True))
    assert f"that of prompts and answers, {lower}, though 'german' is text, for which the rule says {text}" in mixed
