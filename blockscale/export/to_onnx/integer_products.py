# SPDX-License-Identifier: BSD-3-Clause
"""Products of integers in int32 by MatMulInteger and ConvInteger, which take 8 bits.

A number of 16 bits is 256 · high + low, and products are sums of products:

    x · w  =  65536 xh·wh  +  256 (xh·wl + xl·wh)  +  xl·wl        exact, as int32 wraps around
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockscale.export.to_onnx.scope import Scope
from blockscale.export.to_onnx.stored import put_tensor

_BYTES = {torch.int8: np.int8, torch.uint8: np.uint8}
_Part = tuple[int, str, str]  # what to multiply by, the numbers, their zero point


def in_bytes(kind: torch.dtype, zero_point: int, weight: Tensor) -> bool:
    """Whether products of codes of `kind` and a weight can be written as products of 8 bits."""
    return weight.dtype in (torch.int8, torch.int16) and (kind in _BYTES or not zero_point)


def multiplied(scope: Scope, x: str, kind: torch.dtype, zero_point: int, weight: Tensor) -> str:
    """Codes x [..., k] of `kind` times a weight [k, n] int8 or int16 -> [..., n] int32."""

    def one(a: str, b: str, zero: str) -> str:
        return scope.op("MatMulInteger", a, b, zero)

    return _summed(scope, _parts(scope, x, kind, zero_point), weight, one)


def convolved(
    scope: Scope, x: str, kind: torch.dtype, zero_point: int, weight: Tensor, **attributes: Any
) -> str:
    """Codes x [batch, channels, *size] through a convolution -> sums int32, without bias.

    weight: [n, channels / groups, *kernel]; attributes: those of ONNX's ConvInteger
    """

    def one(a: str, b: str, zero: str) -> str:
        return scope.op("ConvInteger", a, b, zero, **attributes)

    return _summed(scope, _parts(scope, x, kind, zero_point), weight, one)


def _parts(scope: Scope, x: str, kind: torch.dtype, zero_point: int) -> list[_Part]:
    """Codes as parts of 8 bits."""
    if kind in _BYTES:
        return [(1, x, scope.constant(np.array(zero_point, _BYTES[kind])))]
    if zero_point:
        raise ValueError(
            f"codes of 16 bits with the zero point {zero_point} have no integer product in "
            "ONNX: use a format without asym, or one of 8 bits"
        )
    none = scope.constant(np.array(0, np.uint8))
    wide = scope.cast(x, "INT32")
    low = scope.op("BitwiseAnd", wide, scope.constant(np.array(255, np.int32)))
    high = scope.op("Div", scope.op("Sub", wide, low), scope.constant(np.array(256, np.int32)))
    signed = kind == torch.int16
    upper = scope.cast(high, "INT8" if signed else "UINT8")
    zero = scope.constant(np.array(0, np.int8 if signed else np.uint8))
    return [(1, scope.cast(low, "UINT8"), none), (256, upper, zero)]


def _split(weight: Tensor) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """A weight as arrays of 8 bits, each with what it counts."""
    if weight.dtype == torch.int8:
        return [(1, weight.numpy())]
    low = weight & 255
    high = ((weight.to(torch.int32) - low) // 256).to(torch.int8)
    return [(1, low.to(torch.uint8).numpy()), (256, high.numpy())]


def _summed(
    scope: Scope, parts: Sequence[_Part], weight: Tensor, one: Callable[[str, str, str], str]
) -> str:
    """The sum of the products of all parts."""
    total = ""
    for (count, x, zero), (times, array) in product(parts, _split(weight.contiguous())):
        stored = torch.from_numpy(np.ascontiguousarray(array))
        y = one(x, put_tensor(scope.file, f"{scope.within}.weight", stored), zero)
        if count * times > 1:
            y = scope.op("Mul", y, scope.constant(np.array(count * times, np.int32)))
        total = scope.op("Add", total, y) if total else y
    return total
