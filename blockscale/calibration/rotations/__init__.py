"""Rotations of a decoder's residual stream, folded into its weights (docs/transforms.md)."""
