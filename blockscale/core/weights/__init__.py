"""What a recipe means for the weights of a model: formats of stacks of matrices."""
