"""Diagnose a run: importance maps, their similarity and what they leave free; where and why checkpoints forget."""
