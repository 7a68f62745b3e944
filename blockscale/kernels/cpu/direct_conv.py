# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions without patches: lines of x are multiplied where they are (isa/linear/direct.cpp).

The weight is decoded to float32 at each call: 4 bytes an element, which the call gives back.
"""

from typing import Any, NamedTuple

from torch import Tensor

from blockscale.core.reference import QParams
from blockscale.kernels.cpu.linear import Result, ended
from blockscale.kernels.cpu.native import DTYPES, addresses, native, threads


class Image(NamedTuple):
    """x of a convolution [batch, *size, channels], in order.

    data: numbers, or codes of `fmt`, one a byte, whose one scale is in `parts`
    """

    data: Tensor
    fmt: str = ""
    parts: QParams | None = None


def direct(
    x: Image,
    ready: Any,
    places: list[int],
    groups: int,
    shape: tuple[int, ...],
    result: Result,
) -> list[Tensor] | None:
    """The convolution of x and a prepared weight; None where a scale or the weight is not finite.

    places: as `window` of src/bind_linear.cpp takes them, with all channels of x
    shape: of the result, channels last
    """
    handle, scale, zero, dtype = None, 0, 0, 0
    if x.fmt:
        assert x.parts is not None
        handle, scale = native(x.fmt).handle, addresses(x.parts)[0]
        zero = 0 if x.parts.zero_point is None else int(x.parts.zero_point)
    else:
        dtype = DTYPES[x.data.dtype]
    return ended(
        lambda end: ready.direct(
            handle, x.data.data_ptr(), dtype, scale, zero, shape[0], groups, places,
            *end.arguments, threads(),
        ),
        shape, result,
    )  # fmt: skip
