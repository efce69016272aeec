"""Looking into what methods did: importance maps, their likeness across domains, and how little they leave free."""

from everlearn.analysis.maps import Maps, Saturation, maps_of, saturation, without_maps
from everlearn.analysis.similarity import Similarity, general_similarity

__all__ = ["Maps", "Saturation", "Similarity", "general_similarity", "maps_of", "saturation", "without_maps"]
