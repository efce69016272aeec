"""A run at work: the stage's trainer, its folder, its scores, its progress."""
