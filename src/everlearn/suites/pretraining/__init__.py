"""Small encoders from nothing: a tokenizer, random weights that know their neighbours, and a folder to ship.

Two bases are made with it: the demo's (``everlearn.suites.docs``) and the one for English (``benchmarks/bases``).
"""

from everlearn.suites.pretraining.ship import ship
from everlearn.suites.pretraining.start import start_model
from everlearn.suites.pretraining.tokenizer import train_tokenizer

__all__ = ["ship", "start_model", "train_tokenizer"]
