"""Measure how far each layer moved in a stage and since the base model, from two checkpoints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from huggingface_hub import snapshot_download

from everlearn import files
from everlearn.config.recipe import Recipe
from everlearn.errors import ModelError
from everlearn.model.loading import load_config, load_model
from everlearn.model.options import Model
from everlearn.model.structure import architecture_for
from everlearn.model.weight_movement import FILE, LoadedWeights, SavedWeights, Weights, comparable, movement
from everlearn.run.open_run import OpenRun


def measure_movement(run: OpenRun, row: int) -> bool:
    """Compare the checkpoint after `row` domains with the previous one and with the base model; write a file once.

    Returns:
        Whether the file exists. There is none if the weights of a stage were removed (`run.keep_stages`).
    """
    path = run.folder.row(row) / FILE
    if path.is_file() and files.fault(path) is None:
        return True
    names = [domain.name for domain in run.recipe.domains]
    if any(run.folder.without_weights(index, names[index - 1]) for index in (row - 1, row) if index):
        return False
    place = run.folder.stage(row, names[row - 1])
    try:
        after = SavedWeights(place)
        architecture = architecture_for(
            load_config(Model(path=str(place), trust_remote_code=run.recipe.model.trust_remote_code))
        )
        base = _base(run.recipe, after)
        before = base if row == 1 else SavedWeights(run.folder.stage(row - 1, names[row - 2]))
    except ModelError as error:
        # The stage is trained and scored; a missing figure is no reason to stop.
        run.reporter.say(f"How far the layers moved is not known after {names[row - 1]}: {error}")
        return False
    since_base = None if base is None else movement(base, after, architecture)
    since_before = None if before is None else since_base if row == 1 else movement(before, after, architecture)
    movements = {"since_before": since_before, "since_base": since_base}
    raw = {key: None if parts is None else [asdict(part) for part in parts] for key, parts in movements.items()}
    files.write_json(path, raw, sealed=True)
    return True


def _base(recipe: Recipe, after: Weights) -> Weights | None:
    """Return the base model's weights: from its file if its names are those of the stage, or from a loaded model."""
    model = recipe.model
    if model.path is not None:
        try:
            folder = Path(model.path)
            if not folder.is_dir():
                patterns = ["*.safetensors", "*.safetensors.index.json"]
                folder = Path(
                    snapshot_download(
                        model.path, revision=model.revision, local_files_only=True, allow_patterns=patterns
                    )
                )
            saved = SavedWeights(folder)
            if comparable(saved, after):
                return saved
        except (ModelError, OSError, ValueError):
            pass  # no safetensors, or not in the cache: loading below reports what is wrong
    try:
        return LoadedWeights(load_model(model, recipe.run.seed).state_dict())
    except ModelError:
        return None
