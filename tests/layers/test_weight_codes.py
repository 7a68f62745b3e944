# SPDX-License-Identifier: BSD-3-Clause
"""A fused kernel gives the reference's codes, and its scales tell which of them were clipped."""

import math

import pytest
import torch

from blockscale.core import reference
from blockscale.core.pack import pack
from blockscale.core.parse import formats, parse
from blockscale.kernels.registry import use
from blockscale.layers import saturation
from blockscale.layers.saturation import by_kernel, clipped, has_kernel, saturates, tops_of
from tests.support.some import crossed

MORE = (
    "int8:channel0:fp16",
    "int4:group8:bf16",
    "int8:tile3x5:e8m0/tosa:full",
    "uint4:group8:fp16:asym",
    "int4:group8:pow2/nearest",
    "e2m1:group8:ue5m3",
    "int8:channel0:e4m3",
    "e2m1:group8:e4m3/four_six",
    "e2m1:group8:e4m3/inv",
    "int4:group8:(int6:group4:fp16)",
    "int4:group8:fp16:signed",
    "int8:flat8:fp16",
    "uint8:group8:fp32",
    "binary:group8:fp16",
    "e2m1:group8:e5m2",
)


def extreme(kind: str) -> torch.Tensor:
    """[24, 40]: rows of zeros, of tiny and of huge numbers, and some that are not finite."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 40, generator=generator)
    if kind == "plain":
        return x
    x[2] = 0
    x[3] *= 1e-42
    x[4] *= 1e38
    x[5] *= 3e-8
    x[6, :8] *= 1e-5
    x[7, :8] = 6e4 * 127
    if kind == "odd":
        x[9, 3], x[10, 1], x[11] = math.nan, -math.inf, math.inf
    return x


@pytest.mark.parametrize("kind", ["plain", "extreme", "odd"])
@pytest.mark.parametrize("name", [*formats(), *MORE])
def test_clipped_is_what_the_reference_counts(name, kind, monkeypatch):
    monkeypatch.setattr(saturation, "_SLAB", 90)
    x, fmt = extreme(kind), parse(name)
    found = reference.ranges(x, fmt)
    expected = int(saturates(found.low, found.high, fmt).sum())
    coded = by_kernel(x, fmt, None, None)
    assert coded is not None
    assert clipped(x, coded.qparams, fmt) == expected


def test_plain_scales_are_not_looked_at_again(monkeypatch):
    monkeypatch.setattr(reference, "ranges", None)
    x = extreme("plain")
    for name in formats():
        coded = by_kernel(x, parse(name), None, None)
        assert coded is not None and clipped(x, coded.qparams, parse(name)) == 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    crossed(
        1,
        ["nvfp4", "nvfp4:stochastic", "e2m1:group8:e4m3/four_six", "e2m1:group8:e4m3/inv",
         "int4:tile2x8:(uint8:tensor:fp32)", "e2m1:group8:(e4m3:block*x2:fp32)"],
        [torch.float32, torch.bfloat16],
    ),
)  # fmt: skip
def test_beside_a_top_that_others_bring(name, dtype):
    name = name.replace("nvfp4:stochastic", "e2m1:group16:e4m3:stochastic")
    fmt, x = parse(name), extreme("plain").to(dtype)
    top = tops_of(x, fmt) * 4
    seed = torch.tensor([3, 80])
    found = by_kernel(x, fmt, seed, top)
    assert found is not None
    ranges = reference.ranges(x, fmt)
    wanted = reference.qparams_from_range(*ranges, fmt, reference.outer_of(top, fmt))
    wanted = reference.settle(x, ranges, wanted, fmt)
    assert torch.equal(found.qparams.scale, wanted.scale)
    assert torch.equal(found.qparams.outer, wanted.outer)
    codes = reference.quantize(x, wanted, fmt, seed)
    assert torch.equal(found.packed, pack(codes, fmt.element))


@pytest.mark.parametrize(
    ("name", "shape", "top"),
    [
        ("nvfp4", (6, 32), 1.001),  # which bfloat16 does not have
        ("e2m1:group8:(e4m3:channel0:fp32)", (6, 32), 1.0),  # an outer scale for each row
        ("e2m1:tile4x8:e4m3", (6, 32), 1.0),  # rows that end within a block
        ("uint4:group8:(uint6:tensor:fp16):asym", (6, 32), 1.0),  # of two ends
        ("nvfp4", (0, 32), 1.0),
        ("nvfp4", (2, 6, 32), 1.0),
    ],
)
def test_no_kernel_where_rows_cannot_bring_the_top(name, shape, top):
    x = torch.ones(shape, dtype=torch.bfloat16)
    assert by_kernel(x, parse(name), None, torch.full((1, 1), top)) is None


def test_formats_without_a_kernel():
    assert has_kernel(parse("mxfp4"))
    assert not has_kernel(parse("int8:tensor:e8m0/given"))
    with use("reference"):
        assert not has_kernel(parse("mxfp4"))


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_token", "e2m1:group8:(e4m3:block*x2:fp32)"])
@pytest.mark.parametrize("kind", ["plain", "extreme", "odd"])
def test_tops_are_those_of_the_reference(name, kind):
    x, fmt = extreme(kind), parse(name)
    found = tops_of(x, fmt)
    assert torch.equal(found, reference.tops(reference.ranges(x, fmt), fmt))


def test_zeros_are_not_looked_at_again(monkeypatch):
    """Their scales are the ends of what formats hold, in padded tables and pruned layers."""
    monkeypatch.setattr(reference, "ranges", None)
    for name in formats():
        coded = by_kernel(torch.zeros(24, 40), parse(name), None, None)
        assert coded is not None and clipped(torch.zeros(24, 40), coded.qparams, parse(name)) == 0
