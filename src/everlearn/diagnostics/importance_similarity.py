"""Measure how similar the importance for general knowledge is when it is measured on different domains."""

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
        domains: domains on which the general importance was measured.
        cosine: kind of unit → symmetric matrix, [domains][domains].
        random: kind of unit → (mean, highest) cosine of maps of independent random scores with the same normalisation.
            Maps are never negative, so even unrelated ones have a high cosine.
    """

    domains: list[str]
    cosine: dict[str, list[list[float]]]
    random: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """Return the similarity as JSON data."""
        return vars(self)


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
