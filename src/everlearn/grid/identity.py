"""Define what must be equal for two cells of one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.data.documents import corpus_fingerprint
from everlearn.files import digest
from everlearn.grid.template import GridSettings, GridTemplate
from everlearn.model.loading import check_complete


def identity(settings: GridSettings, template: GridTemplate, recipe: Recipe) -> dict[str, Any]:
    """Return what must be equal for two cells of one table: settings, and contents of model and data.

    Defaults are left out, so that a key of a later version does not invalidate old cells. The methods' own options are
    left out too, since each cell keeps them.
    """
    known = settings.model_dump(mode="json", exclude_defaults=True, exclude={"methods", "entries", "model", "corpora"})
    general = [recipe.general] if recipe.general is not None else []
    return (
        known
        | template.facts()
        | {
            "model": _model(str(recipe.model.path), recipe.model.revision),
            "corpora": {domain.name: _corpus(domain) for domain in (*recipe.domains, *general)},
            "end_task_files": {task.name: [digest(file) for file in task.files()] for task in recipe.end_tasks},
        }
    )


def _model(path: str, revision: str | None) -> str:
    """Return a hub id, or a folder's name with digests of its weights, since its path differs between machines."""
    folder = Path(path)
    if not folder.is_dir():
        return f"{path}@{revision}" if revision else path
    check_complete(folder)
    weights = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin"))
    return " ".join([folder.resolve().name, *(digest(file)[:12] for file in weights)])


def _corpus(domain: Domain) -> list[str]:
    held_out = domain.held_out_corpus
    own = [corpus_fingerprint(corpus) for corpus in (domain, held_out) if corpus is not None]
    return [*own, str(domain.held_out_share)] if domain.held_out_share else own
