"""Export a stage for others: model, tokenizer and card, and nothing else by default (``everlearn export``)."""

from __future__ import annotations

import json
import mmap
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, try_to_load_from_cache

from everlearn import files
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.errors import RunError
from everlearn.evaluation import Results
from everlearn.evaluation.results import StageFacts, read
from everlearn.methods.base import REVEALS
from everlearn.model.loading import class_with_vision, has_own_code, load_config, load_model, load_tokenizer, own_module
from everlearn.model.number_format import NumberFormat, recast
from everlearn.model.objectives import DEFAULT_OBJECTIVE
from everlearn.model.peft_adapter import BESIDE, CONFIG, WEIGHTS, adapter_in, with_adapter
from everlearn.model.structure import kind_of_config
from everlearn.report.export_card import Exported, Origin, export_card
from everlearn.run.collect_results import Outcome
from everlearn.run.exported_run import is_local, local_paths, on_hub, pack
from everlearn.run.folder import MODELS, RunFolder
from everlearn.run.writable import check_new

OURS = {"stage.json", "optimizer.safetensors", "optimizer.json", CONFIG, WEIGHTS}
"""Files of a stage folder that are not part of the saved model."""
TRACES = {"_name_or_path", "name_or_path", "is_local", "local_files_only", "base_model_name_or_path"}
"""Keys in which transformers and PEFT record where a model was loaded from."""
HELD_OUT = "Beside it are the held-out rows of each domain, which can be read as well, and the scores on them."


@dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
        folder: folder of the export.
        stage: number of the stage in its run.
        domain: the domain that was learnt last.
        form: "model" (complete) or "adapter".
        files: names in the folder.
        notes: remarks to read before sharing it.
    """

    folder: Path
    stage: int
    domain: str
    form: str
    files: list[str]
    notes: list[str] = field(default_factory=list)


def export(
    stage: Path | str,
    folder: Path | str,
    *,
    with_memory: bool = False,
    adapter: bool | None = None,
    dtype: NumberFormat | None = None,
    base_model: str | None = None,
    license: str | None = None,
    name: str | None = None,
) -> Export:
    """Write a stage's model, tokenizer and card into a folder of its own.

    It contains no path of this machine and no text: the memory of methods, held-out rows and scores of single examples
    are exported only with `with_memory`.

    Args:
        stage: a stage's folder, or a run's, which stands for its last finished stage.
        folder: the new folder; it must not exist, or be empty.
        with_memory: add ``everlearn/``, with which ``everlearn learn`` goes on from the export.
        adapter: whether to export the PEFT adapter alone or the complete model; None: as the stage is stored.
        dtype: number format of the weights; None for that of the stage (`run.stage_dtype`).
        base_model: hub id of the base model, if the recipe names a folder of this machine.
        license: the hub's identifier of a licence; None for that in the base model's card.
        name: name of the model in its card, such as its future hub id; by default the folder's name.

    Raises:
        RunError: there is no such stage, it is damaged, it has no adapter, the folder is taken, or what would be
            exported is not what was scored or would name a path of this machine.
    """
    stage, folder = Path(stage), Path(folder)
    run, index = _run_of(stage)
    recipe = run.recipe()
    domain = recipe.domains[index - 1].name
    place = run.stage(index, domain)
    _check(run, recipe, index, folder, with_memory)
    alone = not any(place.glob(MODELS[0]))
    if adapter and adapter_in(place) is None:
        raise RunError(f"{place} keeps no adapter: `--adapter` is for runs of a method that trains one (`inc_lora`).")
    as_adapter = alone if adapter is None else adapter
    if dtype == recipe.run.stage_dtype and (alone or not as_adapter):
        dtype = None  # the stage has this format (an adapter beside it never), and its scores are of rounded weights
    if with_memory and dtype not in (None, "float32"):
        raise RunError(
            f"`--dtype {dtype}` rounds the weights, and what methods remember belongs to those that were learnt. "
            "Export without `--with-memory`, or without `--dtype`."
        )
    base = base_model or (recipe.model.path if on_hub(recipe.model.path) else None)
    if with_memory and as_adapter and base is None:
        raise RunError("To continue from an adapter its base model must be on the hub: set `--base-model`.")
    for method in recipe.methods():
        if with_memory and method.needs.base_model and base is None:
            raise RunError(
                f"Method '{method.label}' begins each domain with the base model's weights, and the base model is no "
                "hub id here: set `--base-model`."
            )
    notes: list[str] = []
    with files.new_folder(folder, sealed=False) as new:
        _copy_model(place, new, recipe, as_adapter, base)
        if dtype is not None:
            recast(new, dtype)
        if with_memory:
            pack(run, recipe, index, new, base)
        card = _card(run, recipe, index, name or folder.name, as_adapter, base, license, with_memory, dtype, notes)
        files.write_text(new / "README.md", card)
        _refuse_paths(new, local_paths(recipe, run))
        file_names = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file())
    return Export(folder, index, domain, "adapter" if as_adapter else "model", file_names, notes)


def _run_of(stage: Path) -> tuple[RunFolder, int]:
    """Return the run that a stage belongs to, and the stage's number."""
    if (stage / "recipe.yaml").is_file():
        run = RunFolder(stage)
        names = [domain.name for domain in run.recipe().domains]
        done = [index for index, name in enumerate(names, 1) if run.stage(index, name).is_dir()]
        if not done:
            raise RunError(f"{stage} has no finished stage yet.")
        return run, done[-1]
    resolved = stage.resolve()
    run = RunFolder(resolved.parent)
    if not (resolved / "stage.json").is_file() or not run.recipe_file.is_file():
        raise RunError(
            f"{stage} is no stage of a run. Name a folder such as runs/first/stage-02-papers, or the run itself."
        )
    match = re.match(r"stage-(\d+)-", resolved.name)
    index = int(match.group(1)) if match else 0
    domains = run.recipe().domains
    if not 1 <= index <= len(domains) or run.stage(index, domains[index - 1].name).name != resolved.name:
        raise RunError(f"{stage} is none of the stages that {run.recipe_file} names.")
    return run, index


def _check(run: RunFolder, recipe: Recipe, index: int, folder: Path, with_memory: bool) -> None:
    domain = recipe.domains[index - 1].name
    if not run.finished(index, domain):
        raise RunError(f"{run.stage(index, domain)} is not there.")
    if run.without_weights(index, domain):
        raise RunError(
            f"The weights of {run.stage(index, domain)} were removed (`run.keep_stages` is {recipe.run.keep_stages}). "
            "Export a stage that has them."
        )
    check_new(folder)
    for method in recipe.methods():
        if not method.tested_as_saved and method.needs.earlier_models:
            raise RunError(
                f"Method '{method.label}' answers with the models of all domains, which no export holds. Each stage's "
                "folder loads with transformers as the model of its domain."
            )
        if not method.tested_as_saved and not with_memory:
            raise RunError(
                f"Method '{method.label}' reads a text with what it keeps in its memory (adapters, gates or prompts), "
                "so the exported model alone would not be the one that was scored. Export it with `--with-memory`, for "
                "everlearn to read; or learn with a method that leaves a plain model."
            )
        if method.needs.earlier_models and with_memory:
            raise RunError(
                f"Method '{method.label}' goes on from the models of all earlier domains, which no export holds. "
                "Export without `--with-memory`."
            )


# -- the model ------------------------------------------------------------------------------------------------


def _copy_model(place: Path, new: Path, recipe: Recipe, as_adapter: bool, base: str | None) -> None:
    """Copy the stage's model, merged or as an adapter, and its tokenizer: nothing but files of the sealed stage."""
    sealed = files.read_json(place / files.SEAL)
    alone = not any(place.glob(MODELS[0]))
    for name in sealed:
        if "/" not in name and name not in OURS and not (as_adapter and _of_weights(name)):
            _copy(place / name, new / name)
    if as_adapter:
        source = adapter_in(place) or place / BESIDE
        _copy(source / WEIGHTS, new / WEIGHTS)
        raw = files.read_json(source / CONFIG)
        revision = recipe.model.revision if base == recipe.model.path else None
        named = {"base_model_name_or_path": base, "revision": revision}
        files.write_json(new / CONFIG, _without_traces(raw) | named)
    elif alone:
        model: Any = with_adapter(lambda: load_model(recipe.model, recipe.run.seed), str(place))
        model.save_pretrained(new)
    if not (new / "tokenizer_config.json").is_file():
        load_tokenizer(recipe.model).save_pretrained(new)
    for path in new.glob("*.json"):
        raw = files.read_json(path)
        if isinstance(raw, dict) and path.name not in (CONFIG, "tokenizer.json", "vocab.json"):
            files.write_json(path, _without_traces(raw))


def _of_weights(name: str) -> bool:
    return name in ("config.json", "generation_config.json") or name.startswith("model")


def _copy(source: Path, target: Path) -> None:
    with files.writing(target):
        shutil.copyfile(source, target)


def _without_traces(raw: Any) -> Any:
    """Return JSON without keys that reveal where it was loaded from."""
    if isinstance(raw, dict):
        return {
            key: _without_traces(value)
            for key, value in raw.items()
            # A token may look like a path, too: `/think`, `//`, `~~~`.
            if key not in TRACES
            and not (isinstance(value, str) and is_local(value) and len(re.findall(r"[^/\\]+", value)) > 1)
        }
    return [_without_traces(value) for value in raw] if isinstance(raw, list) else raw


def _refuse_paths(folder: Path, paths: Sequence[str]) -> None:
    """Refuse an export in which a path of the run occurs; in tensor files only the header is searched."""
    forms = {form for path in paths for form in (path, path.replace("/", "\\/"), json.dumps(path)[1:-1])}
    patterns = [form.encode() for form in sorted(forms)]
    for file in (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = 8 + int.from_bytes(content[:8], "little") if file.suffix == ".safetensors" else len(content)
            for pattern in patterns:
                if content.find(pattern, 0, end) >= 0:
                    raise RunError(
                        f"Nothing was exported: {file.relative_to(folder)} would hold the path '{pattern.decode()}' of "
                        "this machine. Please report this, with the key that it stands at."
                    )


# -- the card -------------------------------------------------------------------------------------------------


def _card(
    run: RunFolder,
    recipe: Recipe,
    index: int,
    name: str,
    as_adapter: bool,
    base: str | None,
    license: str | None,
    with_memory: bool,
    dtype: NumberFormat | None,
    notes: list[str],
) -> str:
    known = _base_card(recipe.model.path)
    license = license or known.get("license")
    language = known.get("language") or []
    methods = recipe.methods()
    if base is None:
        notes.append("The card names no base model: it is a folder of this machine. `--base-model` sets its hub id.")
    if license is None:
        notes.append("The card names no licence: the base model's card is not at hand. `--license` sets it.")
    memory = []
    if with_memory:
        memory = [f"{method.title}. {REVEALS[method.needs.keeps]}" for method in methods] + [HELD_OUT]
        notes += memory
    as_scored = all(method.tested_as_saved for method in methods)
    if not as_scored:
        notes.append("The card has no scores: without everlearn this is not the model that was scored.")
    places = [run.stage(number, domain.name) for number, domain in enumerate(recipe.domains[:index], 1)]
    stages = [read(StageFacts, place / "stage.json") for place in places]
    return export_card(
        _results(run, recipe),
        Exported(
            row=recipe.domains[index - 1].name,
            name=name,
            origins=[_origin(domain) for domain in recipe.domains[:index]],
            adapter=as_adapter,
            base_model=base,
            license=license,
            language=[language] if isinstance(language, str) else language,
            memory=memory,
            as_scored=as_scored,
            steps=sum(stage.steps for stage in stages),
            tokens=sum(stage.tokens for stage in stages),
            architecture=class_with_vision(recipe.model, places[-1]),
            own_module=own_module(recipe.model, places[-1]),
            own_code=has_own_code(places[-1]),
            difference=_difference(recipe, dtype, as_adapter and any(places[-1].glob(MODELS[0]))),
        ),
    )


def _difference(recipe: Recipe, dtype: NumberFormat | None, beside: bool) -> str:
    """Say how the weights of an export differ from those that were scored; empty if they do not.

    Args:
        recipe: the recipe of the run.
        dtype: the number format to which the export rounds; None if it does not.
        beside: whether it is an adapter beside a complete model, which was scored.
    """
    scored = recipe.run.stage_dtype
    if dtype not in (None, "float32"):
        return f"They were measured with weights in {scored}; the weights here are rounded to {dtype}."
    if beside and scored != "float32":
        return f"They were measured with weights in {scored}; the adapter here is not rounded."
    return ""


def _origin(domain: Domain) -> Origin:
    there = [corpus for corpus in domain.sources or (domain,) if corpus.on_hub]
    return Origin(domain.name, tuple(corpus.path for corpus in there), there[0].subset if len(there) == 1 else None)


def _results(run: RunFolder, recipe: Recipe) -> Results:
    """Return the results of the run, or those so far if it is not finished."""
    if run.results_file.is_file():
        return Results.load(run.results_file)
    kind = kind_of_config(load_config(recipe.model))
    return Outcome(recipe, run).results(recipe.objective or DEFAULT_OBJECTIVE[kind], ())


def _base_card(path: str | None) -> dict[str, Any]:
    """Return the metadata of the base model's card, if it is on this machine; nothing is downloaded."""
    if path is None:
        return {}
    file = Path(path) / "README.md"
    if not file.is_file():
        cached = try_to_load_from_cache(path, "README.md") if on_hub(path) else None
        if not isinstance(cached, str):
            return {}
        file = Path(cached)
    try:
        return dict(ModelCard.load(file, ignore_metadata_errors=True).data.to_dict())
    except (ValueError, TypeError, OSError):
        return {}
