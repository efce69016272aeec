"""What is known about models: their anatomy, objectives, gates, loading, and gathering after sharding."""
