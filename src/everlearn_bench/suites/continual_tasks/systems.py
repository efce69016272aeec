"""The rows of the suites' tables: systems of the MIGU paper (arXiv 2406.17245) as methods with their options.

Change this file if a system gets another method or other options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everlearn.grid.template import System
from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.continual_tasks.tasks import LONG, STANDARD

MIGU_PAPER = "https://arxiv.org/abs/2406.17245"
ADAPTERS = {"train.learning_rate": 1e-3}
"""The learning rate of everything with adapters; full fine-tuning has 1e-4."""
SAPT = {"train.learning_rate": 3e-4}
"""That of SAPT's authors."""
PREFIXES = {"train.learning_rate": 2e-2}
"""That of MoCL's authors for prefixes (with a decoder, which gets low-rank blocks, they have 1e-3: see `entries`)."""
ADAFACTOR = {"train.optim": "adafactor"}
"""The optimizer of LFPT5's authors; its learning rate is an option of the method, like that of Progressive Prompts."""
EARLIER = {"name": "replay_sample"}
"""2 % of the examples of every earlier task beside those of the present one."""


def _migu(threshold: float) -> dict[str, Any]:
    return {"name": "migu", "threshold": threshold}


SYSTEMS: dict[str, System] = {
    PLAIN: System("FT", ({"name": PLAIN},)),
    "migu": System("FT + MIGU", (_migu(0.7),), MIGU_PAPER),
    "replay": System("FTReplay", (EARLIER,)),
    "replay+migu": System("FTReplay + MIGU", (EARLIER, _migu(0.7)), MIGU_PAPER),
    "lora": System("LoRA", ({"name": "lora"},), "https://arxiv.org/abs/2106.09685", ADAPTERS),
    "lora+migu": System("LoRA + MIGU", ({"name": "lora"}, _migu(0.7)), MIGU_PAPER, ADAPTERS),
    "inc_lora": System("IncLoRA", ({"name": "inc_lora"},), "https://arxiv.org/abs/2310.14152", ADAPTERS),
    "inc_lora+migu": System("IncLoRA + MIGU", ({"name": "inc_lora"}, _migu(0.7)), MIGU_PAPER, ADAPTERS),
    "o_lora": System("O-LoRA", ({"name": "o_lora"},), "https://arxiv.org/abs/2310.14152", ADAPTERS),
    "o_lora+migu": System("O-LoRA + MIGU", ({"name": "o_lora"}, _migu(0.05)), MIGU_PAPER, ADAPTERS),
    "lora+replay": System("LoRAReplay", ({"name": "lora"}, EARLIER), "", ADAPTERS),
    "lora+replay+migu": System("LoRAReplay + MIGU", ({"name": "lora"}, EARLIER, _migu(0.4)), MIGU_PAPER, ADAPTERS),
    "moe_lora": System("MoE-LoRA", ({"name": "moe_lora", "experts": len(STANDARD[1])},), "", ADAPTERS),
    "sapt_lora": System("SAPT-LoRA", ({"name": "sapt_lora"},), "https://arxiv.org/abs/2401.08295", SAPT),
    "mocl": System("MoCL", ({"name": "mocl"},), "https://arxiv.org/abs/2404.00790", PREFIXES),
    "lfpt5": System("LFPT5", ({"name": "lfpt5"},), "https://arxiv.org/abs/2110.07298", ADAFACTOR),
    "progressive_prompts": System(
        "Progressive Prompts", ({"name": "progressive_prompts"},), "https://arxiv.org/abs/2301.12314"
    ),
}
"""By the name of the row."""
ATTENTION = ("query", "key", "value", "attention_output")
FFN = ("feed_forward_in", "feed_forward_out")
SELECTORS: dict[str, System] = {
    f"migu_by_{by}": System(f"FT + MIGU (by {by})", (_migu(0.7) | {"selector": by},), MIGU_PAPER)
    for by in ("weight", "gradient", "random")
}
"""What else rows may be chosen by: the paper's table 11, which has no random row."""
COMPONENTS: dict[str, System] = {
    f"migu_of_{part}": System(f"FT + MIGU ({title} alone)", (_migu(0.7) | {"components": list(layers)},), MIGU_PAPER)
    for part, title, layers in (
        ("query", "queries", ATTENTION[:1]),
        ("key", "keys", ATTENTION[1:2]),
        ("value", "values", ATTENTION[2:3]),
        ("attention_output", "attention's output", ATTENTION[3:]),
        ("attention", "attention", ATTENTION),
        ("ffn_in", "FFN's first layer", FFN[:1]),
        ("ffn", "FFN", FFN),
    )
}
"""Which layers are masked: the paper's table 5."""
ON_GRADIENT: dict[str, System] = {
    "migu_on_gradient": System("FT + MIGU (on the gradient)", (_migu(0.7) | {"apply_to": "gradient"},), MIGU_PAPER),
    "lora+migu_on_gradient": System(
        "LoRA + MIGU (on the gradient)", ({"name": "lora"}, _migu(0.7) | {"apply_to": "gradient"}), MIGU_PAPER, ADAPTERS
    ),
}
"""The mask where the paper has it: before Adam, which then moves masked rows all the same by what it remembers."""
VARIED = SELECTORS | COMPONENTS | ON_GRADIENT
"""Rows of MIGU that are in no table of systems."""
SYSTEMS |= VARIED
LONG_SYSTEMS = SYSTEMS | {
    "o_lora": replace(SYSTEMS["o_lora"], methods=({"name": "o_lora_long_sequence"},)),
    "o_lora+migu": replace(SYSTEMS["o_lora+migu"], methods=({"name": "o_lora_long_sequence"}, _migu(0.05))),
    "moe_lora": replace(SYSTEMS["moe_lora"], methods=({"name": "moe_lora", "experts": len(LONG[4])},)),
}
"""The same for fifteen tasks: O-LoRA with the strengths of its scripts for them, and as many experts as tasks."""
PAPER_NAMES = {
    "ft": PLAIN,
    "ft+migu": "migu",
    "ftreplay": "replay",
    "ftreplay+migu": "replay+migu",
    "oinclora": "o_lora",
    "oinclora+migu": "o_lora+migu",
    "lorareplay": "lora+replay",
    "lorareplay+migu": "lora+replay+migu",
    "pertaskft": "per_task",
    "progprompt": "progressive_prompts",
}
"""Names of the paper where they are not ours."""
GROUPS = {
    "all": (
        "constant",
        "none",
        *(name for name in SYSTEMS if name not in VARIED),
        "per_task",
        "mtl",
    ),
    "migu-pairs": tuple(
        name for name in SYSTEMS if name.endswith("migu") or f"{name}+migu" in SYSTEMS or name == PLAIN
    ),
    "migu-selectors": (PLAIN, "migu", *SELECTORS),
    "migu-components": (PLAIN, "migu", *COMPONENTS),
    "migu-on-gradient": (PLAIN, "migu", "lora", "lora+migu", *ON_GRADIENT),
}
"""Every system; what is compared with and without MIGU; MIGU with other selectors, of single components, and with the
mask on the gradient."""
