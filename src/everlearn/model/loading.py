"""Load models and tokenizers from the hub or a folder, with errors that say what to do; weights are always float32."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from everlearn import files, plugins
from everlearn.errors import EverlearnError, ModelError, RecipeError, did_you_mean, first_line
from everlearn.model.architectures import architectures
from everlearn.model.options import Model
from everlearn.model.peft_adapter import CONFIG as ADAPTER
from everlearn.model.peft_adapter import base_of, with_adapter
from everlearn.model.quantising import unpacking
from everlearn.model.structure import architecture_of, language_model_class, sees
from everlearn.seeding import seeded
from everlearn.wording import count

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
"""Values of a configuration that no model has as 0, by the names that every configuration of transformers knows."""
PANIC = "PanicException"
"""What a library in Rust raises for a mistake of its own; it is no ``Exception``."""


@contextlib.contextmanager
def _explained(what: str, path: str, key: str) -> Iterator[None]:
    """Turn exceptions of transformers and the hub into error messages."""
    try:
        yield
    except ModelError:
        raise
    except BaseException as error:  # tokenizers raise plain Exception, and a damaged file may raise anything
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        first = first_line(error)
        if "contains custom code" in str(error):
            raise ModelError(
                f"The {what} in '{path}' (`{key}`) needs program code that comes with it. Read that code; if you trust "
                "it, set `model.trust_remote_code: true` in the recipe. Commands without a recipe do not run such code."
            ) from error
        if Path(path).is_file():
            raise ModelError(f"'{path}' (`{key}`) is a file: name the folder that holds the {what}.") from error
        if Path(path).exists():
            raise ModelError(f"The {what} in '{path}' (`{key}`) cannot be loaded: {first}") from error
        near = did_you_mean(Path(path).name, [p.name for p in Path(path).parent.glob("*/")])
        raise ModelError(
            f"'{path}' (`{key}`) is no local folder, and the hub did not give a {what} of that name: {first}"
            f"{near if near.startswith(' Did') else ''} Without a network, download it elsewhere and give its folder."
        ) from error


@contextlib.contextmanager
def _attending(kernel: str | None) -> Iterator[None]:
    """Name the key to change if an attention kernel is not installed or does not support the model."""
    try:
        yield
    except (ImportError, ValueError) as error:
        if kernel is None or not _names_kernel(error):
            raise
        first = first_line(error).rstrip(".")
        raise ModelError(f"`model.attn_implementation: {kernel}` cannot be used here: {first}.") from error


def _names_kernel(error: Exception) -> bool:
    """Return whether an error is about the attention kernel, and not about the number of heads."""
    message = str(error).lower()
    return "attention" in message and "heads" not in message


def check_complete(path: str | Path, key: str = "model.path") -> None:
    """Check that a folder holds the files that its ``checksum.json`` lists; hub ids and other folders pass.

    Args:
        path: path of a model, as in the recipe.
        key: key of the recipe.

    Raises:
        ModelError: one is missing. If a ``fetch.py`` exists beside the folder, the message shows how to call it.
    """
    folder = Path(path)
    if not (folder / "checksum.json").is_file():
        return
    for name in files.read_json(folder / "checksum.json"):
        if not (folder / name).is_file():
            script = folder.parent / "fetch.py"
            get = f"Get it: python {script} {folder.name}" if script.is_file() else "Copy the complete folder."
            raise ModelError(f"The model in '{path}' (`{key}`) lacks {name}, which its checksum.json lists. {get}")


OF_MODELS = ("config.json", "checksum.json")
"""Files of a model's folder, which may also have the recipe that the model was made by."""


def check_is_no_run(path: str | Path, role: str) -> None:
    """Refuse the folder of a run, which contains models but is not a model itself.

    Args:
        path: path of a model, as the user wrote it.
        role: the key or argument that names it, or what it is.

    Raises:
        RecipeError: it is a run; the sentence names one of its stages.
    """
    folder = Path(path)
    if not (folder / "recipe.yaml").is_file() or any((folder / name).is_file() for name in OF_MODELS):
        return
    stages = [place.name for place in sorted(folder.glob("stage-*")) if not place.name.endswith(".training")]
    example = f": {folder / stages[-1]}" if stages else ""
    raise RecipeError(f"{role} is '{path}', a run and not a model. Name one of its stages{example}.")


def load_config(recipe: Model) -> Any:
    """Return the configuration of a model, with the changes of the recipe; nothing else is read."""
    if recipe.path is None:
        options = dict(recipe.config or {})
        model_type = str(options.pop("model_type"))
        plugins.find("architectures", model_type)
        if model_type not in CONFIG_MAPPING:
            near = did_you_mean(model_type, architectures())
            raise ModelError(
                f"`model.config.model_type` is '{model_type}', and transformers has no architecture of that name."
                f"{near if near.startswith(' Did') else ''}"
            )
        try:
            config = AutoConfig.for_model(model_type, **options)
        except Exception as error:  # an architecture may raise anything for values that it does not expect
            why = first_line(error.__cause__ or error).rstrip(".")
            raise ModelError(f"`model.config` is no configuration of a '{model_type}': {why}.") from error
        _check_sizes(config, "`model.config`")
        return config
    check_is_no_run(recipe.path, "`model.path`")
    check_complete(recipe.path)
    with _explained("model", str(recipe.path), "model.path"):
        place = recipe.path, recipe.revision
        while base := base_of(*place):  # an adapter has the configuration of its base model, which may be one of others
            place = base
        config = config_of(*place, recipe.trust_remote_code)
    for name, value in (recipe.config or {}).items():
        if not hasattr(config, name):
            raise ModelError(
                f"The configuration of '{recipe.path}' has no '{name}' (`model.config`)."
                f"{did_you_mean(name, config.to_dict())}"
            )
        try:
            setattr(config, name, value)
        except StrictDataclassError as error:
            raise ModelError(f"`model.config.{name}` cannot be {value!r}: {error.__cause__ or error}.") from error
    _check_sizes(config, f"The configuration of '{recipe.path}'")
    return config


def _check_sizes(config: Any, where: str) -> None:
    for name in SIZES:
        size = getattr(config.get_text_config(), name, None)
        if isinstance(size, int) and size < 1:
            raise ModelError(f"{where} has {name}: {size}; it must be 1 or more.")


def config_of(path: str, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a checkpoint, whose architecture an installed plugin may bring."""
    if plugins.names("architectures"):
        known, _ = PreTrainedConfig.get_config_dict(path, revision=revision)
        plugins.find("architectures", str(known.get("model_type")))
    return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)


def own_module(recipe: Model, saved: Path) -> str | None:
    """Return the module that must be imported to load a model; None if transformers can load it.

    Args:
        recipe: the base model.
        saved: where the model was saved, or an adapter for it; then the folder of the base model is read, if it exists.
    """
    model_type = _type_of(recipe, saved)
    plugins.find("architectures", model_type)
    module = str(CONFIG_MAPPING[model_type].__module__) if model_type in CONFIG_MAPPING else "transformers"
    return None if module.partition(".")[0] in ("transformers", "transformers_modules") else module


def class_with_vision(recipe: Model, saved: Path) -> str | None:
    """Return the class of transformers that loads a saved vision-language model; None for other models.

    Args:
        recipe: as in :func:`own_module`.
        saved: as in :func:`own_module`.
    """
    return AutoModelForImageTextToText.__name__ if sees(_type_of(recipe, saved)) else None


def has_own_code(saved: Path) -> bool:
    """Return whether a saved model needs the code that is beside it (`trust_remote_code`)."""
    config = saved / "config.json"
    return config.is_file() and bool(files.read_json(config).get("auto_map"))


def _type_of(recipe: Model, saved: Path) -> str:
    for folder in (saved, Path(recipe.path or "")):
        if (folder / "config.json").is_file():
            return str(files.read_json(folder / "config.json").get("model_type", ""))
    return str((recipe.config or {}).get("model_type", ""))


def load_tokenizer(recipe: Model) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a recipe; for an adapter without one, that of the adapter's base model."""
    path = recipe.tokenizer or str(recipe.path)
    if recipe.tokenizer is None and (adapter := _adapter_without_tokenizer(recipe)):
        return load_tokenizer(adapter)
    key = "model.tokenizer" if recipe.tokenizer else "model.path"
    check_complete(path, key)
    with _explained("tokenizer", path, key):
        tokenizer = AutoTokenizer.from_pretrained(
            path, revision=None if recipe.tokenizer else recipe.revision, trust_remote_code=recipe.trust_remote_code
        )
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _adapter_without_tokenizer(recipe: Model) -> Model | None:
    """Return the base model of an adapter if the adapter's folder has no tokenizer; None otherwise."""
    folder = Path(str(recipe.path))
    if not (folder / ADAPTER).is_file() or any(folder.glob("tokenizer*")) or any(folder.glob("vocab*")):
        return None
    base = base_of(str(folder))
    return None if base is None else recipe.model_copy(update={"path": base[0], "revision": base[1]})


def load_model(recipe: Model, seed: int = 0) -> PreTrainedModel:
    """Load the base model of a recipe in float32 for training, from its checkpoint or with random weights."""
    config = _trainable_config(recipe)
    if recipe.path is None:
        with seeded(seed, "weights"), _attending(recipe.attn_implementation):
            return _from_config(config, attn_implementation=recipe.attn_implementation)
    return load_weights(recipe.path, recipe.attn_implementation, recipe.revision, recipe.trust_remote_code, config)


def _trainable_config(recipe: Model) -> Any:
    """Return the configuration of a recipe's model; refuse a checkpoint in few bits that cannot be unpacked."""
    config = load_config(recipe)
    unpacking(config, str(recipe.path))
    return config


def load_skeleton(recipe: Model) -> PreTrainedModel:
    """Build the base model of a recipe on the meta device: no weight is read or allocated."""
    with _attending(recipe.attn_implementation):
        return empty_model(
            _trainable_config(recipe),
            attn_implementation=recipe.attn_implementation,
            trust_remote_code=recipe.trust_remote_code,
        )


def empty_model(config: Any, **options: Any) -> PreTrainedModel:
    """Build the model of a configuration on the meta device: no weight is read or allocated.

    Args:
        config: the configuration that :func:`load_config` returns.
        options: options of ``from_config``.

    Raises:
        ModelError: there is no such model, because the values of the configuration contradict each other.
    """
    with torch.device("meta"):
        return _from_config(config, **options)


def _from_config(config: Any, **options: Any) -> PreTrainedModel:
    try:
        model: PreTrainedModel = language_model_class(config).from_config(config, dtype=torch.float32, **options)
        return model
    except (ImportError, EverlearnError):
        raise
    except Exception as error:  # an architecture may raise anything for values that it does not expect
        if _names_kernel(error):
            raise
        which = f" of '{config.name_or_path}'" if config.name_or_path else " (`model.config`)"
        why = first_line(error).rstrip(".")
        raise ModelError(f"No model can be built from the configuration{which}: {why}.") from error


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> None:
    """Raise ``ModelError`` unless the model has an embedding for the largest token id; ids may have gaps."""
    rows = len(model.get_input_embeddings().get_parameter("weight"))  # type: ignore[operator]
    needed = max([len(tokenizer) - 1, *tokenizer.get_vocab().values()]) + 1
    if needed > rows:
        raise ModelError(
            f"The tokenizer '{tokenizer.name_or_path}' has token ids up to {needed - 1:,}, but the model has "
            f"{rows:,} embeddings. Use the model's own tokenizer (`model.tokenizer`)."
        )


def load_weights(
    path: str,
    attention: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    config: Any = None,
) -> PreTrainedModel:
    """Load a checkpoint with a language-model head in float32, whatever its saved precision.

    Its own configuration is used unless `config` is passed, and the attention kernel that transformers chooses unless
    `attention` names one. An adapter is merged into the model that it names.

    Training in bf16 weights moves almost nothing at small learning rates and looks like little forgetting; bf16 belongs
    to the computation (`train.bf16`), not to the master weights.
    """
    check_complete(path)
    with _explained("model", path, "model.path"), _attending(attention):
        base = base_of(path, revision)
        if base is not None:
            return with_adapter(
                lambda: load_weights(base[0], attention, base[1], trust_remote_code, config), path, revision
            )
        if config is None:
            config = load_config(Model(path=path, revision=revision, trust_remote_code=trust_remote_code))
        model, info = language_model_class(config).from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            attn_implementation=attention,
            revision=revision,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **unpacking(config, path),
        )
    if missing := sorted(info["missing_keys"]):
        some = f"{', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}"
        why = _why_missing(missing, sorted(info["unexpected_keys"]), architecture_of(model).head)
        raise ModelError(f"'{path}' (`model.path`) has no weights for {some}: {why}")
    return model


def _why_missing(missing: list[str], besides: list[str], head: str) -> str:
    """Return the likely cause of missing weights, and what to do.

    Args:
        missing: names of the weights that a checkpoint lacks.
        besides: names of the weights that it has besides those of the model.
        head: path of the vocabulary head.
    """
    of_peft = re.compile(r"^base_model\.model\.|\.base_layer\.|\.lora_")
    wrapped = next(filter(of_peft.search, besides), None)
    if wrapped is not None:
        return (
            f"it was saved from a model with PEFT adapters, under names such as {wrapped}. Merge the adapters before "
            "saving (`model = model.merge_and_unload()`), or give the folder of the adapter alone."
        )
    prefix = next((each for each in ("_orig_mod.", "module.") if any(n.startswith(each) for n in besides)), None)
    if prefix is not None:
        return (
            f"its names begin with '{prefix}', as those of a wrapped model (torch.compile, DistributedDataParallel). "
            "Save the model inside the wrapper."
        )
    if all(name.startswith(f"{head.partition('.')[0]}.") for name in missing):
        return "it was saved without its language-model head. Use the checkpoint it came from."
    also = f", and has others, such as {besides[0]}" if besides else ""
    return (
        f"it lacks {count(len(missing), 'tensor')}{also}. The files are incomplete or of another model than "
        "config.json says. Save it again with save_pretrained, or copy the complete folder."
    )


def quiet() -> None:
    """Silence the notices of other libraries, which would disturb our own output on a terminal."""
    for name in ("transformers", "datasets", "accelerate", "peft", "httpx", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # PEFT uses a name that transformers has renamed: nothing that a user could change.
    warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
