"""Diagnose a run: importance maps, their similarity and what they leave free; where and why checkpoints forget."""

from everlearn.diagnostics.checkpoint_distance import Distance, Pair, distances, pair_of, pairs_of
from everlearn.diagnostics.importance_maps import Maps, OccupiedShare, maps_of, occupied_share, without_maps
from everlearn.diagnostics.importance_similarity import Similarity, general_similarity
from everlearn.diagnostics.interpolation import GoingBack, merged_back, restored
from everlearn.diagnostics.prediction_ranks import Ranks, prediction_ranks
from everlearn.diagnostics.repair import Repair, repair, save_repaired, search_repair
from everlearn.diagnostics.row_activations import (
    Alike,
    Magnitudes,
    alike,
    output_magnitudes,
    threshold_of,
    updated_rows,
)
from everlearn.diagnostics.training_codelength import Prequential, prequential

__all__ = [
    "Alike",
    "Distance",
    "GoingBack",
    "Magnitudes",
    "Maps",
    "OccupiedShare",
    "Pair",
    "Prequential",
    "Ranks",
    "Repair",
    "Similarity",
    "alike",
    "distances",
    "general_similarity",
    "maps_of",
    "merged_back",
    "occupied_share",
    "output_magnitudes",
    "pair_of",
    "pairs_of",
    "prediction_ranks",
    "prequential",
    "repair",
    "restored",
    "save_repaired",
    "search_repair",
    "threshold_of",
    "updated_rows",
    "without_maps",
]
