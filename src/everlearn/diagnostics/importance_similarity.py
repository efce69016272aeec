"""How alike the importance for general knowledge is, whatever text it is measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from everlearn.data.loader import sample_batches
from everlearn.diagnostics.importance_maps import Map, kind_of_site
from everlearn.importance import general_importance, normalise
from everlearn.seeding import seed_for, seeded

if TYPE_CHECKING:
    from everlearn.learner import ContinualLearner

_DRAWS = 20


@dataclass(frozen=True)
class Similarity:
    """Cosine similarity of importance maps, by kind of unit.

    Attributes:
        domains: what the general importance was measured on.
        cosine: kind of unit to a symmetric matrix, [domains][domains].
        random: kind of unit to (mean, highest) cosine of maps made of independent random scores in the same way:
            since maps are never negative, unrelated ones are alike too.
    """

    domains: list[str]
    cosine: dict[str, list[list[float]]]
    random: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """For another program."""
        return vars(self)


def general_similarity(learner: ContinualLearner, samples: int) -> Similarity:
    """Measure the proxy for general knowledge on each domain of a run, on the base model, and compare the maps.

    arXiv 2302.03241 reports cosines of 0.89 to 0.92 for heads and takes them as proof that the proxy finds the same
    units whatever the domain. The random baseline says how much of that the normalisation gives to any two maps.

    Args:
        learner: of a run, finished or not; its corpora must be there.
        samples: blocks of each domain.

    Raises:
        MethodError: the model has no dropout, which the proxy needs.
    """
    objective = learner.setting().objective
    model = learner.model_after(0)
    maps: dict[str, Map] = {}
    for domain in learner.recipe.domains:
        with learner.reporter.activity(f"General importance on {domain.name}", 1) as done:
            batches = sample_batches(
                learner.prepared(domain.name).train,
                objective,
                blocks=samples,
                batch_size=learner.recipe.evaluation.batch_size,
                seed=learner.recipe.run.seed,
                device="cpu" if learner.recipe.train.get("use_cpu") else next(model.parameters()).device,
            )
            # The same dropout for every domain: what differs is the text alone.
            with seeded(learner.recipe.run.seed, "similarity"):
                maps[domain.name] = normalise(general_importance(model, batches, objective))
            done(1)
    return compare_maps(maps)


def compare_maps(maps: Mapping[str, Map]) -> Similarity:
    """Cosines of maps with the same units."""
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

    found = torch.stack([F.cosine_similarity(one(), one(), dim=0) for _ in range(_DRAWS)])
    return float(found.mean()), float(found.max())
