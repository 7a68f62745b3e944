"""Checkpoints as other producers write them, and ours: a file of producers/ for each."""
