# SPDX-License-Identifier: BSD-3-Clause
"""Nodes one at a time, on the inputs that the reference gives them."""

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

import blockscale as bs
from blockscale.graph.lowering.way import by_overload

FAR = 64  # ulps of a float sum, times 2 for a fused op: docs/numerics.md, section 7


class Beside(fx.Interpreter):
    """Runs a graph on the reference; each op of ours also as `run(node, target, args)` says.

    compared: [(node, what the reference gives, what the other way gives)]
    """

    def __init__(self, graph, run):
        super().__init__(graph)
        self.compared, self._run = [], run

    def run_node(self, n):
        with bs.use("reference"):
            expected = super().run_node(n)
        if n.op == "call_function" and n.target in by_overload():
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.compared.append((n, expected, self._run(n, args, kwargs)))
        return expected


def close(expected, found, step=None):
    """Whether two results are equal, floats up to the rounding of sums of numbers about 1 to 100.

    step: how many codes of integers may lie between
    """
    same = True
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        if not isinstance(a, Tensor):
            continue
        if a.dtype.is_floating_point:
            size = a.abs().amax().clamp(min=1.0)
            same &= bool(((a - b).abs() <= 2 * FAR * 2.0**-24 * size).all())
        elif step:
            same &= bool(((a.to(torch.int32) - b.to(torch.int32)).abs() <= step).all())
        else:
            same &= torch.equal(a, b)
    return same
