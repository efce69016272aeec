"""The recipe and the training arguments."""
