"""Normalizing: what a row or a channel is divided by depends on all of it."""
