"""What a user writes: the recipe and the training arguments."""
