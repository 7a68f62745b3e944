# SPDX-License-Identifier: BSD-3-Clause
"""What a quantizing node of another library says, in one form whatever its library is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE, read_block
from blockscale.graph import constants
from blockscale.graph.nodes import known, shape

Part = fx.Node | float | int | None


class NoFormatError(ValueError):
    """No format has the bits of a node; the message says of what."""


@dataclass(frozen=True)
class Call:
    """A node that quantizes, dequantizes or chooses.

    kind:   "quantize", "dequantize" or "choose"
    x:      floats, or codes for "dequantize"
    sizes:  of a block along each dimension, WHOLE for all of one
    scale, zero_point: nodes or numbers; zero_point None for none
    low, high: the smallest and largest code; dtype: of codes
    inside: whether the zero point is added before rounding
    out:    the dtype of values, for "dequantize"
    mapping: how "choose" chooses: "asym", "half", "full" or "" (see blockscale.core.format)
    """

    kind: str
    x: fx.Node
    sizes: tuple[int, ...]
    scale: Part
    zero_point: Part
    low: int
    high: int
    dtype: torch.dtype
    inside: bool = False
    out: torch.dtype = torch.float32
    mapping: str = ""


def rank_of(x: fx.Node) -> int:
    """How many dimensions the node's tensor has. Raises NoFormatError if that is not known."""
    found = shape(x)
    if found is None:
        raise NoFormatError(f"the shape of {x.name} is not known")
    return len(found)


def block_name(sizes: Sequence[int]) -> str:
    """The spelling of the block with these sizes (WHOLE: all of a dimension)."""
    cut = [dim for dim, size in enumerate(sizes) if size != WHOLE]
    if not cut:
        return "tensor"
    if len(cut) == 1 and sizes[cut[0]] == 1:
        return f"channel{cut[0]}"
    named = "x".join("*" if size == WHOLE else str(size) for size in sizes)
    return str(read_block(f"block{named}"))


def in_whole(sizes: Sequence[Any], of: Sequence[Any]) -> tuple[int, ...]:
    """Block sizes as numbers, WHOLE where they are the tensor's own size.

    Raises NoFormatError for a size that is neither.
    """
    found = []
    for size, n in zip(sizes, of, strict=True):
        if isinstance(size, fx.Node):
            size = size.meta.get("val", size)  # noqa: PLW2901 - a symbolic size
        if isinstance(size, int) and size == 1 and not known(n == 1):
            found.append(1)
        elif not isinstance(size, fx.Node) and (known(size == n) or size == -1):
            found.append(WHOLE)
        elif isinstance(size, int):
            found.append(size)
        else:
            raise NoFormatError(f"a block has {size} elements along a dimension of {n}")
    return tuple(found)


def element(low: int, high: int, zero: bool) -> tuple[str, list[str]]:
    """The element and options whose codes are low … high; raises NoFormatError.

    zero: whether there is a zero point
    """
    bits = int(high + 1).bit_length() - 1
    if high != 2**bits - 1 or not 1 <= bits <= 16:
        raise NoFormatError(f"codes {low} … {high} are not integers of 1 to 16 bits")
    if low == 0:
        return f"uint{bits}", ["asym"] if zero else []
    if low == -high - 1 and bits < 16:
        return f"int{bits + 1}", ["asym" if zero else "full"]
    if low == -high and not zero and bits < 16:
        return f"int{bits + 1}", []
    told = " with a zero point" if zero else ""
    raise NoFormatError(f"no element here has the codes {low} … {high}{told}")


def constant(graph: fx.GraphModule, part: Part) -> Tensor | None:
    """The tensor of a part that is a number or that the graph holds; None for others."""
    if isinstance(part, fx.Node):
        return constants.get(graph, part).detach() if constants.is_constant(part) else None
    return None if part is None else torch.tensor(part)
