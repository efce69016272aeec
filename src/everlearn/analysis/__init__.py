"""Looking into what methods did: importance maps, their likeness across domains, and how little they leave free."""

from everlearn.analysis.magnitude import Alike, Magnitudes, alike, output_magnitudes, threshold_of, updated_rows
from everlearn.analysis.maps import Maps, Saturation, maps_of, saturation, without_maps
from everlearn.analysis.similarity import Similarity, general_similarity

__all__ = [
    "Alike",
    "Magnitudes",
    "Maps",
    "Saturation",
    "Similarity",
    "alike",
    "general_similarity",
    "maps_of",
    "output_magnitudes",
    "saturation",
    "threshold_of",
    "updated_rows",
    "without_maps",
]
