# SPDX-License-Identifier: BSD-3-Clause
"""Rows whose results do not depend on their batch: `bs.use(batch_invariant=True)`.

Two things make a row's result depend on what else is in the batch: a scale that is chosen for
several rows, and float sums in an order that a library, or a kernel, chooses by the number of rows.
Here the former is refused, and the latter kept from the reference and from convolutions; what
kernels of `linear` do is in each of them (docs/numerics.md, 7.2).
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.block import Block, read_block
from blockscale.core.format import Format
from blockscale.core.parse import display_name
from blockscale.core.scales import TwoLevel

_TOKEN = read_block("token")


def shared_scale(fmt: Format, rank: int, rows: int, *, outer: bool = True) -> str:
    """Which scale of a tensor of `rank` dimensions several rows share, or "" if none.

    rows: how many of the dimensions, from the first on, say which row it is
    outer: whether an outer scale is chosen from the tensor, too
    """
    if _spans(fmt.block, rank, rows):
        return "scale"
    if outer and isinstance(fmt.scale, TwoLevel) and _spans(fmt.scale.inner.block, rank, rows):
        return "outer scale"
    levels = None if fmt.offset is None else fmt.offset.inner
    return "offset's scale" if levels is not None and _spans(levels.block, rank, rows) else ""


def _spans(block: Block, rank: int, rows: int) -> bool:
    return bool(block.flat) or any(size != 1 for size in block.sizes_for(rank)[:rows])


def per_row(fmt: Format) -> Format:
    """The same with scales of one row: what takes the place of a format that is refused."""
    scale = fmt.scale
    if isinstance(scale, TwoLevel):
        inner = replace(scale.inner, block=_TOKEN)
        fmt = replace(fmt, scale=replace(scale, inner=inner, given=False))
    if fmt.block.flat or any(size != 1 for size in fmt.block.sizes_for(4)[:-1]):
        fmt = replace(fmt, block=_TOKEN)
    return fmt


def check_rows(what: str, fmt: Format, rank: int, rows: int, *, outer: bool = True) -> None:
    """Raise RuntimeError if a row's codes depend on the others: tensors of `rank` dimensions whose
    scales are chosen when they come.

    what: whose format it is, for the error; rows, outer: as `shared_scale` takes them
    """
    if fmt.rounding == "stochastic":
        raise RuntimeError(
            f"use(batch_invariant=True): {what} is quantized by {display_name(fmt)}, whose "
            "rounding draws a number for each place in the batch: leave 'stochastic' out"
        )
    if shared := shared_scale(fmt, rank, rows, outer=outer):
        raise RuntimeError(
            f"use(batch_invariant=True): {what} is quantized by {display_name(fmt)}, whose "
            f"{shared} is chosen from all rows of a batch together: quantize the model with "
            f"{display_name(per_row(fmt))} in its place, or calibrate it to have a static scale"
        )


def rows_in_order(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear(x, weight, bias) of float32, x [..., k], a row at a time.

    Libraries sum in an order that they choose by the number of rows and by where memory begins, so
    each row is multiplied alone and from memory of its own.
    """
    rows = x.reshape(-1, x.shape[-1])
    if not rows.shape[0]:
        return F.linear(x, weight, bias)
    each = [F.linear(row[None].clone(), weight, bias) for row in rows.unbind()]
    return torch.cat(each).reshape(*x.shape[:-1], weight.shape[0])
