"""Pre-train small encoders from scratch: a tokenizer, initial weights with local attention, and a folder to ship.

Two base models are built with it: that of the demo (``everlearn_bench.suites.docs``) and the English one
(``benchmarks/bases``).
"""

from everlearn_bench.suites.pretraining.ship import ship
from everlearn_bench.suites.pretraining.start import start_model
from everlearn_bench.suites.pretraining.tokenizer import train_tokenizer

__all__ = ["ship", "start_model", "train_tokenizer"]
