# SPDX-License-Identifier: BSD-3-Clause
"""Weights: the formats of a layer, and of weights that are more than one matrix."""
