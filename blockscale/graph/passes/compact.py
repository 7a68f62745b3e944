"""Scales of full rank as targets take them that want one a channel: [K, 1, 1] -> [K].

In our graphs a scale's shape says which elements share it, so it has the tensor's rank. Other
libraries' ops take [K] and an axis, or [K, groups]. Only at this boundary is a scale made compact,
by dropping dimensions of size 1: a reshape to [K, -1] of [K, 1, 1, groups] and one of [K, 1, 1, 1]
would be told apart by luck.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from blockscale.graph.nodes import arguments, aten, call, known, shape


def channel_axis(scale: Sequence[Any]) -> int | None:
    """Which dimension of a scale has more than one: 0 if none has, None if several."""
    more = [dim for dim, n in enumerate(scale) if not known(n == 1)]
    return (more or [0])[0] if len(more) < 2 else None


def compact(scale: Tensor, groups: bool = False) -> Tensor:
    """A scale of full rank [1, K, 1] -> [K]; with `groups`, [K, 1, groups] -> [K, groups].

    Raises ValueError for a scale that is not one a channel or, with groups, of two dimensions.
    """
    sizes = _compact_sizes(scale.shape, groups)
    return scale.reshape([scale.shape[dim] for dim in sizes])


def _compact_sizes(scale: Sequence[Any], groups: bool) -> list[int]:
    """The dimensions that stay."""
    axis = channel_axis(scale)
    if not groups and axis is None:
        raise ValueError(
            f"a scale of shape {tuple(scale)} is not one a channel: expected one dimension of more "
            f"than 1; quantize with a block of 'tensor' or 'channelA', or lower to a target that "
            f"takes groups"
        )
    more = [dim for dim, n in enumerate(scale) if not known(n == 1)]
    if not groups:
        return [axis or 0] if scale else []
    if len(more) > 2:
        raise ValueError(
            f"a scale of shape {tuple(scale)} has more than channels and groups: expected at most "
            f"two dimensions of more than 1"
        )
    rest = [dim for dim in range(len(scale)) if dim not in more]
    return sorted([*more, *rest[: max(0, 2 - len(more))]])


def run(graph: fx.GraphModule) -> int:
    """Make compact the scales and zero points of ops that take [K] and an axis
    (`quantized_decomposed.*_per_channel`). Equal to the bit.

    Raises ValueError for a scale that is not one a channel, or along another axis.
    """
    count = 0
    for node in list(graph.graph.nodes):
        name = str(getattr(getattr(node.target, "_schema", None), "name", ""))
        if node.op != "call_function" or not name.startswith("quantized_decomposed::"):
            continue
        if name.endswith("_per_channel"):
            count += _compacted(graph, node, name)
    return count


def _compacted(graph: fx.GraphModule, node: fx.Node, name: str) -> int:
    given, count = arguments(node), 0
    for i, part in enumerate(given):
        sizes = shape(given[part]) if part in ("scales", "zero_points") else None
        if sizes is None or len(sizes) < 2:
            continue
        axis = channel_axis(sizes)
        if axis != given["axis"]:
            raise ValueError(
                f"{name}: {part} of shape {sizes} go along dimension {axis}, expected axis "
                f"{given['axis']}: give the scale of that axis"
            )
        others = [dim for dim in range(len(sizes)) if dim != axis]
        made = call(graph, aten.squeeze.dims, (given[part], others), like=node)
        node.update_arg(i, made)
        count += 1
    return count
