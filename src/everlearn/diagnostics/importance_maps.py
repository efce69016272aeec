"""Read the importance maps in a run's memory, and compute what they leave free for the next domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from everlearn.errors import RunError
from everlearn.importance import accumulate, normalise
from everlearn.importance.scores import Normalisation
from everlearn.methods import REGISTRY
from everlearn.methods.base import Method, UnitImportance
from everlearn.run.folder import RunFolder
from everlearn.run.trainer import MEMORY, load_memories
from everlearn.seeding import seed_for

Map = dict[str, Tensor]
PROTECTED = 0.9
"""A unit of this importance gets a tenth of its update."""
_DRAWS = 20
_UNITS = 1000


@dataclass(frozen=True)
class Maps:
    """The importance of units in a run's memory.

    Attributes:
        sites: "general" (if it was measured) and each learnt domain, in order → name of a site → [units] in [0, 1).
        how: how the maps were normalised.
        grows: whether they accumulate over the domains.
    """

    sites: dict[str, Map]
    how: Normalisation
    grows: bool


def maps_of(run: RunFolder) -> Maps | None:
    """Return the importance after each stage and before the first ("general"); None if the run measures none.

    Raises:
        RunError: no domain is learnt yet.
    """
    recipe = run.recipe()
    sites: dict[str, Map] = {}
    last: UnitImportance | None = None
    if not run.stage(1, recipe.domains[0].name).is_dir():
        raise RunError(f"{run.path} has not learnt a domain yet: `everlearn resume {run.path}`, and analyse it then.")
    for index, domain in enumerate(recipe.domains, 1):
        methods = recipe.methods()
        load_memories(run.stage(index, domain.name) / MEMORY, methods)
        importance = next((each for method in methods if (each := method.importance()) is not None), None)
        if importance is None:
            continue
        if importance.general:
            sites.setdefault("general", dict(importance.general))
        sites[domain.name], last = dict(importance.accumulated), importance
    return None if last is None else Maps(sites, last.normalise, last.grows)


def without_maps(run: RunFolder) -> str:
    """Return the message for a run without importance in its memory."""
    measuring = [f"`{name}`" for name, method in REGISTRY.items() if method.importance is not Method.importance]
    return (
        f"{run.path} has no importance of units in its memory: a run of {' or '.join(sorted(measuring))}, or of a "
        "variant that measures it, does."
    )


def kind_of_site(site: str) -> str:
    """Return heads, neurons or outputs: the last word of a site's name, in the plural."""
    return site.rsplit(".", 1)[-1].removesuffix("s") + "s"


@dataclass(frozen=True)
class OccupiedShare:
    """What maps leave free, after each stage.

    Attributes:
        stages: "general", then the domains in order.
        kinds: kinds of unit: heads, neurons, outputs.
        free: mean of 1 − I by kind and stage, [kinds][stages]: the share of an update that still happens.
        protected: share of units with I ≥ 0.9, [kinds][stages].
        chance: mean of 1 − I if every map were independent noise, [stages]: the effect of the maximum alone.
        grows: whether maps accumulate. If not, a domain's map is the one that was used while it was learnt.
    """

    stages: list[str]
    kinds: list[str]
    free: list[list[float]]
    protected: list[list[float]]
    chance: list[float]
    grows: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the shares as JSON data."""
        return vars(self)


def occupied_share(maps: Mapping[str, Map], how: Normalisation = "tanh_abs", grows: bool = True) -> OccupiedShare:
    """Return how full the mask is after each stage, beside the values for independent maps.

    The element-wise maximum can only grow. Even unrelated maps fill it up: normal scores mapped by |tanh(z)| leave
    0.44, 0.28, 0.20, 0.15 … of an update free after 1, 2, 3, 4 maps.

    Args:
        maps: stage → site name → [units].
        how: normalisation of the maps.
        grows: whether they accumulate; if not, each domain has its own map, measured before its stage.
    """
    # Without accumulation the map from before the first domain is the first domain's.
    stages = [stage for stage in maps if grows or stage != "general" or len(maps) == 1]
    kinds = sorted({kind_of_site(site) for sites in maps.values() for site in sites})

    def values(stage: str, kind: str) -> Tensor:
        return torch.cat([value for site, value in maps[stage].items() if kind_of_site(site) == kind])

    return OccupiedShare(
        stages=stages,
        kinds=kinds,
        free=[[float((1 - values(stage, kind)).mean()) for stage in stages] for kind in kinds],
        protected=[[float((values(stage, kind) >= PROTECTED).float().mean()) for stage in stages] for kind in kinds],
        chance=chance(len(stages), how) if grows else chance(1, how) * len(stages),
        grows=grows,
    )


def chance(count: int, how: Normalisation = "tanh_abs") -> list[float]:
    """Return the mean of 1 − I after 1 … `count` independent maps of normal scores with this normalisation."""
    random = torch.Generator().manual_seed(seed_for("analysis", "chance"))
    free = torch.zeros(count)
    for _ in range(_DRAWS):
        held: Map = {}
        for number in range(count):
            new = normalise({"units": torch.randn(_UNITS, generator=random)}, how)
            held = accumulate([held, new] if held else [new])
            free[number] += (1 - held["units"]).mean() / _DRAWS
    return free.tolist()
