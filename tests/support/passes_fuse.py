# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/graph/passes/test_fuse.py: `fused`."""

from blockscale.graph.passes.fused import read


def fused(graph) -> list:
    """The calls of fused ops in a graph."""
    return [found for node in graph.graph.nodes if (found := read(node)) is not None]
