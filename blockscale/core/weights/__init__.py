"""Weights: the formats of a layer, and of weights that are more than one matrix."""
