"""Weights that are more than one matrix: the formats of stacks."""
