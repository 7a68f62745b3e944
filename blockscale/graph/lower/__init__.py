"""Lowering: from a graph of our ops to what one machine runs (docs/graph.md)."""

from blockscale.graph.lower import onednn as onednn  # makes ops, which saved programs may call
from blockscale.graph.lower import pinned as pinned  # likewise
from blockscale.graph.lower.inductor import compiled as compiled
from blockscale.graph.lower.inductor import package as package
from blockscale.graph.lower.lowering import lower as lower
from blockscale.graph.lower.lowering import targets as targets
from blockscale.graph.lower.way import Way as Way
from blockscale.graph.lower.way import ways as ways
