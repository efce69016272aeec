"""Refuse methods that do not fit a run: its model, its options, or each other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from everlearn.config.recipe import Recipe
from everlearn.errors import MethodError, RecipeError
from everlearn.methods.base import Method, Setting
from everlearn.methods.engine.protection import check_carrying, check_methods, overrides
from everlearn.model.depth import frozen_parameters
from everlearn.model.quantising import check_installed
from everlearn.run.open_run import OpenRun


def check_run_methods(run: OpenRun, model: nn.Module) -> None:
    """Refuse methods that do not fit the model, the objective or each other."""
    recipe, methods = run.recipe, tuple(run.recipe.methods())
    if recipe.optimizer == "carry":
        check_carrying(methods)
    keep = recipe.run.keep_stages
    for method in methods:
        if method.needs.earlier_models and keep != "all":
            raise MethodError(
                f"Method '{method.label}' reads the models of all earlier domains; `run.keep_stages` is {keep}, "
                "which removes their weights. Set it to `all`."
            )
    _check_adapters(recipe, methods)
    frozen_parameters(model, recipe.model.frozen)
    format_ = run.setting(model)
    check_methods(
        methods,
        Setting(
            model=model,
            objective=format_.objective,
            methods=methods,
            has_peft=any(method.adds_peft for method in methods),
            has_general=recipe.general is not None,
            block_size=format_.block_size,
            domains=tuple(domain.name for domain in recipe.domains),
            rounded=recipe.model.quantization_config is not None,
        ),
    )


def _check_adapters(recipe: Recipe, methods: Sequence[Method]) -> None:
    """Refuse adapters without a base model that can be loaded again, and quantised models without adapters."""
    for method in methods:
        if not method.merges and recipe.model.path is None:
            raise MethodError(
                f"Method '{method.label}' keeps stages as adapters alone (`merge: false`), but a base model of "
                "random weights (`model.config`) cannot be loaded with them elsewhere. Set `merge: true`."
            )
    if recipe.model.quantization_config is None:
        return
    check_installed()
    if not any(method.adds_peft for method in methods):
        raise MethodError(
            "`model.quantization_config` makes weights that cannot be trained: it needs a method that "
            f"trains adapters beside them (`inc_lora`), and `method` is {[method.label for method in methods]}."
        )
    for method in methods:
        if method.needs.anatomy:
            raise MethodError(
                f"Method '{method.label}' reads rows and columns of the weights, which `model.quantization_config` "
                "packs. Remove one of the two."
            )
        if overrides(method, "starting_weights"):
            raise MethodError(
                f"Method '{method.label}' sets the weights with which a domain begins, which "
                "`model.quantization_config` packs. Remove one of the two."
            )
    if recipe.train.get("fsdp"):
        raise RecipeError("`model.quantization_config` and `train.fsdp` do not go together. Use plain DDP.")
