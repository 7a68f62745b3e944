# SPDX-License-Identifier: BSD-3-Clause
"""Lowering: from a graph of our ops to what one machine runs (docs/graph.md)."""

from blockscale.graph.lowering import kernels as kernels  # likewise
from blockscale.graph.lowering import onednn as onednn  # makes ops, which saved programs may call
from blockscale.graph.lowering.lowering import lower as lower
from blockscale.graph.lowering.lowering import targets as targets
from blockscale.graph.lowering.onednn import compiled as compiled
from blockscale.graph.lowering.onednn import package as package
from blockscale.graph.lowering.way import Way as Way
from blockscale.graph.lowering.way import ways as ways
