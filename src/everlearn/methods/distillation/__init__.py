"""Methods that stay near an earlier model's outputs."""
