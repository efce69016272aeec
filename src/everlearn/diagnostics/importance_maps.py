"""Read a run's importance maps; compute the share they leave free to change, and their similarity across domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from everlearn import wording
from everlearn.data.loader import sample_batches
from everlearn.errors import RunError
from everlearn.importance import accumulate, general_importance, normalise
from everlearn.importance.normalisation import Normalisation
from everlearn.methods import REGISTRY
from everlearn.methods.base import Method, UnitImportance
from everlearn.run.folder import RunFolder
from everlearn.run.stage_files import MEMORY, load_memories
from everlearn.seeding import seed_for, seeded

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner


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
        how: normalisation of the maps.
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
        raise RunError(
            f"{run.path} has not learnt a domain yet: `{wording.command('resume', run.path)}`, and analyse it then."
        )
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
    """The share of an update that the maps leave free, after each stage.

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


def occupied_share(maps: Mapping[str, Map], how: Normalisation = "tanh_abs", grows: bool = True) -> OccupiedShare:
    """Return the share that the maps leave free after each stage, beside the values for independent maps.

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


@dataclass(frozen=True)
class Similarity:
    """Cosine similarity of importance maps, by kind of unit.

    Attributes:
        domains: domains on which the general importance was measured.
        cosine: kind of unit → symmetric matrix, [domains][domains].
        random: kind of unit → (mean, highest) cosine of maps of independent random scores with the same normalisation.
            Maps are never negative, so even unrelated ones have a high cosine.
    """

    domains: list[str]
    cosine: dict[str, list[list[float]]]
    random: dict[str, tuple[float, float]]


def general_similarity(learner: ContinualLearner, samples: int) -> Similarity:
    """Measure the proxy for general knowledge on each domain of a run, on the base model, and compare the maps.

    arXiv 2302.03241 reports cosines of 0.89 to 0.92 for heads and concludes that the proxy finds the same units on any
    domain. The random baseline shows how much of that comes from the normalisation alone.

    Args:
        learner: learner of a run, finished or not, whose corpora are available.
        samples: number of blocks of each domain.

    Raises:
        MethodError: the model has no dropout, which the proxy needs.
    """
    objective, device = learner.setting().objective, learner.scorer().device
    model = learner.model_after(0).to(device)
    maps: dict[str, Map] = {}
    for domain in learner.recipe.domains:
        with learner.reporter.activity(f"General importance on {domain.name}", 1) as done:
            batches = sample_batches(
                learner.prepared(domain.name).train,
                objective,
                blocks=samples,
                batch_size=learner.recipe.evaluation.batch_size,
                seed=learner.recipe.run.seed,
                device=device,
            )
            # The same dropout for every domain, so that only the text differs.
            with seeded(learner.recipe.run.seed, "similarity"):
                maps[domain.name] = normalise(general_importance(model, batches, objective))
            done(1)
    return compare_maps(maps)


def compare_maps(maps: Mapping[str, Map]) -> Similarity:
    """Return the cosines of maps with the same units."""
    domains = list(maps)
    kinds = sorted({kind_of_site(site) for site in maps[domains[0]]})
    cosine, random = {}, {}
    for kind in kinds:
        sites = [site for site in maps[domains[0]] if kind_of_site(site) == kind]
        rows = torch.stack([torch.cat([maps[domain][site].float().cpu() for site in sites]) for domain in domains])
        unit = F.normalize(rows.double(), dim=1)
        cosine[kind] = (unit @ unit.T).tolist()
        random[kind] = _random_cosine([maps[domains[0]][site].numel() for site in sites])
    return Similarity(domains, cosine, random)


def _random_cosine(sizes: Sequence[int]) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(seed_for("analysis", "random cosine"))

    def one() -> Tensor:
        scores = {str(i): torch.randn(size, generator=generator) for i, size in enumerate(sizes)}
        return torch.cat(list(normalise(scores).values())).double()

    cosines = torch.stack([F.cosine_similarity(one(), one(), dim=0) for _ in range(_DRAWS)])
    return float(cosines.mean()), float(cosines.max())
