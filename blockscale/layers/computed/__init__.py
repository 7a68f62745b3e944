# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are computed at each call: normalized, pruned, parametrized. They are folded."""

from blockscale.layers.computed.folding import Folding as Folding
from blockscale.layers.computed.folding import folded as folded
from blockscale.layers.computed.folding import folded_for as folded_for
