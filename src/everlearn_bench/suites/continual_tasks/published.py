"""Numbers of the MIGU paper (arXiv 2406.17245) for the orders 1 to 6 with T5-large."""

from __future__ import annotations

from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites.base import Published

_TABLE: dict[str, tuple[float | None, ...]] = {
    PLAIN: (74.4, 75.0, 77.5, 75.7, 70.6, 69.7, 65.6, 68.3),
    "migu": (78.3, 79.8, 78.3, 78.8, 77.1, 73.6, 70.7, 73.8),
    "replay": (77.4, 77.1, 77.9, 77.4, None, None, None, None),
    "replay+migu": (80.8, 77.0, 78.0, 78.6, None, None, None, None),
    "lora": (60.7, 70.0, 73.1, 67.9, 53.7, 44.4, 39.8, 46.0),
    "lora+migu": (74.8, 71.6, 73.5, 73.3, 66.9, 64.8, 51.8, 61.2),
    "inc_lora": (67.0, 66.7, 72.6, 68.8, 65.5, 64.9, 63.9, 64.7),
    "inc_lora+migu": (77.2, 76.7, 75.4, 76.4, 71.3, 67.7, 67.3, 68.7),
    "o_lora": (77.1, 76.2, 76.6, 76.6, 68.4, 68.8, 71.4, 69.5),
    "o_lora+migu": (77.1, 77.0, 75.6, 76.6, 67.3, 68.5, 74.2, 70.0),
    "lora+replay": (77.1, 73.4, 73.2, 74.5, 74.5, 75.4, 75.7, 75.2),
    "lora+replay+migu": (77.8, 75.1, 75.9, 76.2, 75.4, 76.8, 77.2, 76.5),
    "moe_lora": (52.8, 49.6, 59.8, 54.1, 36.3, 31.4, 15.1, 27.6),
    "sapt_lora": (None, None, None, None, None, None, None, 82.0),
    "mocl": (75.6, 75.4, 76.7, 75.9, None, None, None, None),
    "lfpt5": (67.6, 72.6, 77.9, 72.7, 70.4, 68.2, 69.1, 69.2),
    "progressive_prompts": (75.2, 75.0, 75.1, 75.1, 78.0, 77.7, 77.9, 77.9),
    "per_task": (70.0, 70.0, 70.0, 70.0, 78.1, 78.1, 78.1, 78.1),
    "mtl": (80.0, 80.0, 80.0, 80.0, 76.5, 76.5, 76.5, 76.5),
}
"""Table 8: orders 1 to 3 and their mean, orders 4 to 6 and theirs."""
_CAPTION = (
    "Table 8 of the MIGU paper (arXiv 2406.17245; SAPT-LoRA: its table 2): T5-large, exact match in percent, means of "
    "three runs. LFPT5, O-LoRA, MoCL, Progressive Prompts, SAPT-LoRA, per-task fine-tuning and MTL are copied there "
    "from other papers, whose protocols differ (16 examples a class for LFPT5 and MoCL; ten epochs with the checkpoint "
    "chosen on the test part for SAPT-LoRA); O-LoRA without MIGU is such a row, so its pair compares two protocols. "
    "Rows of other papers for FT (28.5 and 7.4), LoRA (43.7 and 1.6) and EPI are not shown: plain fine-tuning of order "
    "1 has been reported as 18.9, 23.0, 67.8 and 74.4, mostly by learning rate. The paper's tables disagree in places "
    "(MTL long 80.0 in table 2; FT long 68.3, where its orders have a mean of 68.6). Another model, other prompts and, "
    "where tasks are proxies, other examples here: not the same experiment."
)


def published(first: int, orders: tuple[int, ...], suite: str) -> Published:
    """Return the columns of one suite.

    Args:
        first: column of the table with its first order.
        orders: orders of the suite.
        suite: name of the suite.
    """
    rows = {name: row[first : first + 4] for name, row in _TABLE.items()}
    return Published(
        f"the MIGU paper on `{suite}`",
        (*(f"order {order}" for order in orders), "mean"),
        {name: row for name, row in rows.items() if any(value is not None for value in row)},
        _CAPTION,
        (*(("accuracy", order) for order in orders), ("accuracy", None)),
    )
