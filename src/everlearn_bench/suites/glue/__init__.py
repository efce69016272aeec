"""GLUE-type tasks, each learnt from the base model: the cost of a remedy, and how much of pre-training it preserves."""
