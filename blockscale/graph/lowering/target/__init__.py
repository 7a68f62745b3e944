# SPDX-License-Identifier: BSD-3-Clause
"""What graphs are lowered to: one target a file, found by its name.

A file has `unavailable()`: the reason why the target does not run here, or None; `supports(node)`:
the reason why it cannot run a node, or None; and `run(graph)`, which changes the graph and returns
how each op of ours runs.
"""
