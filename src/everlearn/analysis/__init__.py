"""Looking into what methods did: importance maps, their likeness, how little they leave free; where a run forgets."""

from everlearn.analysis.distance import Distance, Pair, distances, pair_of, pairs_of
from everlearn.analysis.going_back import GoingBack, merged_back, restored
from everlearn.analysis.magnitude import Alike, Magnitudes, alike, output_magnitudes, threshold_of, updated_rows
from everlearn.analysis.maps import Maps, Saturation, maps_of, saturation, without_maps
from everlearn.analysis.prequential import Prequential, prequential
from everlearn.analysis.ranks import Ranks, prediction_ranks
from everlearn.analysis.repairing import Repair, repair, save_repaired, search_repair
from everlearn.analysis.similarity import Similarity, general_similarity

__all__ = [
    "Alike",
    "Distance",
    "GoingBack",
    "Magnitudes",
    "Maps",
    "Pair",
    "Prequential",
    "Ranks",
    "Repair",
    "Saturation",
    "Similarity",
    "alike",
    "distances",
    "general_similarity",
    "maps_of",
    "merged_back",
    "output_magnitudes",
    "pair_of",
    "pairs_of",
    "prediction_ranks",
    "prequential",
    "repair",
    "restored",
    "saturation",
    "save_repaired",
    "search_repair",
    "threshold_of",
    "updated_rows",
    "without_maps",
]
