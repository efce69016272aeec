"""What a model forgot: two checkpoints of any origin on the same texts and tasks, compared in pairs."""
