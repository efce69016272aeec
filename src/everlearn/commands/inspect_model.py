"""Compute the output of `everlearn inspect`: the units of a model, their parameters, and the mask of a method.

Only the configuration is read: the model is built on the meta device, without weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from everlearn import wording
from everlearn.commands.plan import extra_rows, passes, saved
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Cost, Method, Setting
from everlearn.model.anatomy import Anatomy, Site, anatomy, kind_of
from everlearn.model.loading import load_skeleton
from everlearn.model.objectives import DEFAULT_OBJECTIVE, OBJECTIVES
from everlearn.model.options import Model
from everlearn.wording import percent, size


@dataclass(frozen=True)
class ParameterGroup:
    """A group of parameters in one place of the model, and how many of them a method can mask."""

    name: str
    parameters: int
    by_units: int
    """Number of parameters that a mask of units (heads, neurons, outputs) covers."""
    by_rows: int
    """Number of parameters that a mask of a projection's output rows covers."""


@dataclass(frozen=True)
class MethodCost:
    """The additions of a method to a model, or the reason why it does not support the model."""

    name: str
    cost: Cost
    refused: str | None = None

    def sentence(self) -> str:
        """Return it in words."""
        if self.refused is not None:
            return f"does not work here. {self.refused}"
        extra = f", {self.cost.parameters:,} more parameters" if self.cost.parameters else ""
        measuring = f" (and {size(self.cost.measuring_bytes)} while it measures)" if self.cost.measuring_bytes else ""
        return (
            f"holds {size(self.cost.memory_bytes)} more while training{measuring}, saves {saved(self.cost)}, "
            f"{passes(self.cost.passes_per_step)} per step, {extra_rows(self.cost)}{extra}."
        )


@dataclass(frozen=True)
class Inspection:
    """The structure of a model."""

    model: str
    model_type: str
    kind: str
    head: str
    parameters: int
    sites: tuple[Site, ...]
    owned: dict[str, int]
    groups: list[ParameterGroup]
    costs: list[MethodCost]

    def share(self, reach: str) -> float:
        """Return the share of all parameters that masks ``by_units`` or ``by_rows`` can reach."""
        return sum(getattr(group, reach) for group in self.groups) / max(self.parameters, 1)

    def headline(self) -> str:
        """Return the first lines of the text output."""
        units = sum(site.units for site in self.sites)
        return (
            f"{self.model}: {self.model_type}, {self.kind}, "
            f"{wording.count(self.parameters, 'parameter')}, {wording.count(units, 'unit')}.\n"
            f"Masks per unit (DAS) reach {percent(self.share('by_units'))} of the parameters, masks per row (MIGU) "
            f"{percent(self.share('by_rows'))}; the rest is never protected by them.\n"
        )

    def unit_rows(self) -> list[tuple[str, str, int, int, int]]:
        """Return a row per group of equal layers: layers, kind, units, features of each, their parameters."""
        merged: dict[tuple[str, str, int, int, int], list[str]] = {}
        for site in self.sites:
            pattern = re.sub(r"\.\d+\.", ".*.", site.name, count=1)
            merged.setdefault((pattern, site.kind, site.units, site.width, self.owned[site.name]), []).append(site.name)
        rows = []
        for (pattern, kind, units, width, owned), names in merged.items():
            numbers = [match.group(1) for name in names if (match := re.search(r"\.(\d+)\.", name))]
            place = f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else "".join(numbers)
            rows.append((pattern.replace("*", place), kind, units, width, owned))
        return rows

    def group_rows(self) -> list[tuple[str, int, float, str, str]]:
        """Return rows of group, parameters, share of all, and shares that unit masks and row masks reach."""
        rows = []
        for group in self.groups:
            units, by_row = (percent(count / max(group.parameters, 1), 0) for count in (group.by_units, group.by_rows))
            rows.append((group.name, group.parameters, group.parameters / max(self.parameters, 1), units, by_row))
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "model": self.model,
            "model_type": self.model_type,
            "kind": self.kind,
            "head": self.head,
            "parameters": self.parameters,
            "units": sum(site.units for site in self.sites),
            "reached_by_unit_masks": self.share("by_units"),
            "reached_by_row_masks": self.share("by_rows"),
            "sites": [
                {
                    "name": site.name,
                    "kind": site.kind,
                    "units": site.units,
                    "features": site.width,
                    "parameters": self.owned[site.name],
                    "owned": [owned.parameter for owned in site.owned],
                }
                for site in self.sites
            ],
            "groups": [asdict(group) for group in self.groups],
            "methods": {c.name: {"refused": c.refused} if c.refused else asdict(c.cost) for c in self.costs},
        }


def inspect(path: str, methods: Iterable[Any] = ()) -> Inspection:
    """Inspect the structure of a model.

    Args:
        path: hub id or folder; only the configuration is read.
        methods: names or mappings, as in a recipe, whose additions are shown.

    Raises:
        ModelError: there is no such model, or its architecture is not known.
        MethodError: there is no such method.
    """
    model = load_skeleton(Model(path=path))
    structure = anatomy(model)
    chosen = [build(method) for method in methods]
    return Inspection(
        model=path,
        model_type=str(model.config.model_type),
        kind=structure.kind,
        head=structure.head,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        sites=structure.sites,
        owned=_owned(model, structure),
        groups=_groups(model, structure),
        costs=[_cost(method, model) for method in chosen],
    )


def _cost(method: Method, model: PreTrainedModel) -> MethodCost:
    """Return the additions of a method to the model, or why it does not support it, independently of the recipe."""
    # There is no tokenizer, because only the configuration is read.
    objective = OBJECTIVES[DEFAULT_OBJECTIVE[kind_of(model)]](None)  # type: ignore[arg-type]
    try:
        method.check(Setting(model, objective, (method,), method.adds_peft, has_general=True, block_size=1))
    except MethodError as error:
        return MethodCost(method.label, Cost(), str(error))
    return MethodCost(method.label, method.cost(model))


def _owned(model: PreTrainedModel, structure: Anatomy) -> dict[str, int]:
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return {
        site.name: sum(sizes[name] for name in {o.parameter for o in site.owned} if name in sizes)
        for site in structure.sites
    }


def _groups(model: PreTrainedModel, structure: Anatomy) -> list[ParameterGroup]:
    """Return the parameters by part: embeddings, projections, norms, vocabulary head and others."""
    units = set(structure.parameter_factors({site.name: torch.ones(site.units) for site in structure.sites}))
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    counted: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        module, _, _ = name.rpartition(".")
        in_projection = module in structure.linears
        if id(parameter) in embeddings:
            place = "embeddings"
        elif in_projection:
            place = "projections of attention and feed-forward"
        elif structure.head and (name.startswith(f"{structure.head}.") or _is_output(model, parameter)):
            place = "vocabulary head"
        elif parameter.dim() == 1:
            place = "norms and other vectors"
        else:
            place = "other"
        totals = counted.setdefault(place, [0, 0, 0])
        totals[0] += parameter.numel()
        totals[1] += parameter.numel() if name in units else 0
        totals[2] += parameter.numel() if in_projection and name.endswith("weight") else 0
    return [ParameterGroup(place, *totals) for place, totals in counted.items()]


def _is_output(model: PreTrainedModel, parameter: torch.nn.Parameter) -> bool:
    last = model.get_output_embeddings()
    return last is not None and any(own is parameter for own in last.parameters())
