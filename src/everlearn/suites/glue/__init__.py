"""GLUE-type tasks, each learnt from the base model: what a remedy costs, and what it keeps of pre-training."""
