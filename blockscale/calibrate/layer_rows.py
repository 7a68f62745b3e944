"""A layer's inputs as its quantizer and its stored weight see them: features last, in rows."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.core.layout import stored_shape
from blockscale.layers.plan import Plan

PIECE = 4096  # rows that are given at once: their float32 sums are added up in float64


def features_last(x: Tensor, layout: str, rank: int) -> Tensor:
    """A layer's input or output [...] as its quantizer sees it: a convolution's channels last.

    layout, rank: of the layer's weight.
    """
    if layout != "channels_last":
        return x
    return (x[None] if x.ndim < rank else x).movedim(1, -1)


def seen_by(plan: Plan, x: Tensor) -> Tensor:
    """The input or output x [...] of a planned layer, as its quantizer sees it."""
    return features_last(x, plan.kind.layout, plan.parameter.ndim)


def rows_of(plan: Plan, x: Tensor, before: nn.Module | None = None) -> Iterator[Tensor]:
    """A layer's input as [rows, k] float32 in pieces, k as in its stored weight [n, k].

    y = rows @ weight.T: the rows of a convolution are what its kernel sees at each place.
    before: what the input goes through first.
    """
    x = x.detach()
    if before is not None:
        x = _through(plan, before, x)
    k = stored_shape(plan.parameter.shape, plan.kind.layout)[-1]
    if plan.kind.layout == "channels_last":
        for one in x if x.ndim == plan.parameter.ndim else x[None]:
            yield from _seen_by_kernel(plan.module, one.to(torch.float32)).split(PIECE)
    else:
        for piece in x.reshape(-1, k).split(PIECE):
            yield piece.to(torch.float32)


def _through(plan: Plan, before: nn.Module, x: Tensor) -> Tensor:
    """x [...] through a Before module, which works along the last dimension."""
    y: Tensor = before(seen_by(plan, x))
    if plan.kind.layout == "channels_last":
        return y.movedim(-1, 1)
    return y


def _seen_by_kernel(conv: Any, x: Tensor) -> Tensor:
    """x [channels, *size] -> [places, prod(kernel) * channels], channels fastest."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    x = F.pad(x[None], list(conv._reversed_padding_repeated_twice), mode)  # PyTorch's own, any mode
    kernel, dilation, stride = conv.kernel_size, conv.dilation, conv.stride
    if x.ndim == 3:  # a Conv1d is a Conv2d of height 1
        x, kernel = x[:, :, None], (1, *kernel)
        dilation, stride = (1, *dilation), (1, *stride)
    seen = F.unfold(x, kernel, dilation, 0, stride)  # [1, channels * places in the kernel, places]
    return seen.reshape(x.shape[1], -1, seen.shape[-1]).permute(2, 1, 0).flatten(1)
