# SPDX-License-Identifier: BSD-3-Clause
"""Rotations of a decoder's residual stream, folded into its weights (docs/transforms.md)."""
