"""Passes: what changes a graph into one that computes the same, one a file."""
