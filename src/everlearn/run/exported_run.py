"""Pack a run into an exported model, and make a run folder of it on another machine.

``everlearn/`` inside an export is a run folder without weights: the recipe, the memory of the methods, the held-out
rows and the scores so far, with every path of the original machine removed. Together with the exported weights it
becomes a run folder again, which `everlearn learn` continues.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everlearn import files, wording
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import HUB_ID, Corpus
from everlearn.errors import RunError, first_line
from everlearn.evaluation import set_path
from everlearn.methods.config import as_saved
from everlearn.run.environment import environment
from everlearn.run.folder import RunFolder
from everlearn.run.measurement_plan import held_out_names
from everlearn.run.stage_files import MEMORY
from everlearn.version import __version__

PLACE = "everlearn"
"""Folder inside an export that was made `--with-memory`."""
CONTENTS = "export.json"
AWAY = "local--"
"""Prefix of the placeholder for a removed path; no hub repository can have such a name."""


def on_hub(path: str | None) -> bool:
    """Return whether a model's path is a hub id: it looks like one, and no local file has that name."""
    if not path or AWAY in path or Path(path).expanduser().exists():
        return False
    return bool(HUB_ID.fullmatch(path) or re.fullmatch(r"[A-Za-z0-9][\w.-]*", path))


def local_paths(recipe: Recipe, folder: RunFolder) -> list[str]:
    """Return every local path that a run knows of, in the forms in which it may occur in a file."""
    paths = [str(folder.path.absolute()), str(folder.path.resolve())]
    pending: list[Any] = [recipe.model_dump(mode="json")]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and is_local(value):
            paths.append(value)
    return sorted({path for path in paths if len(Path(path).parts) > 2})


def is_local(text: str) -> bool:
    """Return whether a text is a path on a machine."""
    return text.startswith(("/", "~", "./", "../", "\\\\", "file://")) or bool(re.match(r"[A-Za-z]:[\\/]", text))


def portable(recipe: Recipe, domains: int, base_model: str | None) -> Recipe:
    """Return the recipe of the first domains with every local path removed; hub ids are kept.

    Args:
        recipe: the recipe of a run.
        domains: number of domains learnt so far.
        base_model: hub id of the base model; None if it is not on the hub.
    """
    raw = recipe.model_dump(mode="json")
    raw["model"] |= {"path": base_model or f"{AWAY}base-model", "trust_remote_code": False}
    raw["model"] |= {"config": None if recipe.model.path is None else recipe.model.config}
    if raw["model"]["path"].startswith(AWAY):
        raw["model"]["revision"] = None
    if not on_hub(recipe.model.tokenizer):
        raw["model"]["tokenizer"] = None
    corpora = [*zip(raw["domains"], recipe.domains, strict=True)][:domains]
    if recipe.general is not None:
        corpora.append((raw["general"], recipe.general))
    for corpus, known in corpora:
        parts: list[tuple[dict[str, Any], Corpus]] = [*zip(corpus["sources"], known.sources, strict=True)]
        for number, (part, source) in enumerate(parts or [(corpus, known)]):
            if not source.on_hub:
                part["path"] = f"{AWAY}{known.name}-{number}"
        if isinstance(known.validation, str) and not known.on_hub:
            corpus["validation"] = f"{AWAY}{known.name}-held-out"
        corpus["train"] = _without_paths(known.train)
    raw["domains"] = [corpus for corpus, known in corpora if known is not recipe.general]
    # Labelled files and models trained alone are not exported, so the recipe must not evaluate them.
    raw |= {"end_tasks": [], "train": _without_paths(recipe.train)}
    raw["evaluation"] |= {"alone": False, "lm_eval": None, "chat": None}
    raw["data"]["cache"] = raw["run"]["folder"] = None
    raw["run"] |= {"name": Path(recipe.run.name).name, "notes": []}  # notes are for readers of the original run
    return recipes.parse(raw)


def _without_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Drop training arguments that contain a local path at any depth, and the trackers' name of the run."""
    return {name: value for name, value in options.items() if name != "run_name" and not names_a_place(value)}


def names_a_place(value: Any) -> bool:
    """Return whether plain data contains a local path at any depth, alone or inside a text (``path=/home/…``)."""
    if isinstance(value, Mapping):
        return any(map(names_a_place, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_a_place, value))
    return isinstance(value, str) and any(map(is_local, re.split(r"[\s=,;'\"]+", value)))


def pack(folder: RunFolder, recipe: Recipe, index: int, export: Path, base_model: str | None) -> None:
    """Write ``everlearn/`` into an export that already holds the model and tokenizer.

    Args:
        folder: the run's folder.
        recipe: the recipe of the run.
        index: number of the exported stage, from 1.
        export: folder with the model and tokenizer.
        base_model: hub id of the base model, if it has one.

    Raises:
        RunError: a held-out set of the run is missing, or one of its files is damaged.
    """
    models = sorted(path.name for path in export.iterdir() if path.is_file() and path.name != "README.md")
    place, small = export / PLACE, portable(recipe, index, base_model)
    recipes.save(small, place / "recipe.yaml")
    for number, domain in enumerate(small.domains, 1):
        stage = folder.stage(number, domain.name)
        files.write_json(place / stage.name / "stage.json", files.read_json(stage / "stage.json"))
    if (memory := folder.stage(index, small.domains[-1].name) / MEMORY).is_dir():
        shutil.copytree(memory, place / folder.stage(index, small.domains[-1].name).name / MEMORY)
    cells = folder.path / "evaluation"
    for name in held_out_names(small):
        rows = [set_path(cells, row, name) for row in range(index + 1)]
        drawn = folder.sets / f"{name}.safetensors"
        if not drawn.is_file():
            raise RunError(f"{drawn} is not there. `{wording.command('resume', folder.path)}` draws it again.")
        for path in (drawn, *rows):
            if path.is_file():
                if (wrong := files.fault(path)) is not None:
                    raise RunError(f"{wrong}. `{wording.command('resume', folder.path)}` measures it again.")
                copy = place / "evaluation" / path.relative_to(cells)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    facts = {"everlearn": __version__, "stage": index, "files": {name: files.digest(export / name) for name in models}}
    files.write_json(place / CONTENTS, facts)
    files.seal(place)


def unpack(export: Path, into: Path) -> RunFolder:
    """Make a run folder from an export with its memory, which `everlearn learn` continues as any other.

    Args:
        export: the folder that :func:`pack` wrote.
        into: folder of the new run.

    Raises:
        RunError: the export has no memory or is damaged, or `into` exists already.
    """
    place = export / PLACE
    if not (place / CONTENTS).is_file():
        raise RunError(
            f"{export} has no {PLACE}/ folder: it was exported without its memory, or is not an export. Export it with "
            "`--with-memory`; or begin a new stream from it, as `model` of a recipe."
        )
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise RunError(
            f"{into} exists already. If it began from this export, go on with it "
            f"(`{wording.command('learn', into)}`); or name another folder (`--into`)."
        )
    raw = files.read_json(place / CONTENTS)
    listed = raw.get("files") if isinstance(raw, dict) else None
    if not isinstance(listed, dict) or any(Path(name).name != name for name in listed):
        raise RunError(f"{place / CONTENTS} is damaged: it does not list the model's files.")
    if (wrong := files.damage(place)) is not None:
        raise RunError(f"{wrong}. Download or copy the export again.")
    for name, expected in listed.items():
        if not (export / name).is_file() or files.digest(export / name) != expected:
            raise RunError(f"{export / name} is missing or not what was exported. Download or copy the export again.")
    with as_saved():
        known = recipes.load(place / "recipe.yaml")
    # An export may come from a stranger: it must decide neither which code runs here nor where files are written.
    settings = known.run.model_dump(mode="json") | {"name": into.name, "folder": str(into.absolute())}
    imposed = {
        "model": known.model.model_dump(mode="json") | {"trust_remote_code": False},
        "train": _without_paths(known.train),
        "data": known.data.model_dump(mode="json") | {"cache": None},
        "run": settings,
    }
    recipe = recipes.parse(known.model_dump(mode="json") | imposed)
    with files.new_folder(into, sealed=False) as new:
        run_folder = RunFolder(new)
        if (place / "evaluation").is_dir():
            shutil.copytree(place / "evaluation", new / "evaluation")
            for path in (new / "evaluation").rglob("*.safetensors"):
                files.enlist(path)
        for number, domain in enumerate(recipe.domains, 1):
            stage = run_folder.stage(number, domain.name)
            shutil.copytree(place / stage.name, stage)
            if number == len(recipe.domains):
                for name in listed:
                    shutil.copyfile(export / name, stage / name)
            files.seal(stage)
        recipes.save(recipe, run_folder.recipe_file)
        files.write_json(new / "environment.json", environment())
    return RunFolder(into)


def find(source: str) -> Path:
    """Return the folder of an export; a hub id is downloaded first.

    Raises:
        RunError: there is neither a local folder nor a hub repository of that name.
    """
    if Path(source).expanduser().exists() or not HUB_ID.fullmatch(source):
        return Path(source).expanduser()
    from huggingface_hub import snapshot_download

    # The client, its network library and the hub each raise their own types; for the user all mean the same.
    try:
        return Path(snapshot_download(source))
    except Exception as error:
        raise RunError(
            f"'{source}' is not a local folder, and the hub returned no model of that name: {first_line(error)} Check "
            "the name, the network"
            f"{' (`HF_HUB_OFFLINE` is set)' if os.environ.get('HF_HUB_OFFLINE') else ''} and `HF_TOKEN`."
        ) from None
