"""Experts: parameters that are stacks of matrices, one for each expert of a layer."""
