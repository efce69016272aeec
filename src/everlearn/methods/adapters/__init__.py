"""Methods that add adapters or low-rank matrices."""
