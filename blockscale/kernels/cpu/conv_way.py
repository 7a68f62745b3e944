# SPDX-License-Identifier: BSD-3-Clause
"""How a convolution runs on the CPU, by its sizes and formats: one rule for layers and graphs.

The figures behind it are those of benchmarks/convolutions.py, in docs/performance.md.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from blockscale.core.elements.integer import Integer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.linear import WHOLE_ROW, Result, row_block, run_to_end
from blockscale.kernels.cpu.native import DTYPES, addresses, native, threads

# Patches: with fewer outputs or channels, copying them costs more than their products save. Without
# vpdpbusd that is so earlier where pixels have scales of their own, which end sums.
OUTPUTS, CHANNELS = 32, 32
OUTPUTS_OF_BLOCKS = 128
# Direct: vectors of 32 outputs, of which few may be missing, for fewer channels than patches take.
# In groups each output has channels of its own, which are laid out once for each.
DIRECT_OUTPUTS, DIRECT_CHANNELS, DIRECT_GROUPED = 16, 31, 1
# Planes: channels that an output sees, of numbers; and, of codes, products that an element of x is
# in: for more of them patches, which cost once what the products of planes cost each time.
PLANES_NUMBERS, PLANES_PRODUCTS = 64, 1024
PLANES_ISAS = ("avx512vnni", "amx")  # that multiply codes of planes

# Times of torch's float32 convolution, where they are not all below one (benchmarks/results).
TORCH, NUMBERS, SMALL_PLANES = "1.1 to 1.8", "0.7 to 1.2", "0.8 to 1.2"
PIXELS, OWN_ROWS = "1.3 to 2.5", "0.4 to 1.8"


class ConvWay(Enum):
    """How a convolution is computed.

    PLANES: vectors along the pixels of a channel, x and the result channels first: integers, four
        channels or four neighbours of one at a time, or float32
    PATCHES: integers times integers, of patches of x as the rows of a linear layer
    DIRECT: vectors of float32, of lines of x where they lie, by the decoded weight
    TORCH: torch's convolution in float32, by the decoded weight
    """

    PLANES = "products of planes"
    PATCHES = "integer products of patches"
    DIRECT = "vectors of float32"
    TORCH = "torch's float32 convolution"


def way(
    shape: Sequence[int],
    groups: int,
    input_fmt: str,
    weight_fmt: str,
    isa: str,
    *,
    channels_last: bool,
) -> ConvWay:
    """How a convolution runs.

    shape: of its float weight, [n, channels / groups, *kernel]
    input_fmt: of codes of x, or that quantizes x; empty for floats
    weight_fmt: of the weight's codes
    isa: the instruction set of the kernels
    channels_last: how x lies in memory, and the result
    """
    if not channels_last and by_planes(shape, groups, input_fmt, weight_fmt, isa):
        return ConvWay.PLANES
    if groups == 1 and input_fmt and by_patches(shape, input_fmt, isa):
        return ConvWay.PATCHES
    return ConvWay.DIRECT if lies_direct(shape, groups) else ConvWay.TORCH


def lies_direct(shape: Sequence[int], groups: int) -> bool:
    """Whether vectors of outputs pay, of x where it lies."""
    # channels of pixels would be picked one by one for lanes that see several
    most = DIRECT_CHANNELS if groups == 1 else DIRECT_GROUPED
    return shape[0] >= DIRECT_OUTPUTS and shape[1] <= most


chosen = lru_cache(1024)(way)  # of tuples: parsing formats takes longer than small convolutions


class ConvReport(NamedTuple):
    """way: how a convolution runs, and by which instructions
    slow: where it was measured not to be faster than torch's float32 one: by how much, and why
    """

    way: str
    slow: str


def describe_conv(
    shape: Sequence[int],
    groups: int,
    input_fmt: str,
    weight_fmt: str,
    isa: str,
    *,
    channels_last: bool,
) -> ConvReport:
    """What a ledger says of a convolution. The arguments are those of `way`."""
    result = way(shape, groups, input_fmt, weight_fmt, isa, channels_last=channels_last)
    return ConvReport(f"{result.value}, {isa}", _slow(result, shape, groups, input_fmt))


def _slow(way: ConvWay, shape: Sequence[int], groups: int, input_fmt: str) -> str:
    """As `Told.slow`: the largest figures of benchmarks/convolutions.py, by one thread."""
    _, channels, *kernel = shape
    if way is ConvWay.TORCH:
        return f"{TORCH} of float32's time: the same products, of a weight that is decoded first"
    if way is ConvWay.PLANES and not input_fmt and groups == 1:
        return f"{NUMBERS} of float32's time: the same products, of codes decoded first"
    if way is ConvWay.PLANES and input_fmt and channels == 1:
        return f"{SMALL_PLANES} of float32's time on images of 28 x 28 and smaller, less on others"
    if input_fmt and not shares_a_scale(input_fmt, len(shape)):
        if way is ConvWay.DIRECT:
            return f"{PIXELS} of float32's time: each pixel's codes are decoded first"
        if prod(kernel) == 1:
            return f"{OWN_ROWS} of float32's time: each pixel has scales of its own"
    return ""


def by_planes(shape: Sequence[int], groups: int, input_fmt: str, weight_fmt: str, isa: str) -> bool:
    """Whether planes pay: one scale for all of x, and few products for what is read of it."""
    outputs, channels, *kernel = shape
    if not input_fmt:
        return channels <= PLANES_NUMBERS
    if not shares_a_scale(input_fmt, len(shape)):
        return False
    if channels <= DIRECT_CHANNELS:
        return True
    few = outputs // groups * prod(kernel) <= PLANES_PRODUCTS
    return few and isa in PLANES_ISAS and one_step_each(weight_fmt)


def one_step_each(weight_fmt: str) -> bool:
    """Whether codes of a weight are integers of up to 8 bits under one scale for each output."""
    form = parse(weight_fmt)
    whole = isinstance(form.element, Integer) and form.bits <= 8 and form.element.signed
    return whole and row_block(weight_fmt, 2) in (0, WHOLE_ROW) and not form.asym


def by_patches(shape: Sequence[int], input_fmt: str, isa: str) -> bool:
    """Whether patches of codes pay, and blocks of their scales are those of pixels."""
    outputs, channels = shape[:2]
    block = row_block(input_fmt, len(shape))
    if block is None or parse(input_fmt).rounding == "stochastic":
        return False
    slow = block and isa not in ("avx512vnni", "amx")
    if channels < CHANNELS or outputs < (OUTPUTS_OF_BLOCKS if slow else OUTPUTS):
        return False
    return block == 0 or channels % min(block, channels) == 0  # else a last one at every place


def shares_a_scale(input_fmt: str, rank: int) -> bool:
    """Whether codes are integers of up to 8 bits under one scale, so that they need not become
    numbers before they are multiplied."""
    form = parse(input_fmt)
    whole = isinstance(form.element, Integer) and form.bits <= 8
    return whole and form.rounding != "stochastic" and row_block(input_fmt, rank) == 0


# Convolutions without patches: lines of x are multiplied where they are (isa/linear/direct.cpp).
#
# The weight is decoded to float32 at each call: 4 bytes an element, which the call gives back.


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
    return run_to_end(
        lambda end: ready.direct(
            handle, x.data.data_ptr(), dtype, scale, zero, shape[0], groups, places,
            *end.arguments, threads(),
        ),
        shape, result,
    )  # fmt: skip
