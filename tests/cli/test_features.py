"""The commands of the table of features are run on tiny models, but those that the page says are only parsed."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import tiny
from cli_project import Project, write_jsonl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
COMMANDS = list(dict.fromkeys(re.findall(r"^\| [^|]* \| \w+ \| `(everlearn .*?)` \| \[", PAGE, re.MULTILINE)))
PARSED = re.findall(r"^\* `(everlearn .*?)`", PAGE, re.MULTILINE)
TINY = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "save_steps": 2}


def rows(seed: int) -> list[dict[str, object]]:
    """Rows that have every column of the table."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return [
        {"text": text, "answer": text[:40], "title": "a", "doc": {"body": text}, "messages": chat, "tools": []}
        | {"instruction": "a", "input": "", "output": text, "prompt": chat[:1], "completion": chat[1:]}
        for text in tiny.texts(60, seed)
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Project:
    """What the commands of the table name: a recipe, corpora, models and finished runs."""
    folder = tmp_path_factory.mktemp("features")
    project = Project(folder, models, None)
    for seed, name in enumerate(("a.jsonl", "b.jsonl", "general.jsonl", "mine.jsonl", "data/contracts.jsonl")):
        (folder / name).parent.mkdir(exist_ok=True)
        write_jsonl(folder / name, rows(seed))
    (folder / "mine.txt").write_text("\n".join(tiny.texts(60, 9)), encoding="utf-8")
    (folder / "src").mkdir()
    shutil.copy(__file__, folder / "src" / "code.py")
    (folder / "tell.py").write_text("import sys; open('told', 'w').write(sys.stdin.read())", encoding="utf-8")
    for name in ("base", "tuned", "model"):
        shutil.copytree(models / "llama", folder / name)
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    (folder / "model" / "chat_template.jinja").write_text(template, encoding="utf-8")
    text = {"text_column": "text", "validation": 0.3}
    project.recipe |= {
        "model": str(folder / "model"),
        "domains": [
            {"name": name, "path": path, **text} for name, path in (("a", "a.jsonl"), ("contracts", "b.jsonl"))
        ],
        "general": {"path": "general.jsonl", **text},
        "train": TINY,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("first", "plain"):
            assert project("run", "recipe.yaml", f"run.name={name}").code == 0
        only = "domains=[{name: a, path: a.jsonl, text_column: text, validation: 0.3}]"
        assert project("run", "recipe.yaml", "run.name=one", only).code == 0
    return project


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in PARSED])
def test_the_command_runs(
    command: str, project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    words = [re.sub(r"^(train.max_steps)=.*", r"\1=2", word) for word in shlex.split(command)[1:]]
    words += [f"run.folder={tmp_path / 'run'}"] if words[0] in ("run", "validate") else []
    if words[0] in ("init", "learn", "export", "resume"):  # these write, or change the run
        run = "one" if "--domain" in words else "first"
        shutil.copytree(project.folder / "runs" / run, tmp_path / "runs" / "first")
        shutil.copytree(project.folder / "src", tmp_path / "src")
        shutil.copytree(project.folder / "data", tmp_path / "data")
        shutil.copy(project.folder / "b.jsonl", tmp_path)
        monkeypatch.chdir(tmp_path)
    code = project.call(*words).code
    assert code == 0, json.dumps(capfd.readouterr().err[-2000:])


def test_what_is_only_parsed_is_in_the_table() -> None:
    assert set(PARSED) <= set(COMMANDS)
    assert len(PARSED) < len(COMMANDS) / 2


@pytest.mark.parametrize(
    ("part", "package"), [("load_in_4bit", "bitsandbytes"), ("lm_eval", "lm_eval"), ("tensorboard", "tensorboard")]
)
def test_a_missing_package_is_named(
    part: str,
    package: str,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    (command,) = (command for command in PARSED if part in command)
    monkeypatch.chdir(project.folder)
    assert project.call(*shlex.split(command)[1:], f"run.folder={tmp_path / 'run'}").code == 2
    assert re.search(rf"Error: .*{package}.*install", capfd.readouterr().err.replace("\n", " "))
