"""Write a merged checkpoint like ``save_pretrained``, tensor by tensor, without a complete model in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everlearn import files
from everlearn.errors import ModelError
from everlearn.merging.base import MergeMethod, TensorGroup
from everlearn.merging.checkpoints import Opened
from everlearn.merging.measurement import Measurements
from everlearn.version import __version__

PROVENANCE = "merged.json"
BESIDE = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.model", "*.jinja"),
)
"""Files copied from the last checkpoint, besides its tensors."""
TRACES = {"_name_or_path", "name_or_path", "is_local", "local_files_only"}
"""Keys by which transformers records where a model was loaded from."""


@dataclass(frozen=True)
class MergedModel:
    """A merged model on disk.

    Attributes:
        folder: its folder.
        method: the merging method and its options.
        base: label of the base model, if the method reads one.
        checkpoints: labels, in order.
        facts: values that were computed: weights, thresholds.
        tensors: number of merged tensors.
        notes: notes for the reader.
    """

    folder: Path
    method: dict[str, Any]
    base: str | None
    checkpoints: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: int = 0
    notes: list[str] = field(default_factory=list)


def write_merged(
    folder: Path,
    method: MergeMethod,
    models: Sequence[Opened],
    base: Opened | None = None,
    measurements: Measurements | None = None,
    *,
    more: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda number: None,
) -> MergedModel:
    """Merge checkpoints and write the result atomically; it loads without everlearn.

    Arithmetic is float64; a tensor is stored in the dtype of the last checkpoint, under its name and in a file of the
    same name. Tensors that are not floating point are copied from the last checkpoint.

    Args:
        folder: a new folder.
        method: the merging method.
        models: from :func:`~everlearn.merging.checkpoints.open_checkpoints`; the last one provides configuration,
            tokenizer and dtype.
        base: their base model, if the method needs it.
        measurements: the measurements that the method reads.
        more: additional entries of the provenance.
        progress: called with the number of completed tensors.

    Raises:
        ModelError: a merged tensor is not finite in its dtype.
        RunError: the folder cannot be written.
    """
    like, measurements, done = models[-1], measurements or Measurements(), 0
    weights = [each.weights for each in models]
    method.begin(weights, base.weights if base is not None else None, measurements.losses)

    def one(name: str) -> Tensor:
        nonlocal done
        last = like.weights.read(name)
        if last.is_floating_point():
            group = TensorGroup(
                name,
                [each.read(name).double() for each in weights],
                base.weights.read(name).double() if base is not None else None,
                _fisher(measurements, name),
            )
            last = method.merged(group).to(last.dtype)
            if not torch.isfinite(last).all():
                raise ModelError(
                    f"The merged '{name}' is not finite: a checkpoint is broken, or a weight is too large."
                )
        done += 1
        progress(done)
        return last

    notes: list[str] = []
    with files.new_folder(folder, sealed=False) as new:
        for path in sorted({like.weights.place(name) for name in like.weights.shapes()}):
            _write(path, new / path.name, one)
        _copy_beside(like.folder, Path(like.path), new)
        if not any(new.glob("tokenizer*")):
            notes.append(f"'{like.label}' has no tokenizer beside it, so none was written.")
        result = MergedModel(
            folder,
            {"name": method.name, **method.config.model_dump(mode="json")},
            base.label if base is not None else None,
            [each.label for each in models],
            dict(method.facts),
            len(like.weights.shapes()),
            notes,
        )
        opened = [*([base] if base is not None else []), *models]
        files.write_json(new / PROVENANCE, _provenance(result, opened) | dict(more or {}))
        files.write_text(new / "README.md", _card(folder.name, method, result, opened))
    return result


def _fisher(measurements: Measurements, name: str) -> list[Tensor] | None:
    if measurements.fisher is None or not all(name in each.shapes() for each in measurements.fisher):
        return None
    return [each.read(name).double() for each in measurements.fisher]


# -- safetensors --------------------------------------------------------------------------------------------------


def _write(source: Path, target: Path, tensor: Callable[[str], Tensor]) -> None:
    """Write a safetensors file with the header of another one; each tensor is computed just before it is written."""
    header, order = _header(source)
    with files.writing(target), target.open("wb") as file:
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _header(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the header of a safetensors file, and its tensor names in file order."""
    with path.open("rb") as file:
        raw = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    names = sorted((name for name in raw if name != "__metadata__"), key=lambda name: raw[name]["data_offsets"])
    return raw, names


# -- other files of the checkpoint --------------------------------------------------------------------------------


def _copy_beside(folder: Path, own: Path, new: Path) -> None:
    """Copy configuration and tokenizer without the fields that name where they were loaded from."""
    for place in dict.fromkeys((folder, own)):  # a copy of the weights has no tokenizer
        for path in (path for pattern in BESIDE for path in place.glob(pattern) if not (new / path.name).exists()):
            if path.suffix == ".json" and path.name not in ("tokenizer.json",):
                raw = files.read_json(path)
                known = {key: raw[key] for key in raw if key not in TRACES} if isinstance(raw, dict) else raw
                files.write_json(new / path.name, known)
            else:
                shutil.copyfile(path, new / path.name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shutil.copyfile(index, new / index.name)


def _provenance(merged: MergedModel, opened: Sequence[Opened]) -> dict[str, Any]:
    """Return the sources of a merged model by file digests, without paths of this machine."""
    return {
        "everlearn": __version__,
        "method": merged.method,
        "base": merged.base,
        "checkpoints": merged.checkpoints,
        "facts": merged.facts,
        "weights": {
            each.label: {
                place.name: files.digest(place)
                for place in sorted({each.weights.place(name) for name in each.weights.shapes()})
            }
            for each in opened
        },
    }


def _card(name: str, method: MergeMethod, merged: MergedModel, opened: Sequence[Opened]) -> str:
    ids = [each.path for each in opened if not Path(each.path).exists()]
    front = ["---", "library_name: transformers", "tags: [everlearn, merge]"]
    if ids:
        front += ["base_model:", *(f"- {each}" for each in dict.fromkeys(ids)), "base_model_relation: merge"]
    options = ", ".join(f"{key} {value}" for key, value in merged.method.items() if key != "name" and value is not None)
    since = f", based on {merged.base}" if merged.base is not None else ""
    return "\n".join(
        [
            *front,
            "---",
            "",
            f"# {name}",
            "",
            f"Merged from {', '.join(merged.checkpoints)}{since}, with [{method.title}]({method.paper})"
            f"{f' ({options})' if options else ''}. Made with everlearn {__version__}; digests of what it was made of "
            f"are in `{PROVENANCE}`. It was not trained after that, and its scores are not those of its parts.",
            "",
        ]
    )
