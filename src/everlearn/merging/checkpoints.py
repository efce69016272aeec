"""Open the checkpoints to merge, tensor by tensor, and refuse those that do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from transformers import AutoTokenizer

from everlearn import files
from everlearn.errors import ModelError, first_line
from everlearn.model.loading import empty_model, load_config, load_model
from everlearn.model.options import Model
from everlearn.model.peft_adapter import base_of
from everlearn.model.structure import kind_of_config
from everlearn.model.weight_movement import SavedWeights

READ = ("*.json", "model*.safetensors", "*.txt", "*.model", "*.jinja")
"""Files that are downloaded from a repository."""


@dataclass(frozen=True)
class Opened:
    """A checkpoint whose tensors can be read one by one.

    Attributes:
        label: name in tables and model cards; never a path of this machine.
        path: hub id or folder, as the user named it.
        folder: folder of its safetensors files: the checkpoint itself, or a copy that transformers wrote.
        kind: kind of the architecture.
        weights: its tensors.
    """

    label: str
    path: str
    folder: Path
    kind: str
    weights: SavedWeights


def open_checkpoints(named: Sequence[tuple[str, str]], scratch: Path, as_loaded: bool = False) -> list[Opened]:
    """Open checkpoints of one architecture and vocabulary.

    A folder or repository of safetensors is read in place. Anything else that transformers can load (an adapter on its
    base, old formats, tensors under other names) is loaded once and written into `scratch`.

    Args:
        named: label and path of each checkpoint.
        scratch: a temporary folder of the caller.
        as_loaded: whether the names of the tensors must be those of the loaded model.

    Raises:
        ModelError: a checkpoint cannot be read, or they do not fit together.
    """
    opened = [_opened(label, path, scratch / f"{number:02d}") for number, (label, path) in enumerate(named)]
    like = opened[-1]
    for each in opened:
        if each.kind != like.kind:
            raise ModelError(
                f"'{each.label}' is a {each.kind} and '{like.label}' a {like.kind}: only models of one architecture "
                "can be merged."
            )
    unlike = any(each.weights.shapes().keys() != like.weights.shapes().keys() for each in opened)
    if unlike or (as_loaded and not _as_loaded(like)):
        # Older files may have other names for the same tensors, or hold a shared tensor twice.
        opened = [
            each if each.folder.parent == scratch else _rewritten(each.label, each.path, scratch / f"{number:02d}")
            for number, each in enumerate(opened)
        ]
    for each in opened[:-1]:
        _check_alike(each, opened[-1])
    return opened


def _opened(label: str, path: str, copy: Path) -> Opened:
    if (Path(path) / files.SEAL).is_file() and (wrong := files.damage(Path(path))):  # a stage of a run
        raise ModelError(f"{wrong}. Restore it from a copy, or leave '{path}' out.")
    config = load_config(Model(path=path))
    kind = str(config.model_type)
    kind_of_config(config)
    if getattr(config, "quantization_config", None) is not None and base_of(path) is None:
        raise ModelError(
            f"'{label}' was saved in few bits (`quantization_config`), and codes of weights cannot be averaged. Merge "
            "the checkpoint that it was made of."
        )
    if base_of(path) is not None:
        return _rewritten(label, path, copy)
    try:
        folder = Path(path) if Path(path).is_dir() else Path(snapshot_download(path, allow_patterns=list(READ)))
    except (OSError, ValueError) as error:
        raise ModelError(f"The hub did not give the weights of '{path}': {first_line(error)}") from error
    if not any(folder.glob("model*.safetensors")):
        return _rewritten(label, path, copy)
    return Opened(label, path, folder, kind, SavedWeights(folder))


def _as_loaded(opened: Opened) -> bool:
    """Return whether the tensor names in the file are those of the model; no weights are read."""
    config = load_config(Model(path=opened.path))
    names = empty_model(config).state_dict().keys()
    return opened.weights.shapes().keys() <= names


def _rewritten(label: str, path: str, copy: Path) -> Opened:
    """Load a checkpoint and save it with the current transformers, in float32."""
    model = load_model(Model(path=path))
    model.save_pretrained(copy)
    return Opened(label, path, copy, model.config.model_type, SavedWeights(copy))


def _check_alike(one: Opened, like: Opened) -> None:
    own, expected = one.weights.shapes(), like.weights.shapes()
    lacking = sorted(expected.keys() ^ own.keys())
    if lacking:
        has, not_ = (one, like) if lacking[0] in own else (like, one)
        raise ModelError(
            f"'{has.label}' has the tensor '{lacking[0]}' and '{not_.label}' does not: they are not of one "
            "architecture, or one of them grew. Only models with the same tensors can be merged."
        )
    for name, shape in expected.items():
        if own[name] != shape:
            raise ModelError(
                f"'{name}' is {_by(own[name])} in '{one.label}' and {_by(shape)} in '{like.label}'"
                f"{_because(one, like)}. Only models with tensors of the same size can be merged."
            )
    words = [_vocabulary(each) for each in (one, like)]
    if None not in words and words[0] != words[1]:
        raise ModelError(
            f"'{one.label}' and '{like.label}' have vocabularies of {len(words[0] or ()):,} and "
            f"{len(words[1] or ()):,} tokens that are not the same, so rows of their embeddings mean different things. "
            "Merge models of one tokenizer."
        )


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"


def _because(one: Opened, like: Opened) -> str:
    sizes = [load_config(Model(path=each.path)).vocab_size for each in (one, like)]
    return "" if sizes[0] == sizes[1] else f": their vocabularies have {sizes[0]:,} and {sizes[1]:,} tokens"


def _vocabulary(opened: Opened) -> dict[str, int] | None:
    """Return the row of each token; None if there is no tokenizer beside the model."""
    place = Path(opened.path)
    if place.is_dir() and not any(any(place.glob(pattern)) for pattern in ("tokenizer*", "vocab.*", "*.model")):
        return None  # transformers would create an empty tokenizer
    try:
        return dict(AutoTokenizer.from_pretrained(opened.path).get_vocab())
    except (OSError, ValueError):
        return None
