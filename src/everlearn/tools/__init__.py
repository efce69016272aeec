"""What looks at a recipe, a model or a method without training."""
