"""What README and docs show really works: commands parse, recipes load, code runs."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
import yaml

import stages
import tiny
from cli_project import Project, write_jsonl
from everlearn.cli import COMMANDS, application, main
from everlearn.commands.first_recipe import first_recipe
from everlearn.config.recipe import load, parse
from everlearn.data.documents import check_corpus
from everlearn.grid import RecipeTemplate, read_variations, resolve
from everlearn.methods import REGISTRY, build
from everlearn.methods.base import VARIANTS
from everlearn_bench.suites import find_suite, overlay_of

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import demo_page  # noqa: E402
import method_tables  # noqa: E402

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("benchmarks/*/*.md")),
]
DOCUMENTS += [ROOT / ".github" / "pull_request_template.md"]
RECIPES = [path for path in sorted((ROOT / "recipes").glob("*.yaml")) if "suite:" not in path.read_text()]


PLACES: dict[str, Any] = {"name": "cell", "folder": ROOT / "runs" / "cell"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_blocks(path: Path, language: str = "") -> list[str]:
    """Fenced blocks of a language, those inside a list too."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(f"{indent}\n{block}").lstrip("\n") for indent, block in found]


def commands() -> list[tuple[str, list[str]]]:
    """Every `everlearn …` line of a code block, and of the recipes' header comments."""
    lines = []
    for path in DOCUMENTS:
        for block in [*code_blocks(path), *code_blocks(path, "bash")]:
            lines += [(named(path), line) for line in block.replace("\\\n", " ").splitlines()]
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found = re.search(r"^#.*?(everlearn (?:run|validate|plan|report) .*?)(;|$)", line)
            lines += [(named(path), found.group(1))] if found else []
    lines += [("docs/features.md", row[2]) for row in features() if row[2].startswith("everlearn ")]
    table = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    lines += [
        ("docs/systems.md", command) for command in re.findall(r"^\| [^`]* \| `(everlearn [^`]*)`", table, re.MULTILINE)
    ]
    example = tomllib.loads((ROOT / "examples" / "everlearn-example" / "pyproject.toml").read_text(encoding="utf-8"))
    brought = {name for group in example["project"]["entry-points"].values() for name in group}
    said = [
        (name, shlex.split(line.split(" > ")[0], comments=True))
        for name, line in lines
        if line.startswith("everlearn ")
    ]
    # What the example package brings is tried where it is installed: tests/cli/test_plugins.py.
    return [(name, words) for name, words in said if not brought & {*words}]


def features() -> list[list[str]]:
    """The rows of the table of features: feature, whether it is here, the command, the page."""
    rows = re.findall(r"^\| (.*) \|$", (ROOT / "docs" / "features.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.split(" | ")] for row in rows[1:]]


@pytest.mark.parametrize(("place", "words"), commands(), ids=lambda value: str(value)[:60])
def test_commands_parse(place: str, words: list[str], tmp_path: Path) -> None:
    group = typer.main.get_command(application(words[1:]))
    name, command, rest = group.resolve_command(typer.Context(group), words[1:])
    assert command is not None
    context = command.make_context(name, list(rest))
    if hasattr(command, "commands"):  # a verb with commands of its own
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        command.make_context(name, list(rest), parent=context)
    if name in ("run", "validate", "plan"):
        file = ROOT / str(context.params["recipe"])
        if not file.is_file():
            file = tmp_path / "recipe.yaml"
            file.write_text(code_blocks(ROOT / "README.md", "yaml")[0])
        overrides = [text for text in context.params["overrides"] or () if "near_base" not in text and "$" not in text]
        load(file, overrides)
    if name == "sweep":
        file = tmp_path / "recipe.yaml"
        file.write_text(code_blocks(ROOT / "README.md", "yaml")[0])
        assert read_variations(
            context.params["methods"], context.params["sets"] or (), RecipeTemplate(load(file), "recipe")
        )
    if name == "bench" and context.params["methods"]:
        suite = find_suite(context.params["suite"])
        entries = resolve(context.params["methods"].split(","), suite)
        assert entries
        if suite.name == "docs":  # works as written on a fresh checkout: nothing is missing that somebody must fetch
            keys = suite.recipe(0, method=[{"name": "ewc"}], seed=0, **PLACES)
            recipe = parse(keys)
            for corpus in (*recipe.domains, recipe.general):
                check_corpus(corpus)
            assert suite.locate("base").is_dir()


def test_the_table_of_features_counts() -> None:
    rows = features()
    assert all(len(row) == 4 and row[1] in ("yes", "partly", "no") for row in rows)
    assert sum(row[1] == "yes" for row in rows) >= 38


def test_every_command_and_method_is_in_its_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in (*COMMANDS, "bench", "demo"):
        assert f"| `{verb}` |" in text


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_method_says_what_it_does_in_a_line_of_the_table(name: str) -> None:
    text, cls = method_tables.PAGE.read_text(encoding="utf-8"), REGISTRY[name]
    assert 0 < len(cls.summary) <= 100
    place = re.escape(method_tables.sections()[name])
    assert re.search(rf"^\| \[`{name}`\]\({place}\) \| {re.escape(cls.summary)}[;| ]", text, re.MULTILINE)
    (one,) = re.findall(rf"^\| \*\*{cls.kinds[0]}\*\* \|.*$", text, re.MULTILINE)
    assert f"`{name}`" in one


def test_the_tables_say_what_the_registry_has_and_what_was_measured() -> None:
    """As `python docs/method_tables.py` writes them."""
    text, measured = method_tables.PAGE.read_text(encoding="utf-8"), method_tables.measured()
    assert method_tables.page(text, measured) == text
    assert method_tables.TYPES.read_text(encoding="utf-8") == method_tables.types()
    assert method_tables.page(text.replace(") | penalises", ") | forgets"), measured) == text
    table = text.split(method_tables.COSTS, 1)[1].split("\n\n", 1)[0]
    for name in ("ewc", "mofo", "lora"):
        found = measured[REGISTRY[name].title]
        numbers = f"{found['times_processor_seconds_per_step']:.2f} | {found['times_peak_bytes']:.2f} |"
        assert re.search(rf"^\| `{name}` \|.*\| {re.escape(numbers)}$", table, re.MULTILINE), name
    assert re.search(r"^\| `mocl` \|.*\| – \| – \|$", table, re.MULTILINE), "not measured"


def test_the_page_of_exports_names_each_method_with_what_its_memory_reveals_and_what_it_is_tested_with() -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    (beyond_a_model,) = [part for part in text.split("\n\n") if part.startswith("Some methods need more than")]
    for name in REGISTRY:
        method = build(name)
        (row,) = re.findall(rf"^\| {method.needs.keeps} \|.*$", text, re.MULTILINE)
        assert f"`{name}`" in row, (name, method.needs.keeps)
        more = not method.tested_as_saved and not method.needs.earlier_models
        assert (f"`{name}`" in beyond_a_model) is more, name


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_shipped_recipes_load_and_say_how_to_launch_them(path: Path) -> None:
    recipe = load(path)
    assert recipe.methods()
    assert f"everlearn run recipes/{path.name}" in path.read_text(encoding="utf-8")
    assert path.name in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_recipes_in_documents_load(path: Path) -> None:
    for block in code_blocks(path, "yaml"):
        raw = yaml.safe_load(block)
        if "domains" not in raw:
            continue
        if isinstance(raw["domains"], list):
            parse(raw)
        elif "each" not in raw["domains"]:
            assert overlay_of(raw).recipe["domains"], "a settings file of a suite"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r' "[^"\n]*"\)', ")", re.sub(r"`[^`\n]*`", "", text))  # without titles, which may hold a bracket
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        place = path.parent / target if target else path
        assert place.exists(), target
        assert ROOT in place.resolve().parents, target
        if anchor:
            assert anchor in anchors(place), f"{target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """What the headings of a page can be linked to by, as the hosting platform and the site make it."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


MAKE = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_other_commands_exist(path: Path) -> None:
    """`make` has the target, `pip` the extra, `python` the file; nothing else stands in a README block."""
    for block in code_blocks(path, "bash"):
        for line in block.replace("\\\n", " ").replace(" && ", "\n").splitlines():
            words = shlex.split(line, comments=True)
            program = Path(words[0]).name if words else ""
            if program == "make":
                assert {word for word in words[1:] if "=" not in word} <= MAKE, line
            elif program == "pip":
                assert set(re.findall(r"[a-z-]+", "".join(re.findall(r"\[(.*)\]", line)))) <= EXTRAS, line
            elif program == "python":
                files = [word for word in words[1:] if word.endswith(".py")]
                assert files, line
                assert all((ROOT / file).is_file() for file in files), line
            elif path.name == "README.md" and path.parent == ROOT:
                assert program in ("", "everlearn"), line


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_python_in_documents_compiles(path: Path) -> None:
    for number, block in enumerate(code_blocks(path, "python")):
        compile(block, f"{path.name}, block {number}", "exec")


def test_the_readme_has_no_block_of_another_kind() -> None:
    languages = re.findall(r"^ *```(\w*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(languages[::2]) == {"bash", "yaml"}
    assert set(languages[1::2]) == {""}


def test_the_demo_page_and_its_picture_show_the_committed_cells() -> None:
    """Both are written by `python docs/demo_page.py`; a screen reader is told the picture's numbers."""
    page, picture = (file.read_text(encoding="utf-8") for file in (demo_page.PAGE, demo_page.PICTURE))
    assert demo_page.with_tables(page) == page
    said = re.findall('aria-label="([^"]*)"', picture)[0]
    assert len(demo_page.tradeoff_points()) == len(demo_page.METHODS)
    for run in demo_page.tradeoff_points():
        values = (f"{value:.3f}" for value in (run.learnt.value, run.forgotten.value))
        shown = "{}: learnt {}{interval}, forgotten {}{interval}".format(run.label, *values, interval=r"( \[[^\]]*\])?")
        assert re.search(shown, said), said
    assert "var(" not in demo_page.picture()  # it stands without a page
    with zipfile.ZipFile(demo_page.CELLS) as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    assert len(contents) == 3 * 25
    contents += [file.read_bytes() for file in demo_page.RUNS.glob("*/*")]
    for content in contents:
        assert b"/root/" not in content, "a place of somebody's machine"
        assert b"/tmp/" not in content, "a place of somebody's machine"
    assert "results/demo.svg)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_readme_says_how_many_claims_are_decided() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = re.findall(r"\[(\d+) of (\d+) claims decided\]\((docs/claims[\w-]*\.md)\)", readme)
    assert len(quoted) == 4
    for decided, every, place in quoted:
        head = (ROOT / place).read_text(encoding="utf-8").split("\n\n")[1]
        verdicts = head.rpartition("Verdict")[2]  # for these tasks, where there are two kinds
        counts = [int(number) for number in re.findall(r"(?:holds|does not hold) here: (\d+)", verdicts)]
        assert f"**{every} claims**" in head
        assert sum(counts) == int(decided), place


README_MODEL = "FacebookAI/roberta-base"


def test_the_readme_runs_from_its_recipe_to_its_page(everlearn: Project) -> None:
    """Every command under the README's recipe, one after the other, on small corpora and a small model."""
    block = next(block for block in code_blocks(ROOT / "README.md", "bash") if "everlearn init" in block)
    lines = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert [words[0] for words in lines] == ["init", "validate", "run", "run", "report"]
    (everlearn.folder / "data").mkdir()
    for seed, name in enumerate(("reviews.jsonl", "papers.txt", "wikipedia.txt")):
        texts = tiny.texts(300, seed)
        lines_of = [json.dumps({"text": text}) for text in texts] if name.endswith("jsonl") else texts
        (everlearn.folder / "data" / name).write_text("\n".join(lines_of))
    everlearn.recipe = parse_readme() | {
        "model": str(everlearn.models / "roberta"),
        "method": parse_readme()["method"] | {"samples": 4},
        "data": {"block_size": 32},
        "evaluation": {"blocks": 4},
    }
    everlearn.recipe["train"] |= {"max_steps": 2, "per_device_train_batch_size": 4}
    for words in lines:
        if words[0] == "init":
            assert main([str(everlearn.models / "roberta") if word == README_MODEL else word for word in words]) == 0
            assert "domains:" in Path("recipe.yaml").read_text(encoding="utf-8")
            continue
        outcome = everlearn(*words)
        assert outcome.code == 0, outcome
    assert "plain" in Path("comparison.html").read_text(encoding="utf-8")


def test_the_readme_is_short_and_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.partition("## Status")[0].split()) <= 500
    assert f"[{len(REGISTRY)} methods](docs/methods.md)" in text
    assert f"{len(VARIANTS)} variants" in text


def test_the_readme_has_the_recipe_that_init_writes() -> None:
    assert parse_readme() == yaml.safe_load(first_recipe().text())


def parse_readme() -> dict[str, Any]:
    (recipe,) = code_blocks(ROOT / "README.md", "yaml")
    return dict(yaml.safe_load(recipe))


def test_the_loop_of_the_guide_goes_on_where_it_was_stopped(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (everlearn.folder / "data").mkdir()
    write_jsonl(everlearn.folder / "data/reviews.jsonl", [{"text": text} for text in tiny.texts(64, words=40)])
    for each in (tiny.model("llama"), tiny.tokenizer()):  # without dropout, whose random numbers are not saved
        each.save_pretrained(everlearn.folder / "model")
    (block,) = (each for each in code_blocks(ROOT / "docs" / "protect.md", "python") if "save_state" in each)
    block = block.replace("openai-community/gpt2", "model").replace("2, 100", "2, 4")
    block = block.replace('"ewc"', '{"name": "ewc", "samples": 8}')
    scope: dict[str, Any] = {"__name__": "document"}
    ends, write = [], torch.save

    def stop(weights: Any, path: Path) -> None:
        write(weights, path)
        raise KeyboardInterrupt

    for name, save in (("whole", lambda weights, path: None), ("stopped", stop), ("stopped", write)):
        monkeypatch.setattr(torch, "save", save)
        with contextlib.suppress(KeyboardInterrupt):
            exec(compile(block.replace("loop", name), "protect.md", "exec"), scope)
            ends.append((scope["model"].state_dict(), scope["protected"].report.steps))
    (whole, steps), (resumed, again) = ends
    assert steps == again == 4, "8 batches, two a step"
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_the_guide_names_the_release_of_trl_that_the_tests_use() -> None:
    (release,) = re.findall(r"^trl==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    low, high = re.fullmatch(r"trl>=(.*),<(.*)", project["optional-dependencies"]["trl"][0]).groups()  # type: ignore[union-attr]
    page = (ROOT / "docs" / "protect.md").read_text(encoding="utf-8")
    assert f"from version {low} and below {high}; the tests run with TRL {release}." in page


def test_python_in_the_documents_runs(everlearn: Project) -> None:
    data = everlearn.folder / "data"
    data.mkdir()
    for seed, name in enumerate(("reviews", "papers", "general", "a", "b")):
        write_jsonl(data / f"{name}.jsonl", [{"text": text} for text in tiny.texts(400, seed, words=40)])
    blocks = [
        block
        for page in ("quickstart", "protect")
        for block in code_blocks(ROOT / "docs" / f"{page}.md", "python")
        if "DPOTrainer" not in block  # tests/unit/test_protect_trl.py runs it
    ]
    assert len(blocks) >= 4
    for number, block in enumerate(blocks):
        small = {
            "FacebookAI/roberta-base": str(everlearn.models / "roberta"),
            "openai-community/gpt2": str(everlearn.models / "llama"),
            '"max_steps": 1000': '"max_steps": 2, "save_steps": 100',
            '"per_device_train_batch_size": 32': '"per_device_train_batch_size": 4',
            "DAS()": "DAS(samples=8)",
            "samples=1000": "samples=8",
            "Qwen/Qwen3-0.6B": str(everlearn.models / "llama"),
            "max_steps=1000": "max_steps=2, use_cpu=True, bf16=False, report_to='none'",
            "per_device_train_batch_size=32": "per_device_train_batch_size=4",
            '"ewc"': '{"name": "ewc", "samples": 8}',
            '["das",': '[{"name": "das", "samples": 8, "general": "none"},',
            'split="train"': 'split="train[:40]"',
            'memory="memory/"': f'memory="memory-{number}/"',
            'folder="runs/': f'data={{"block_size": 32}}, evaluation={{"blocks": 8}}, folder="runs/{number}-',
        }
        for old, new in small.items():
            block = block.replace(old, new)
        scope: dict[str, object] = {"__name__": "document"}
        exec(compile(block, f"python block {number}", "exec"), scope)


def test_the_method_of_the_guide_works() -> None:
    (code,) = code_blocks(ROOT / "docs" / "add-a-method.md", "python")
    for part in code_blocks(ROOT / "docs" / "method-reference.md", "python"):
        compile(part, "method-reference.md", "exec")
    try:
        scope: dict[str, object] = {"__name__": "everlearn.methods.near_base"}
        exec(compile(code, "near_base.py", "exec"), scope)
        method = REGISTRY["near_base"](strength=0.5)
        model = tiny.model("gpt2")
        start = stages.weights(model)
        stage = stages.stage(model, 1, "causal")
        stages.learn([method], stage)
        batch = next(stage.batches(4))
        penalty = method.extra_losses(stage, batch, None)["penalty"].detach()
        moved = sum(
            float((p.detach().double() - start[n].double()).square().sum()) for n, p in model.named_parameters()
        )
        assert float(penalty) == pytest.approx(0.25 * moved, rel=1e-4)
        assert penalty > 0
        again = REGISTRY["near_base"](strength=0.5)
        again.load_memory(method.memory())
        again.begin_domain(stages.stage(model, 2, "causal"))
        assert float(again.extra_losses(stage, batch, None)["penalty"].detach()) == pytest.approx(float(penalty))
        assert method.cost(model).memory_bytes == 4 * sum(p.numel() for p in model.parameters())
    finally:
        REGISTRY.pop("near_base", None)
