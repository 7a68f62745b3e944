# SPDX-License-Identifier: BSD-3-Clause
"""One rule says how a convolution runs: the sizes around its limits, by instruction set."""

import pytest

from blockscale.kernels.cpu import conv_way
from blockscale.kernels.cpu.conv_way import Way, shares_a_scale, way


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
        chosen = way([outputs, 32, 3, 3], 1, fmt, isa, channels_last=False)
        assert (chosen is Way.PATCHES) == (outputs >= least), fmt
        assert chosen in (Way.PATCHES, Way.TORCH)
        assert way([outputs, 31, 3, 3], 1, fmt, isa, channels_last=True) is Way.DIRECT


@pytest.mark.parametrize("fmt", ["", "int8:tensor:fp32", "int8:token:fp32", "mxfp8"])
def test_which_are_direct(fmt: str) -> None:
    """Few channels for each output, and outputs that fill vectors."""
    for shape, groups, expected in (
        ([64, 3, 7, 7], 1, Way.DIRECT),
        ([16, 3, 3, 3], 1, Way.DIRECT),
        ([15, 3, 3, 3], 1, Way.TORCH),
        ([144, 1, 3, 3], 144, Way.DIRECT),
        ([128, 9, 3], 16, Way.TORCH),
        ([12, 1, 3, 3], 12, Way.TORCH),
    ):
        for last in (False, True):
            assert way(shape, groups, fmt, "amx", channels_last=last) is expected


def test_groups_of_several_channels_are_direct_where_these_lie_in_lines() -> None:
    for fmt, lines in (("", True), ("int8:tensor:fp32", True), ("int8:token:fp32", False)):
        for last in (False, True):
            chosen = way([128, 8, 3], 16, fmt, "amx", channels_last=last)
            assert (chosen is Way.DIRECT) == (lines and not last)


def test_which_codes_stay_codes() -> None:
    for fmt in ("int8:tensor:fp32", "uint4:tensor:fp32:asym"):
        assert shares_a_scale(fmt, 4)
    for fmt in ("int8:token:fp32", "e4m3:tensor:fp32", "int8:tensor:fp32:stochastic", "int16"):
        assert not shares_a_scale(fmt, 4)


def test_every_limit_is_one_of_the_rule() -> None:
    """Tests set these."""
    for name in ("OUTPUTS", "OUTPUTS_OF_BLOCKS", "CHANNELS", "DIRECT_OUTPUTS", "DIRECT_CHANNELS"):
        assert getattr(conv_way, name) > 0
