# SPDX-License-Identifier: BSD-3-Clause
"""One spelling for ops that have several: `x.mT`, `x.swapaxes(1, 2)` and `x.movedim(1, 2)` become
`aten.permute`, `x.view_as(y)` and `x.ravel()` `aten.reshape`, `x.narrow` `aten.slice`.

The passes and lowerings after this one know an op that moves elements by one name.
"""

from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.nodes import arguments, aten, calls, each_call, shape, value

_PERMUTES = (
    *(aten.mT, aten.mH, aten.adjoint, aten.numpy_T, aten.swapaxes, aten.swapdims),
    *(aten.moveaxis, aten.movedim),
)
_RESHAPES = (aten.view_as, aten.reshape_as, aten.ravel)


def run(graph: fx.GraphModule) -> int:
    """Respell in place; nodes keep their names, values and where they were written."""
    count = sum(_permute(node) for node in each_call(graph, *_PERMUTES))
    count += sum(_reshape(node) for node in each_call(graph, *_RESHAPES))
    return count + sum(_slice(node) for node in each_call(graph, aten.narrow))


def _permute(node: fx.Node) -> bool:
    x: Any = node.args[0]
    before = value(x)
    if not isinstance(before, Tensor) or before.is_complex():  # mH and adjoint conjugate
        return False
    probe = torch.empty(tuple(range(before.dim())), device="meta")  # a size tells its dimension
    meta: Any = node.target(probe, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return _write(node, aten.permute.default, (x, list(meta.shape)))


def _reshape(node: fx.Node) -> bool:
    """Where the sizes are numbers: a symbol would need nodes that compute it."""
    sizes = (-1,) if calls(node, aten.ravel) else shape(node)
    if sizes is None or not all(isinstance(n, int) for n in sizes):
        return False
    return _write(node, aten.reshape.default, (node.args[0], list(sizes)))


def _slice(node: fx.Node) -> bool:
    own = arguments(node)
    start, length = own["start"], own["length"]
    if not (isinstance(start, int) and isinstance(length, int) and start >= 0):
        return False
    return _write(node, aten.slice.Tensor, (own["self"], own["dim"], start, start + length))


def _write(node: fx.Node, target: Any, args: tuple[Any, ...]) -> bool:
    node.target, node.args, node.kwargs = target, args, {}
    return True
