"""Methods that grow the model."""
