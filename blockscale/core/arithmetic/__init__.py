"""Exact arithmetic under the contract: the bits of floats, sums of integers, random numbers."""
