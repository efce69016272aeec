"""Models: anatomy, objectives, gates, loading, and gathering after sharding."""
