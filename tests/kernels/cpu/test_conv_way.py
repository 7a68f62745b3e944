# SPDX-License-Identifier: BSD-3-Clause
"""One rule says how a convolution runs: the sizes around its limits, by instruction set."""

import pytest

from blockscale.kernels.cpu import conv_way
from blockscale.kernels.cpu.conv_way import ConvWay, describe_conv, shares_a_scale, way

WEIGHT = "int8:channel0:fp32"


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "avx512vnni", "amx"])
@pytest.mark.parametrize("outputs", [31, 32, 64, 127, 128])
def test_which_are_patches(isa: str, outputs: int) -> None:
    """Without vpdpbusd only for many outputs, where pixels have scales of their own."""
    blocks = 32 if isa in ("avx512vnni", "amx") else 128
    for fmt, least in (
        ("int8:token:fp32", blocks),
        ("mxint8", blocks),
        ("uint8:tensor:fp32", 32),
        ("int8:tensor:fp32:asym", 32),
        ("int8:tensor:fp32:stochastic", 999),
        ("int8:group24:fp32", 999),  # partial blocks at every place of the kernel
        ("nvfp4", 999),
        ("", 999),
    ):
        chosen = way([outputs, 32, 3, 3], 1, fmt, WEIGHT, isa, channels_last=True)
        assert (chosen is ConvWay.PATCHES) == (outputs >= least), fmt
        assert chosen in (ConvWay.PATCHES, ConvWay.TORCH)
        last = way([outputs, 31, 3, 3], 1, fmt, WEIGHT, isa, channels_last=True)
        assert last is ConvWay.DIRECT


@pytest.mark.parametrize("fmt", ["", "int8:tensor:fp32", "int8:token:fp32", "mxfp8"])
def test_which_are_direct(fmt: str) -> None:
    """Few channels for each output, and outputs that fill vectors."""
    for shape, groups, expected in (
        ([64, 3, 7, 7], 1, ConvWay.DIRECT),
        ([16, 3, 3, 3], 1, ConvWay.DIRECT),
        ([15, 3, 3, 3], 1, ConvWay.TORCH),
        ([144, 1, 3, 3], 144, ConvWay.DIRECT),
        ([128, 9, 3], 16, ConvWay.TORCH),
        ([12, 1, 3, 3], 12, ConvWay.TORCH),
    ):
        assert way(shape, groups, fmt, WEIGHT, "amx", channels_last=True) is expected
        first = way(shape, groups, fmt, WEIGHT, "amx", channels_last=False)
        planes = fmt in ("", "int8:tensor:fp32")
        assert first is (ConvWay.PLANES if planes else expected)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "avx512vnni", "amx"])
def test_which_are_planes(isa: str) -> None:
    """Codes of many channels where these are multiplied four at a time, by weights of one step to
    an output, and few products to an element; else few channels."""
    fours = isa in ("avx512vnni", "amx")
    one, several = "int8:tensor:fp32", "uint4:group16:fp32:asym"
    for shape, groups, fmt, weight, expected in (
        ([64, 256, 1, 1], 1, one, WEIGHT, fours),
        ([64, 256, 1, 1], 1, "uint8:tensor:fp32:asym", WEIGHT, fours),
        ([1024, 512, 1, 1], 1, one, WEIGHT, fours),
        ([1025, 512, 1, 1], 1, one, WEIGHT, False),
        ([113, 64, 3, 3], 1, one, WEIGHT, fours),
        ([114, 64, 3, 3], 1, one, WEIGHT, False),
        ([1140, 64, 3, 3], 10, one, WEIGHT, False),
        ([1130, 64, 3, 3], 10, one, WEIGHT, fours),
        ([64, 256, 1, 1], 1, one, several, False),
        ([64, 256, 1, 1], 1, one, "uint8:channel0:fp32", False),
        ([64, 256, 1, 1], 1, "int8:token:fp32", WEIGHT, False),
        ([64, 31, 1, 1], 1, one, several, True),
        ([64, 32, 1, 1], 1, one, several, False),
        ([144, 1, 3, 3], 144, one, WEIGHT, True),
        ([64, 64, 3, 3], 1, "", several, True),
        ([64, 65, 3, 3], 1, "", several, False),
    ):
        found = way(shape, groups, fmt, weight, isa, channels_last=False)
        assert (found is ConvWay.PLANES) == expected, (shape, fmt, weight)
        last = way(shape, groups, fmt, weight, isa, channels_last=True)
        assert last is not ConvWay.PLANES


def test_which_codes_stay_codes() -> None:
    for fmt in ("int8:tensor:fp32", "uint4:tensor:fp32:asym"):
        assert shares_a_scale(fmt, 4)
    for fmt in ("int8:token:fp32", "e4m3:tensor:fp32", "int8:tensor:fp32:stochastic", "int16"):
        assert not shares_a_scale(fmt, 4)


def test_every_limit_is_one_of_the_rule() -> None:
    """Tests set these."""
    names = ("OUTPUTS", "OUTPUTS_OF_BLOCKS", "CHANNELS", "DIRECT_OUTPUTS", "DIRECT_CHANNELS")
    for name in (*names, "DIRECT_GROUPED", "PLANES_NUMBERS", "PLANES_PRODUCTS"):
        assert getattr(conv_way, name) > 0


def test_what_a_ledger_says() -> None:
    """The way and, where it was measured to be no faster than float32, by how much and why."""
    one, token = "int8:tensor:fp32", "int8:token:fp32"
    for shape, groups, fmt, found, slow in (
        ([64, 256, 1, 1], 1, one, ConvWay.PLANES, ""),
        ([64, 256, 1, 1], 1, "", ConvWay.TORCH, "1.1 to 1.8 of float32's time: the same products"),
        ([64, 64, 1, 1], 1, "", ConvWay.PLANES, "0.7 to 1.2 of float32's time: the same products"),
        ([64, 3, 7, 7], 1, "", ConvWay.PLANES, "of codes decoded first"),
        ([144, 1, 3, 3], 144, one, ConvWay.PLANES, "on images of 28 x 28 and smaller"),
        ([144, 1, 3, 3], 144, "", ConvWay.PLANES, ""),
        ([64, 3, 7, 7], 1, token, ConvWay.DIRECT, "each pixel's codes are decoded first"),
        ([64, 256, 1, 1], 1, token, ConvWay.PATCHES, "each pixel has scales of its own"),
        ([256, 256, 3, 3], 1, token, ConvWay.PATCHES, ""),
    ):
        about = describe_conv(shape, groups, fmt, WEIGHT, "amx", channels_last=False)
        assert about.way == f"{found.value}, amx"
        assert slow in about.slow and bool(slow) == bool(about.slow), (shape, fmt)
