# SPDX-License-Identifier: BSD-3-Clause
"""A layer's inputs as its quantizer and its stored weight see them: features last, in rows."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.layout import inputs_first, of_convolution, stored_shape
from blockscale.layers.plan import Plan

PIECE = 4096  # rows that are given at once: their float32 sums are added up in float64


def features_last(x: Tensor, layout: str, rank: int) -> Tensor:
    """A layer's input or output [...] as its quantizer sees it: a convolution's channels last.

    layout, rank: of the layer's weight.
    """
    if not of_convolution(layout):
        return x
    return (x[None] if x.ndim < rank else x).movedim(1, -1)


def seen_by(plan: Plan, x: Tensor) -> Tensor:
    """The input or output x [...] of a planned layer, as its quantizer sees it."""
    return features_last(x, plan.layout, plan.parameter.ndim)


def rows_of(
    plan: Plan, x: Tensor, before: nn.Module | None = None, y: Tensor | None = None
) -> Iterator[Tensor]:
    """A layer's input as [rows, k] float32 in pieces, k as in its stored weight [n, k].

    y = rows @ weight.T: the rows of a convolution are what its kernel sees at each place; those of
    a transposed one what reaches each place of its output, zeros where a stride leaves them out.
    before: what the input goes through first.
    y: the layer's output, whose size a call of a transposed convolution may ask for.
    """
    x = x.detach()
    if before is not None:
        x = _through(plan, before, x)
    k = stored_shape(plan.parameter.shape, plan.layout)[-1]
    if of_convolution(plan.layout):
        transposed, size = inputs_first(plan.layout), () if y is None else y.shape
        for one in x if x.ndim == plan.parameter.ndim else x[None]:
            wide, conv = one.to(torch.float32), plan.module
            rows = _reaching_outputs(conv, wide, size) if transposed else _seen(conv, wide)
            yield from rows.split(PIECE)
    else:
        for piece in x.reshape(-1, k).split(PIECE):
            yield piece.to(torch.float32)


def _through(plan: Plan, before: nn.Module, x: Tensor) -> Tensor:
    """x [...] through a Before module, which works along the last dimension."""
    y: Tensor = before(seen_by(plan, x))
    if of_convolution(plan.layout):
        return y.movedim(-1, 1)
    return y


def _seen(conv: Any, x: Tensor) -> Tensor:
    """x [channels, *size] -> what a convolution's kernel sees [places, prod(kernel) * channels]."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    x = F.pad(x[None], list(conv._reversed_padding_repeated_twice), mode)  # PyTorch's own, any mode
    return _windows(x[0], conv.kernel_size, conv.stride, conv.dilation).flatten(1)


def _reaching_outputs(conv: Any, x: Tensor, size: Sequence[int]) -> Tensor:
    """x [channels, *size] -> [places of the output, prod(kernel) * channels], channels fastest.

    A transposed convolution is a plain one, with its kernel the other way round, of x with zeros
    between its values (Dumoulin and Visin 2016, arXiv 1603.07285, section 4).
    size: of its output [..., *size], perhaps with batch and channels; empty for the usual one.
    """
    dims = len(conv.kernel_size)
    spread = [(n - 1) * s + 1 for n, s in zip(x.shape[1:], conv.stride, strict=True)]
    spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    parts = zip(spread, spans, conv.padding, conv.output_padding, strict=True)
    usual = [n + span - 2 * p + more for n, span, p, more in parts]
    apart = x.new_zeros(x.shape[0], *spread)
    apart[(slice(None), *(slice(None, None, s) for s in conv.stride))] = x
    ends = zip(spread, spans, conv.padding, size[-dims:] or usual, strict=True)
    around = [(span - p, wanted - n + p) for n, span, p, wanted in ends]  # below 0: cut off
    padded = F.pad(apart, [edge for pair in reversed(around) for edge in pair])
    rows = _windows(padded, conv.kernel_size, (1,) * dims, conv.dilation)
    return rows.unflatten(1, conv.kernel_size).flip(list(range(1, dims + 1))).flatten(1)


def _windows(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """x [channels, *size], padded -> [places, prod(kernel), channels]."""
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(1 + i, d * (k - 1) + 1, s)[..., ::d]  # [channels, *places, *kernel so far]
    last = x.movedim(0, -1)
    return last.reshape(-1, prod(kernel), x.shape[0])
