"""Who answers a task: a checkpoint, an ensemble of checkpoints, or for each text the one that expects it most."""

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
