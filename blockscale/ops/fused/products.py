# SPDX-License-Identifier: BSD-3-Clause
"""Sums of products, in float32: matrices, convolutions, attention, rows of tables."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Value
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.ops.embedding import embedding as rows_of
from blockscale.ops.fused.define import fused
from blockscale.ops.fused.values import widened


@fused(ulps=64, aten=("addmm.default",), wide=True)
def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """beta * c + alpha * (a @ b): c that broadcasts with [m, n], a [m, k], b [k, n] -> [m, n]."""
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


@fused(ulps=64, aten=("baddbmm.default",), wide=True)
def baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """beta * c + alpha * (a @ b), of batches.

    c that broadcasts with [batch, m, n], a [batch, m, k], b [batch, k, n] -> [batch, m, n].
    """
    return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)


@fused(ulps=64, aten=("bmm.default",), wide=True)
def bmm(a: Tensor, b: Tensor) -> Tensor:
    """A batch of products of matrices: a [batch, m, k], b [batch, k, n] -> [batch, m, n]."""
    return torch.bmm(a, b)


_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _channels_first(y: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
    """The activation of y [batch, *size, n], in memory as a convolution of images leaves it."""
    return activate(y.movedim(-1, 1).contiguous()).movedim(1, -1)


@fused(ulps=64, wide=True, activation=_channels_first)
def conv(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int = 1,
    transposed: bool = False,
    output_padding: tuple[int, ...] = (),
) -> Tensor:
    """Convolutions over one, two or three dimensions, plain and transposed, with channels last.

    Channels come last because blocks run along the last dimension: x is quantized that way, and
    weights are stored that way (blockscale.core.pack). A graph has permutes around its
    convolution for it, so no overload of aten is this op.

    x [batch, *size, c], a weight as stored [n, k], floats bias [n] -> [batch, *size, n].

    shape: the float weight's, [n, c / groups, *kernel], if transposed [c, n / groups, *kernel]
    output_padding: of transposed ones; () is none
    """
    offset = None if bias is None else bias.to(torch.float32)
    channels_first, count = x.movedim(-1, 1), len(shape) - 2
    if transposed:
        dense = from_stored(weight, grouped_layout(groups), shape)
        more = [*output_padding] or [0] * count
        run = _TRANSPOSED[count]
        y = run(channels_first, dense, offset, stride, padding, more, groups, dilation)
    else:
        dense = from_stored(weight, "channels_last", shape)
        y = _CONV[count](channels_first, dense, offset, stride, padding, dilation, groups)
    return y.movedim(1, -1)


def _embedding_floats(weight: Value, *, dtype: torch.dtype, indices: Tensor) -> Tensor:
    """Only the rows that are asked for are dequantized."""
    if not weight.fmt:
        return F.embedding(indices, weight.data)
    rows: Tensor = rows_of.run(weight.operand, indices, dtype)
    return rows


def _embedding_shape(weight: Tensor, *, indices: Tensor) -> tuple[Any, ...]:
    return (*indices.shape, weight.shape[1])


@fused(
    aten=("embedding.default weight indices * * *",),
    shape=_embedding_shape,
    floats=_embedding_floats,
)
def embedding(weight: Tensor, *, indices: Tensor) -> Tensor:
    """Rows of a table: weight [rows, n], indices [...] -> [..., n]."""
    return F.embedding(indices, weight)


_BAG_WORDS = "weight indices offsets * mode * per_sample_weights include_last_offset"


def _bag_shape(
    weight: Tensor, *, offsets: Tensor, include_last_offset: bool, **_: object
) -> tuple[Any, ...]:
    return (offsets.shape[0] - int(include_last_offset), weight.shape[1])


@fused(
    ulps=64,
    aten=(
        f"embedding_bag.default[0] {_BAG_WORDS}",
        f"embedding_bag.padding_idx[0] {_BAG_WORDS} padding_idx",
    ),
    wide=True,
    shape=_bag_shape,
)
def embedding_bag(
    weight: Tensor,
    *,
    indices: Tensor,
    offsets: Tensor,
    mode: int = 0,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of rows of a table.

    weight [rows, n], indices [count], where each bag starts [bags] -> [bags, n].

    mode: 0 sum, 1 mean, 2 maximum
    """
    weights = per_sample_weights
    weights = None if weights is None else widened(weights, torch.float32)
    last = include_last_offset, padding_idx
    bags: Tensor = torch.embedding_bag(
        weight, indices, offsets, False, mode, False, weights, *last
    )[0]
    return bags


@fused(ulps=64, aten=("linear.default x weight bias",), wide=True, activation=True)
def linear(x: Tensor, weight: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, and an activation.

    x [..., k], a weight [n, k], floats bias [n] -> [..., n].
    """
    return F.linear(x, weight, None if bias is None else bias.to(torch.float32))


@fused(ulps=64, aten=("matmul.default", "mm.default"), wide=True)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b: a [..., m, k], b [..., k, n] whose first dimensions broadcast -> [..., m, n]."""
    return torch.matmul(a, b)


_SDPA = "scaled_dot_product_attention.default query key value mask ! causal scale enable_gqa"


@fused(ulps=64, aten=(_SDPA,), wide=True)
def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot product attention.

    query [..., m, k], key [..., n, k], value [..., n, v] -> [..., m, v].

    mask: bool, what is seen, or floats that are added, that broadcasts with [..., m, n]
    causal: position i sees positions up to i
    scale: of the products; None is 1 / sqrt(k)
    enable_gqa: several heads of the query share one of key and value
    """
    bias = None if mask is None else widened(mask, torch.float32)
    return F.scaled_dot_product_attention(
        query, key, value, bias, 0.0, causal, scale=scale, enable_gqa=enable_gqa
    )
