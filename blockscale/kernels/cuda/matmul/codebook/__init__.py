"""Weights whose values are no bfloat16, of tables above all: as sums of several that are."""
