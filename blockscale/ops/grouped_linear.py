# SPDX-License-Identifier: BSD-3-Clause
"""Rows that are sorted by matrix, each times its own matrix of a quantized stack: the experts of a
mixture in one product.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.stacks import check_ends, groups, matrix, parts, parts_of, quantizer_of
from blockscale.kernels.registry import find
from blockscale.ops.gradient import differentiable
from blockscale.ops.linear import linear
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize, straight_through


def product(
    x: Tensor, one: Operand, bias: Tensor | None = None, by: Quantizer = UNQUANTIZED
) -> Tensor:
    """x [..., k] times a matrix [n, k] -> [..., n], by `linear` of its parts."""
    of = parts(one)
    if len(of) == 1:
        y: Tensor = linear(x, of[0], bias, by)
        return y
    rows = of[0].codes.shape[0]
    biases = [None] * len(of) if bias is None else list(torch.split(bias, rows))
    each = [linear(x, part, own, by) for part, own in zip(of, biases, strict=True)]
    return torch.cat(each, -1)


def _shape(x: Tensor, weight: Operand, *_: object) -> Tensor:
    return x.new_empty((x.shape[0], weight.codes.shape[1]))


@op(ulps=64, shape=_shape, size_of=lambda x: x.shape[-1], composed=True, rows="ordered")
def grouped_linear(
    x: Tensor,
    weight: Operand,
    ends: Tensor,
    bias: Tensor | None = None,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """x [rows, k], a stack [E, n, k] -> [rows, n] in x's dtype.

    ends: int32 or int64 [E], on x's device; the rows of matrix e end before row ends[e], those of
        matrix 0 begin at row 0. Rows after the last end belong to no matrix and give 0
    bias: [E, n], of each matrix its own
    input: with a format in it, the rows of each matrix are quantized by themselves, as `linear`
        quantizes its x; a given scale has one more dimension in front, of the matrices, or is one
        for all

    Of a matrix without rows no code is read. A row with a NaN gives NaN in that row alone, as far
    as rows do not share the scale of an input format. On a GPU nothing waits for `ends`: what they
    say beyond the rows there are is cut off.

    Raises ValueError for sizes that do not fit, for ends on the CPU that do not rise or lie outside
    of x, and for a format whose numbers belong to several matrices, but not to all.
    """
    check_ends(x, weight, ends)
    y = x.new_zeros(x.shape[0], weight.shape[-2])
    for index, start, end in groups(ends):
        one = whole_matrix(weight, index)
        offset = None if bias is None else bias[index]
        y[start:end] = product(x[start:end], one, offset, quantizer_of(input, index))
    return y


def waits(x: Tensor, weight: Operand, by: Quantizer = UNQUANTIZED) -> bool:
    """Whether the product of these looks at `ends` before it starts: what a CUDA graph cannot."""
    arguments = (x, weight, None, None, by)
    kernel = find("grouped_linear", (weight.fmt,), x.device.type, arguments, composite=True)
    return kernel is None or not x.is_cuda


def whole_matrix(weight: Operand, index: int) -> Operand:
    """Matrix `index` of a stack. Raises ValueError where it has no numbers of its own."""
    one = matrix(weight, index)
    if one is None:
        raise ValueError(
            f"grouped_linear: {weight.format} has numbers that several matrices of a stack share: "
            "quantize the stack in blocks that end with its matrices"
        )
    return one


def _backward(
    gradient: Tensor,
    needs: set[str],
    x: Tensor,
    weight: Operand,
    ends: Tensor,
    bias: Tensor | None,
    input: Quantizer,
) -> dict[str, Tensor | None]:
    to_x, to_bias = torch.zeros_like(x), None
    if bias is not None and "bias" in needs:
        to_bias = torch.zeros_like(bias)
    for index, start, end in groups(ends):
        dense = dequantize(whole_matrix(weight, index), torch.float32)
        own = gradient[start:end].to(torch.float32)
        with float32_inside(x):
            back = (own @ dense).to(x.dtype)
        by = quantizer_of(input, index)
        to_x[start:end] = straight_through(back, x[start:end], by) if by.fmt else back
        if to_bias is not None:
            to_bias[index] = own.sum(0).to(to_bias.dtype)
    return {"x": to_x, "bias": to_bias}


def _forward(
    tangents: dict[str, Tensor], x: Tensor, weight: Operand, ends: Tensor, *rest: Any
) -> Tensor:
    to_x, to_bias = tangents.get("x", torch.zeros_like(x)), tangents.get("bias")
    by: Quantizer = rest[-1]
    if by.fmt:
        to_x = to_x.clone()
        for index, start, end in groups(ends):
            rows = slice(start, end)
            to_x[rows] = straight_through(to_x[rows], x[rows], quantizer_of(by, index))
    tangent: Tensor = grouped_linear(to_x, weight, ends, to_bias)
    return tangent


differentiable(grouped_linear, _backward, _forward)


# What code that reads a stack asks of it (layers.reading), by the matrices that it chose.


def grouped(
    x: Tensor, whole: Operand, ends: Tensor | Sequence[int], by: Quantizer = UNQUANTIZED
) -> Tensor | None:
    """`grouped_linear` of x [rows, k] and a stack [E, n, k] -> [rows, n]. None as `matrix`."""
    if parts_of(whole) is None:
        return None
    if not isinstance(ends, Tensor):
        ends = torch.tensor(list(ends), dtype=torch.int64, device=x.device)
    y: Tensor = grouped_linear(x, whole, ends, None, by)
    return y


def each(
    x: Tensor,
    whole: Operand,
    tensor: Tensor,
    multiply: Callable[[Tensor, Operand, Tensor], Tensor | None] = grouped,
) -> Tensor | None:
    """x [S, rows, k], chosen [S] -> [S, rows, n]: x[i] times matrix chosen[i]. None as `matrix`.

    multiply: rows that are sorted by matrix, as `grouped` does
    """
    if parts_of(whole) is None:
        return None
    (count, rows, k), n = x.shape, whole.shape[-2]
    if not count * rows:
        return x.new_zeros(count, rows, n)
    order = tensor.argsort(stable=True)
    matrices = torch.arange(whole.shape[0], device=x.device)
    ends = torch.searchsorted(tensor[order].contiguous(), matrices, right=True) * rows
    y = multiply(x[order].reshape(-1, k), whole, ends)
    return None if y is None else y.reshape(count, rows, n)[order.argsort()]


def values(whole: Operand, tensor: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The matrices chosen [...] in floats [..., n, k], each dequantized once. None as `matrix`."""
    several, place = torch.unique(tensor, return_inverse=True)
    dense = []
    for index in several.tolist():
        one = matrix(whole, index)
        if one is None:
            return None
        dense.append(dequantize(one, dtype))
    if not dense:
        return torch.empty(*tensor.shape, *whole.shape[1:], dtype=dtype, device=whole.codes.device)
    return torch.stack(dense)[place]
