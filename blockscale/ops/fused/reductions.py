# SPDX-License-Identifier: BSD-3-Clause
"""Fewer elements than before: sums, extremes, pools."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(ulps=64, aten=("adaptive_avg_pool1d.default",))
def adaptive_avg_pool1d(x: Tensor, *, output_size: list[int]) -> Tensor:
    """The means of so many windows over 1 dimension.

    x [batch, n, length] -> the last 1 of `output_size`.
    """
    return F.adaptive_avg_pool1d(x, output_size)


@fused(ulps=64, aten=("adaptive_avg_pool2d.default",))
def adaptive_avg_pool2d(x: Tensor, *, output_size: list[int]) -> Tensor:
    """The means of so many windows over 2 dimensions.

    x [batch, n, h, w] -> the last 2 of `output_size`.
    """
    return F.adaptive_avg_pool2d(x, output_size)  # type: ignore[arg-type]


@fused(aten=("amax.default", "max.default x"))
def amax(x: Tensor, *, dim: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    """The largest element along dimensions.

    x [...] -> without the dimensions, or with size 1 there; without any, all of them.
    """
    return torch.amax(x, dim, keepdim)


@fused(aten=("amin.default", "min.default x"))
def amin(x: Tensor, *, dim: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    """The smallest element along dimensions.

    x [...] -> without the dimensions, or with size 1 there; without any, all of them.
    """
    return torch.amin(x, dim, keepdim)


@fused(aten=("argmax.default",), indices=True)
def argmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the largest element is.

    x [...] -> int64 indices, of all elements or along `dim`; the first of equal ones.
    """
    return torch.argmax(x, dim, keepdim)


@fused(ulps=64, aten=("avg_pool1d.default",))
def avg_pool1d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over 1 dimension.

    x [batch, n, length] -> fewer along the last 1; no stride is that of the kernel.
    """
    return F.avg_pool1d(x, kernel_size, stride, padding, ceil_mode, count_include_pad)


@fused(ulps=64, aten=("avg_pool2d.default",))
def avg_pool2d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over 2 dimensions.

    x [batch, n, h, w] -> fewer along the last 2; no stride is that of the kernel.
    """
    return F.avg_pool2d(
        x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@fused(ulps=64, aten=("avg_pool3d.default",))
def avg_pool3d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over 3 dimensions.

    x [batch, n, d, h, w] -> fewer along the last 3; no stride is that of the kernel.
    """
    return F.avg_pool3d(
        x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@fused(aten=("max_pool1d.default",))
def max_pool1d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window over 1 dimension.

    x [batch, n, length] -> fewer along the last 1; no stride is that of the kernel.
    """
    return torch.max_pool1d(x, kernel_size, stride, padding, dilation, ceil_mode)


@fused(
    aten=(
        "max_pool2d.default",
        "max_pool2d_with_indices.default[0] x kernel_size stride padding dilation ceil_mode",
    )
)
def max_pool2d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window over 2 dimensions.

    x [batch, n, h, w] -> fewer along the last 2; no stride is that of the kernel.
    """
    return torch.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)


@fused(
    aten=(
        "max_pool3d.default",
        "max_pool3d_with_indices.default[0] x kernel_size stride padding dilation ceil_mode",
    )
)
def max_pool3d(
    x: Tensor,
    *,
    kernel_size: list[int],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window over 3 dimensions.

    x [batch, n, d, h, w] -> fewer along the last 3; no stride is that of the kernel.
    """
    return torch.max_pool3d(x, kernel_size, stride, padding, dilation, ceil_mode)


@fused(ulps=64, aten=("mean.default x @", "mean.dim x dim keepdim @"))
def mean(x: Tensor, *, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    """The mean along dimensions.

    x [...] -> without the dimensions, or with size 1 there; None and [] are all of them.
    """
    return torch.mean(x, dim, keepdim)


@fused(ulps=64, aten=("sum.default x @", "sum.dim_IntList x dim keepdim @"))
def sum(x: Tensor, *, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:  # noqa: A001  (torch's name)
    """The sum along dimensions.

    x [...] -> without the dimensions, or with size 1 there; None and [] are all of them.
    """
    return torch.sum(x, dim, keepdim)
