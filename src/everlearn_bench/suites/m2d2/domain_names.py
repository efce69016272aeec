"""The names of M2D2's parts (arXiv 2210.07370): level, super-domain and group; which are junk or aliases.

The list is that of the dataset's repository, including misspelt names. Of its 239 names three are not domains; the
other 236 contain supersets (L1) as well as their parts (L2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from everlearn.errors import DataError, did_you_mean

WIKI, S2ORC = "wiki", "S2ORC"
Level = Literal[1, 2]

WIKI_PARTS: dict[str, str] = {
    "Art": "",
    "Culture_and_the_arts": "Culture_and_Humanities Games_and_Toys Mass_media Performing_arts Sports_and_Recreation "
    "The_arts_and_Entertainment Visual_arts",
    "General_referece": "Further_research_tools_and_topics Reference_works",
    "Health_and_fitness": "Exercise Health_science Human_medicine Nutrition Public_health Self_care",
    "History_and_events": "By_continent By_period By_region",
    "Human_activites": "Human_activities Impact_of_human_activity",
    "Mathematics_and_logic": "Fields_of_mathematics Logic Mathematics",
    "Natural_and_physical_sciences": "Biology Earth_sciences Nature Physical_sciences",
    "Philosophy": "",
    "Philosophy_and_thinking": "Philosophy Thinking",
    "Religion_and_belief_systems": "Allah Belief_systems Major_beliefs_of_the_world",
    "Society_and_social_sciences": "Social_sciences Society",
    "Technology_and_applied_sciences": "Agriculture Computing Engineering Transport",
}
"""L1 of Wikipedia → its L2; a part is called ``L1__L2``. `Art` and `Philosophy` stand beside their own successors."""
S2ORC_PARTS: dict[str, str] = {
    "astro-ph": "CO EP GA HE IM SR",
    "cond-mat": "dis-nn mes-hall mtrl-sci other quant-gas soft stat-mech str-el supr-con",
    "cs": "AI AR CC CE CG CL CR CV CY DB DC DL DM DS ET FL GL GR GT HC IR IT LG LO MA MM MS NA NE NI OH OS PF PL RO "
    "SC SD SE SI SY",
    "econ": "EM GN TH",
    "eess": "AS IV SP SY",
    "math": "AC AG AP AT CA CO CT CV DG DS FA GM GN GR GT HO IT KT LO MG MP NA NT OA OC PR QA RA RT SG SP ST",
    "nlin": "AO CD CG PS SI",
    "physics": "acc-ph ao-ph app-ph atm-clus atom-ph bio-ph chem-ph class-ph comp-ph data-an ed-ph flu-dyn gen-ph "
    "geo-ph hist-ph ins-det med-ph optics plasm-ph pop-ph soc-ph space-ph",
    "q-bio": "BM CB GN MN NC OT PE QM SC TO",
    "q-fin": "CP EC GN MF PM PR RM ST TR",
    "stat": "AP CO ME ML OT TH",
}
"""L1 of S2ORC, called ``<L1>_l1`` → its L2, called ``<L1>.<L2>``."""
ARCHIVES: dict[str, str] = {
    "astro-ph": "astro-ph",
    "cond-mat": "cond-mat mtrl-th supr-con",
    "cs": "cmp-lg",
    "math": "alg-geom dg-ga funct-an q-alg",
    "nlin": "chao-dyn comp-gas patt-sol solv-int",
    "physics": "ao-sci atom-ph bayes-an chem-ph gr-qc hep-ex hep-lat hep-ph hep-th math-ph nucl-ex nucl-th plasm-ph "
    "quant-ph",
    "q-bio": "q-bio",
}
"""L1 of S2ORC → categories of arXiv without a dot, most of them retired; which L1 they are in is arXiv's own grouping,
as far as it is known: the data set does not say."""
JUNK = ("eval_sets", "only_text", "only_txt2")
"""In the list, and no domains."""
ALIASES = {
    "math.MP": "math-ph",
    "math.IT": "cs.IT",
    "cs.NA": "math.NA",
    "cs.SY": "eess.SY",
    "stat.TH": "math.ST",
    "q-fin.EC": "econ.GN",
}
"""A second name of one category of arXiv → the name that stays. Both have nearly the same papers."""


class Branch(NamedTuple):
    """The place of a domain in its taxonomy."""

    super_domain: str
    group: str
    level: Level


def _listed() -> dict[str, Branch]:
    branches: dict[str, Branch] = {}
    for group, parts in WIKI_PARTS.items():
        branches[group] = Branch(WIKI, group, 1)
        branches |= {f"{group}__{part}": Branch(WIKI, group, 2) for part in parts.split()}
    for group, parts in S2ORC_PARTS.items():
        branches[f"{group}_l1"] = Branch(S2ORC, group, 1)
        branches |= {name: Branch(S2ORC, group, 2) for name in ARCHIVES.get(group, "").split()}
        branches |= {f"{group}.{part}": Branch(S2ORC, group, 2) for part in parts.split()}
    return branches


NAMES = _listed()
"""Every domain of M2D2, Wikipedia first, each group behind its own L1."""


def without_aliases(listed: Iterable[str]) -> list[str]:
    """Return the names without aliases of others in the list."""
    every = list(listed)
    return [name for name in every if ALIASES.get(name) not in every]


def branch_of(name: str) -> Branch:
    """Return the place of one of M2D2's domains in the taxonomy.

    Raises:
        DataError: there is no domain of this name.
    """
    if name not in NAMES:
        raise DataError(
            f"'{name}' is no domain of M2D2.{did_you_mean(name, NAMES)} Your own domains belong in folders of their "
            "super-domains: `<super-domain>/<domain>/{train,valid,test}.txt`."
        )
    return NAMES[name]
