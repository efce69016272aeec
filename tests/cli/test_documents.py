"""What README and docs show really works: commands parse, recipes load, code runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
import yaml
from cli_project import Project, write_jsonl

import stages
import tiny
from everlearn.cli import VERBS, application
from everlearn.config.recipe import load, parse
from everlearn.methods import REGISTRY

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = [path for path in sorted((ROOT / "recipes").glob("*.yaml")) if "suite:" not in path.read_text()]


def code_blocks(path: Path, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, list[str]]]:
    """Every `everlearn …` line of a code block, and of the recipes' header comments."""
    lines = []
    for path in DOCUMENTS:
        lines += [(path.name, line) for block in code_blocks(path) for line in block.splitlines()]
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found = re.search(r"^#.*?(everlearn (?:run|validate|plan|report) .*?)(;|$)", line)
            lines += [(path.name, found.group(1))] if found else []
    return [(name, shlex.split(line.split(" > ")[0])) for name, line in lines if line.startswith("everlearn ")]


@pytest.mark.parametrize(("place", "words"), commands(), ids=lambda value: str(value)[:60])
def test_commands_parse(place: str, words: list[str], tmp_path: Path) -> None:
    group = typer.main.get_command(application())
    name, command, rest = group.resolve_command(typer.Context(group), words[1:])
    assert command is not None
    context = command.make_context(name, list(rest))
    if name in ("run", "validate", "plan"):
        recipe = ROOT / str(context.params["recipe"])
        if not recipe.is_file():
            recipe = tmp_path / "recipe.yaml"
            recipe.write_text(code_blocks(ROOT / "README.md", "yaml")[0])
        overrides = [text for text in context.params["overrides"] or () if "l2_sp" not in text and "$" not in text]
        load(recipe, overrides)


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"`everlearn {verb}" in text
    for name in REGISTRY:
        assert f"| `{name}` |" in text


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_shipped_recipes_load_and_say_how_to_launch_them(path: Path) -> None:
    recipe = load(path)
    assert recipe.methods()
    assert f"everlearn run recipes/{path.name}" in path.read_text(encoding="utf-8")
    assert path.name in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_recipes_in_documents_load(path: Path) -> None:
    for block in code_blocks(path, "yaml"):
        raw = yaml.safe_load(block)
        if "domains" in raw:
            parse(raw)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_python_in_the_documents_runs(everlearn: Project) -> None:
    data = everlearn.folder / "data"
    data.mkdir()
    for seed, name in enumerate(("reviews", "papers", "general", "a", "b")):
        write_jsonl(data / f"{name}.jsonl", [{"text": text} for text in tiny.texts(400, seed, words=40)])
    blocks = [*code_blocks(ROOT / "README.md", "python"), *code_blocks(ROOT / "docs" / "quickstart.md", "python")]
    assert len(blocks) == 5
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
    code, *parts = code_blocks(ROOT / "docs" / "add-a-method.md", "python")
    for part in parts:
        compile(part, "add-a-method.md", "exec")
    try:
        scope: dict[str, object] = {"__name__": "everlearn.methods.l2_sp"}
        exec(compile(code, "l2_sp.py", "exec"), scope)
        method = REGISTRY["l2_sp"](strength=0.5)
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
        again = REGISTRY["l2_sp"](strength=0.5)
        again.load_memory(method.memory())
        again.begin_domain(stages.stage(model, 2, "causal"))
        assert float(again.extra_losses(stage, batch, None)["penalty"].detach()) == pytest.approx(float(penalty))
        assert method.cost(model).memory_bytes == 4 * sum(p.numel() for p in model.parameters())
    finally:
        REGISTRY.pop("l2_sp", None)
