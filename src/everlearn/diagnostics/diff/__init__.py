"""Compare two checkpoints of any origin on the same texts and tasks, in pairs: what was forgotten and learnt."""
