"""A package that pip has installed reaches every command; what is missing or broken is told in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import tiny
from cli_project import Project, write_jsonl
from plugin_package import called, files_of_example, install, place, shown_in_guides

METHOD = """
from everlearn.methods.base import Method, MethodConfig, register

@register
class {title}(Method):
    "Does nothing."
    name, title, paper = "{name}", "{title}", ""
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed."""
    return install(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site"), files_of_example())


def make_recipe(everlearn: Project) -> Path:
    """Write a recipe with the example's method and task."""
    texts = tiny.texts(12, 3)
    write_jsonl(everlearn.folder / "pairs.jsonl", [{"good": t, "bad": " ".join(t.split()[::-1])} for t in texts])
    everlearn.recipe["method"] = {"name": "near_base", "strength": 0.5}
    everlearn.recipe["end_tasks"] = [{"name": "order", "kind": "pairs", "test": "pairs.jsonl", "domain": "a"}]
    everlearn.write()
    return everlearn.folder


def make_phi(folder: Path) -> Path:
    """Write the configuration of a small Phi, whose architecture the example brings."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    phi = {"model_type": "phi", "architectures": ["PhiForCausalLM"], "vocab_size": 99, **sizes}
    (folder / "phi").mkdir()
    (folder / "phi" / "config.json").write_text(json.dumps(phi), encoding="utf-8")
    return folder / "phi"


def test_guides_show_every_file_of_the_example_and_each_is_small() -> None:
    files = files_of_example()
    del files["README.md"], files["everlearn_example/__init__.py"]
    assert shown_in_guides() == files
    most = {"pyproject": 60, "near_base": 60, "pairs": 65, "weather": 40}
    for name, content in files.items():
        assert len(content.splitlines()) <= most.get(Path(name).stem, 40), name


def test_an_installed_package_reaches_every_command(everlearn: Project, site: Path) -> None:
    folder = make_recipe(everlearn)
    bench = ["bench", "weather", "--methods", "sequential,near_base", "--model", str(everlearn.models / "roberta")]
    (folder / "settings.yaml").write_text("train: {max_steps: 2}\nevaluation: {blocks: 9}\n", encoding="utf-8")
    commands = [
        ["methods", "--json"],
        ["methods", "near_base"],
        ["schema"],
        ["validate", "recipe.yaml"],
        ["run", "recipe.yaml", "--quiet"],
        ["analyse", "norms", "runs/first", "--json"],
        ["report", "runs/first", "--output", "page.html"],
        [
            "sweep",
            "recipe.yaml",
            "--methods",
            "sequential,near_base",
            "train.max_steps=2",
            "end_tasks=[]",
            "--seeds",
            "1",
            "-q",
        ],
        [*bench, "evaluation.blocks=4", "suite.sentences=90", "--settings", "settings.yaml", "--seeds", "0", "-q"],
        ["hello", "--name", "you"],
        ["--help"],
        ["analyse", "--help"],
        ["inspect", str(make_phi(folder)), "--json"],
        ["analyse", "norm", "runs/first"],
    ]
    said, modules = called(folder, site, *commands)
    *fine, wrong = said
    assert [each.code for each in fine] == [0] * len(fine), [each for each in fine if each.code]
    listed, one, schema, _, _, analysed, _, _, _, hello, helped, kinds, inspected = fine
    assert next(each for each in json.loads(listed.out) if each["name"] == "near_base")["kinds"] == ["prior-focused"]
    assert "α; 0 is plain training." in one.out
    definitions = json.loads(schema.out)["$defs"]
    assert {"method_near_base", "end_task_pairs"} <= definitions.keys()
    results = json.loads((folder / "runs/first/results.json").read_text(encoding="utf-8"))
    assert {"bits_per_token", "pairs_right"} <= results["matrices"].keys()
    assert results["summary"]["bits_per_byte"]["lost_last"].keys() == {"a", "mean"}
    scores, nats = ({tuple(c[:2]): c[2] for c in results["matrices"][m]["cells"]} for m in ("bits_per_token", "loss"))
    assert scores == pytest.approx({key: value / 0.6931471805599453 for key, value in nats.items()})
    page = (folder / "page.html").read_text(encoding="utf-8")
    for shown in ("Gained at the end of the stream.", "Order of the stages", "a → b", "Lost in the last stage"):
        assert shown in page
    runs = (folder / "sweep/first/runs.html").read_text(encoding="utf-8")
    for each in (page, runs):
        quantities = each.partition("<summary>Further quantities</summary>")[2].partition("</details>")[0]
        assert "Lost in the last stage" in quantities
        assert "Further quantities: Bits per token" in quantities
    assert len(json.loads(analysed.out)["norms"]["Norm"]) == 3
    assert "<h2>Norms</h2>" in (folder / "runs/first/analysis-norms.html").read_text(encoding="utf-8")
    assert len(list((folder / "bench" / "weather").glob("near_base*.json"))) == 1
    for grid in ("sweep/first", "bench/weather"):
        text = (folder / grid / "index.html").read_text(encoding="utf-8")
        assert "The domain forgotten most" in text, grid
        assert "Forgot most" in text, grid
    assert hello.out == "Hello, you.\n"
    assert "Plugins" in helped.out
    assert wrong.code == 2
    assert "There is no analysis 'norm'. Did you mean 'norms'?" in wrong.err
    assert json.loads(inspected.out)["kind"] == "decoder"
    assert "everlearn_example.phi" in modules, "the entry of the architecture was asked for"
    assert "Show the norm of all weights after each stage." in kinds.out

    environment = json.loads((folder / "runs/first/environment.json").read_text(encoding="utf-8"))
    own = environment["plugins"]["everlearn_example.near_base"]
    assert own == {"package": "everlearn-example", "version": "0.1", "names": {"methods": ["near_base"]}}
    (resumed, reported), _ = called(
        folder, None, ["resume", "runs/first"], ["report", "runs/first", "-o", "again.html"]
    )
    assert resumed.code == 2
    assert "was made with the method 'near_base' of everlearn-example 0.1: install it, or give `--import" in resumed.err
    assert reported.code == 0, "results can be read without what made them"


def test_what_is_not_asked_for_is_not_imported(everlearn: Project, site: Path) -> None:
    everlearn.write()
    commands = [["validate", "recipe.yaml"], ["validate", "--help"]]
    said, modules = called(everlearn.folder, site, *commands)
    assert [each.code for each in said] == [0, 0], said
    assert [name for name in modules if name.startswith("everlearn_example")] == []


def test_a_file_is_given_on_the_command_line_alone(everlearn: Project) -> None:
    folder = make_recipe(everlearn)
    del everlearn.recipe["end_tasks"]
    everlearn.write()
    (folder / "own.py").write_text(files_of_example()["everlearn_example/near_base.py"], encoding="utf-8")
    (folder / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    commands = [
        ["run", "recipe.yaml", "--import", "own.py", "--quiet"],
        ["resume", "runs/first", "--import", "own.py", "--quiet"],
        ["methods", "near_base", "--import", "own.py"],
        ["run", "recipe.yaml", "plugins=[own.py]"],
        ["run", "recipe.yaml", "plugins=[not_there]"],
        ["run", "recipe.yaml", "plugins=[os]"],
        ["run", "recipe.yaml", "plugins=own"],
        ["methods", "--import", "broken.py"],
        ["methods", "--import", "nothing.py"],
        ["methods", "--import", "no_such_module"],
        ["methods", "--import", "not a module"],
    ]
    said, _ = called(folder, None, *commands)
    assert [each.code for each in said] == [0, 0, 0, *[2] * 8], said
    for each, part in zip(
        said[3:],
        (
            "names the file 'own.py', but may name installed modules only: give `--import`",
            "'not_there' is not installed",
            "'os', which is no plugin",
            "`plugins`",
            "names the file 'broken.py', but importing it failed: ZeroDivisionError: division by zero.",
            "'nothing.py', which cannot be read: No such file or directory.",
            "'no_such_module' is not installed",
            "must name a module",
        ),
        strict=True,
    ):
        assert part in each.err, each
        assert "Traceback" not in each.err
    environment = json.loads((folder / "runs/first/environment.json").read_text(encoding="utf-8"))
    assert environment["plugins"]["own"].keys() == {"file", "sha256", "named"}
    printed = "runs/first/recipe.yaml run.name=first-again run.folder=runs/first-again --import own.py"
    for page in ("report.html", "README.md"):
        assert f"everlearn run {printed}\n" in (folder / "runs/first" / page).read_text(encoding="utf-8"), page
    (without, again, whole), _ = called(
        folder, None, ["resume", "runs/first"], ["validate", *printed.split()[:-2]], ["validate", *printed.split()]
    )
    for each in (without, again):
        assert each.code == 2
        assert "was made with the file own.py: give `--import own.py`." in each.err + each.out, each
    assert whole.code == 0
    assert f"Next: everlearn plan {printed}" in whole.out


def test_the_recipe_names_installed_modules(everlearn: Project, tmp_path: Path) -> None:
    folder = make_recipe(everlearn)
    everlearn.recipe |= {"end_tasks": [], "plugins": ["decaying"]}
    everlearn.write()
    modules = {"decaying": files_of_example()["everlearn_example/near_base.py"]}
    site = place(tmp_path / "site", "without-entry-points", "nothing", {}, modules)
    said, _ = called(folder, site, ["run", "recipe.yaml", "-q"], ["resume", "runs/first", "-q"])
    assert [each.code for each in said] == [0, 0], said
    kept = yaml.safe_load((folder / "runs/first/recipe.yaml").read_text(encoding="utf-8"))
    assert kept["plugins"] == ["decaying"]
    environment = json.loads((folder / "runs/first/environment.json").read_text(encoding="utf-8"))
    assert environment["plugins"] == {"decaying": {"package": "without-entry-points", "version": "1.2", "named": True}}
    (without,), _ = called(folder, None, ["resume", "runs/first"])
    assert without.code == 2
    assert "was made with the module decaying of without-entry-points 1.2" in without.err


BROKEN = {
    "gone": (None, "but importing `gone` failed: ModuleNotFoundError: No module named 'gone'."),
    "bad": ("1 / 0", "but importing `bad` failed: ZeroDivisionError: division by zero."),
    "quits": ("raise SystemExit('no')", "but importing `quits` failed: SystemExit: no."),
    "empty": ("", "but `empty` registers no method 'empty'."),
    "untold": (METHOD.format(name="untold", title="Untold").replace('"Does nothing."', "pass"), "needs a docstring"),
    "twice": (METHOD.format(name="ewc", title="Twice"), "failed: The name 'ewc' belongs to EWC already."),
}
"""Entry point and module of a method → the module's text, and what is said of it."""


def test_a_broken_plugin_is_a_sentence_and_in_a_list_a_last_line(everlearn: Project, tmp_path: Path) -> None:
    modules = {name: text for name, (text, _) in BROKEN.items() if text is not None}
    site = place(tmp_path / "site", "faulty", "methods", {name: name for name in BROKEN}, modules)
    everlearn.recipe["method"] = "bad"
    everlearn.write()
    commands = [["run", "recipe.yaml"], ["methods"], *(["methods", name] for name in BROKEN)]
    (run, listed, *each), _ = called(everlearn.folder, site, *commands)
    assert run.code == 2
    assert run.err == f"Error: Package faulty 1.2 brings the method 'bad', {BROKEN['bad'][1]}\n"
    assert listed.code == 0
    assert "ewc" in listed.out
    assert len(listed.err.splitlines()) == len(BROKEN)
    for one, (name, (_, says)) in zip(each, BROKEN.items(), strict=True):
        sentence = f"Package faulty 1.2 brings the method '{name}', but "
        assert one.code == 2
        assert one.err.startswith(f"Error: {sentence}")
        assert says in one.err
        assert any(line.startswith(f"Note: {sentence}") and says in line for line in listed.err.splitlines())


FAULTY = files_of_example()["everlearn_example/lost_last.py"].replace("scores[last - 1]", "min(scores[1:last])")


def test_a_quantity_that_cannot_be_computed_is_named_before_or_without_a_training(
    everlearn: Project, tmp_path: Path
) -> None:
    everlearn.write()
    (everlearn.folder / "own.py").write_text(FAULTY, encoding="utf-8")
    site = place(tmp_path / "site", "faulty", "quantities", {"lost_last": "faulty"}, {"faulty": FAULTY})
    ((named,), _), ((installed,), _) = (
        called(everlearn.folder, None, ["run", "recipe.yaml", "--import", "own.py", "-q"]),
        called(everlearn.folder, site, ["run", "recipe.yaml", "-q"]),
    )
    assert named.code == 2
    for part in ("`--import` names the file 'own.py', but", "The quantity 'lost_last' of `own` cannot be computed"):
        assert part in named.err
    assert installed.code == 0
    note = "Note: Package faulty 1.2 brings the quantity 'lost_last', but importing `faulty` failed: The quantity"
    assert note in installed.err
    assert (everlearn.folder / "runs/first/results.json").is_file()


def test_names_that_are_taken_are_refused(everlearn: Project, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("one", "two"):
        modules = {name: METHOD.format(name="late", title="Late")}
        place(site, name, "methods", {"late": name, "ewc": name}, modules)
    place(site, "three", "methods", {"das": "three"}, {"three": "1 / 0"})
    (run, listed), _ = called(everlearn.folder, site, ["methods", "late"], ["methods"])
    assert run.code == 2
    assert "one and two both bring the method 'late'. Uninstall one of them." in run.err
    assert "brings the method 'ewc', which everlearn has too." in listed.err
    assert "Package three 1.2 brings the method 'das', which everlearn has too. Uninstall the package." in listed.err
    assert listed.code == 0


SLOW = """
import torch

HEADING = "Share"

def command(times: int = 1) -> None:
    "Do it slowly."
    print("slow " * times)
"""


def test_a_command_is_listed_without_being_imported(everlearn: Project, tmp_path: Path) -> None:
    entries = {"slow": "slow:command", "bad": "bad:command"}
    site = place(tmp_path / "site", "slow", "verbs", entries, {"slow": SLOW, "bad": "1 / 0"})
    (helped, missing), modules = called(everlearn.folder, site, ["--help"], ["slwo"], prepared=False)
    assert (helped.code, missing.code) == (0, 2)
    assert "Do it slowly." in helped.out.split(" Share ")[1]
    assert {"torch", "slow"}.isdisjoint(modules)
    assert "Package slow 1.2 brings the command 'bad', but importing `bad:command` failed" in helped.err
    assert "Did you mean 'slow'?" in missing.err
    (ran, wrong, broken), _ = called(
        everlearn.folder,
        site,
        ["slow", "--times", "2", "--import", "json"],
        ["slow", "--time", "2"],
        ["bad"],
    )
    assert ran.out.strip() == "slow slow"
    assert "Did you mean '--times'?" in wrong.err
    assert (ran.code, wrong.code, broken.code) == (0, 2, 2)


def test_an_installation_that_is_older_than_the_code_says_so(everlearn: Project, tmp_path: Path) -> None:
    old = tmp_path / "site" / "everlearn-0.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: everlearn\nVersion: 0.0\n", encoding="utf-8")
    (old / "entry_points.txt").write_text("[everlearn.methods]\n", encoding="utf-8")
    everlearn.recipe["model"] = "suite:docs/base"
    everlearn.write()
    said, _ = called(everlearn.folder, old.parent, ["demo"], ["validate", "recipe.yaml"], ["env"])
    assert [each.code for each in said] == [2, 2, 0]
    assert all("pip install --editable" in each.out + each.err for each in said)
