"""Looking into what methods did: importance maps, their likeness across domains, and how little they leave free."""

from everlearn.analysis.maps import Saturation, maps_of, saturation, settings_of
from everlearn.analysis.similarity import Similarity, general_similarity

__all__ = ["Saturation", "Similarity", "general_similarity", "maps_of", "saturation", "settings_of"]
