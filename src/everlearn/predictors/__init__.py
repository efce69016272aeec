"""The predictors that tasks evaluate: a checkpoint, an ensemble, or a router among several for each text."""

from everlearn.predictors.block_losses import BlockLosses, block_losses
from everlearn.predictors.ensemble import Ensemble
from everlearn.predictors.predictor import Checkpoint, Predictor
from everlearn.predictors.text_router import TextRouter
from everlearn.predictors.weighted_ensemble import PerplexityEnsemble

__all__ = [
    "BlockLosses",
    "Checkpoint",
    "Ensemble",
    "PerplexityEnsemble",
    "Predictor",
    "TextRouter",
    "block_losses",
]
