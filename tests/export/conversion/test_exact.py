# SPDX-License-Identifier: BSD-3-Clause
"""Formats in other formats: the same values on random codes and scales of any kind, or none."""

import pytest
import torch

import blockscale as bs
from blockscale.core.block import read_block
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.export.conversion.exact import (
    CodesNeededError,
    InexactError,
    carry,
    certain,
    finer,
    invert_outer,
    multiplier,
    nested,
    obstacle,
    other_direction,
)

RANDOM = torch.Generator().manual_seed(11)


def any_of(fmt: str, shape: tuple[int, ...] = (6, 256)) -> bs.QTensor:
    """Every code, scales with signs, 0 and subnormals among them, every zero point."""
    q = bs.quantize(torch.randn(shape, generator=RANDOM), fmt)
    bits = torch.randint(0, 256, q.packed.view(torch.uint8).shape, generator=RANDOM)
    packed = bits.to(torch.uint8).view(q.packed.dtype)
    scale = torch.randn(q.qparams.scale.shape, generator=RANDOM) * 0.01
    if len(scale) > 1:
        scale[0], scale[1] = 0, 6e-8
    parts = q.qparams._replace(scale=scale.to(q.qparams.scale.dtype))
    if q.zero_point is not None:
        zero = torch.randint(0, 2**q.format.bits, q.zero_point.shape, generator=RANDOM)
        parts = parts._replace(zero_point=zero.to(torch.int32))
    return bs.QTensor(packed, parts, q.format, q.size)


PAIRS = [  # found, wanted, whether whatever is in it
    ("uint4:group64:fp16:asym", "int5:group32:fp16:full", True),
    ("uint4:group64:fp16:asym", "int5:group32:fp32:full", False),
    ("uint3:group32:fp16:asym", "int4:group32:fp16:full", True),
    ("uint2:channel0:fp16:asym", "int4:group32:fp16:full", True),
    ("uint4:group64:fp16:asym", "uint4:group64:fp32:offset", False),
    ("uint5:group64:bf16:asym", "uint8:group32:fp32:offset", False),
    ("int4:group32:fp16:full", "uint4:group32:fp16:asym", True),
    ("int4:group32:fp16:full", "uint4:group32:fp16:offset", False),
    ("int8:group32:fp16:full", "uint8:group32:fp32:offset", False),
    ("int6:group64:fp16:full", "int8:group32:fp16:full", True),
    ("int3:tensor:fp16:full", "uint4:group32:fp16:asym", True),
    ("uint4:tile2x64:fp16:asym", "int5:group32:fp16:full", True),
    ("e4m3:tensor:fp32", "e4m3:tile2x128:fp32", True),
    ("e4m3:channel0:bf16", "e4m3:group64:fp32", False),
    ("int8:group32:pow2/floor", "int8:group32:fp32", False),
]


@pytest.mark.parametrize(("found", "wanted", "always"), PAIRS)
def test_the_same_values(found: str, wanted: str, always: bool) -> None:
    one, other = parse(found), parse(wanted)
    q = any_of(found)
    assert obstacle(one, other, q.shape) is None and certain(one, other) == always
    made = carry(q, other)
    assert made.format == other and made.shape == q.shape
    assert torch.equal(made.dequantize().nan_to_num(7.5), q.dequantize().nan_to_num(7.5))


def test_offsets_that_are_whole_steps() -> None:
    """Q4_1 whose minimum is a number of steps is uint4 with a zero point."""
    asym = any_of("uint4:group32:fp16:asym")
    offset = carry(asym, parse("uint4:group32:fp32:offset"))
    back = carry(offset, parse("uint4:group32:fp32:asym"))
    assert torch.equal(back.dequantize(), asym.dequantize())
    some = asym.qparams.scale != 0
    assert torch.equal(back.zero_point[some], asym.zero_point[some])
    other = offset.qparams.offset.clone()
    other[2, 3] += 0.001
    changed = bs.QTensor(offset.packed, offset.qparams._replace(offset=other), offset.format, 256)
    with pytest.raises(InexactError, match=r"zero points reach|not whole multiples of its steps"):
        carry(changed, parse("uint4:group32:fp32:asym"))


def test_scales_of_scales_become_floats() -> None:
    q = bs.quantize(torch.randn(4, 512, generator=RANDOM), "int6:group16:(int8:group16:fp16)")
    made = carry(q, parse("int6:group16:fp32:full"))
    assert torch.equal(made.dequantize(), q.dequantize())


@pytest.mark.parametrize(
    ("found", "wanted", "why"),
    [
        ("nf4:group64:fp32", "int8:group32:fp32", "codes of nf4 are not codes of int8"),
        ("uint8:group32:fp16:asym", "uint4:group32:fp16:asym", "8 bits do not fit into 4"),
        ("int4:group32:fp16:full", "int4:group64:fp16:full", "not made of blocks group64"),
        ("int4:group32:fp16", "int4:group32:(int8:group8:fp16)", "not scales"),
        (
            "uint4:group32:fp16:asym(fp16)",
            "int5:group32:fp16:full",
            "not integers cannot be stored",
        ),
        ("nf4:flat64@0:fp32", "nf4:group64:fp32", "not made of blocks"),
    ],
)
def test_obstacles(found: str, wanted: str, why: str) -> None:
    q = bs.quantize(torch.randn(4, 256, generator=RANDOM), found)
    assert why in str(obstacle(parse(found), parse(wanted), (4, 256)))
    with pytest.raises(InexactError, match=why):
        carry(q, parse(wanted))


def test_what_only_some_tensors_have() -> None:
    q = any_of("uint4:group32:fp16:asym")
    with pytest.raises(InexactError, match="offsets have no exact value in float16"):
        carry(q, parse("uint4:group32:fp16:offset"))
    with pytest.raises(InexactError, match=r"codes minus zero points reach from -15 to 15"):
        carry(q, parse("int4:group32:fp16:full"))
    wide = any_of("int8:group32:fp32:full")
    with pytest.raises(InexactError, match="scales have no exact value in float16"):
        carry(wide, parse("int8:group32:fp16:full"))


def test_zero_points_in_the_middle_are_none() -> None:
    q = any_of("uint4:group32:fp16:asym")
    middle = q.qparams._replace(zero_point=torch.full_like(q.zero_point, 8))
    q = bs.QTensor(q.packed, middle, q.format, q.size)
    made = carry(q, parse("int4:group32:fp16:full"))
    assert torch.equal(made.dequantize(), q.dequantize())
    back = carry(made, q.format)
    assert torch.equal(back.packed, q.packed) and torch.equal(back.zero_point, q.zero_point)


def test_ternary() -> None:
    q = bs.quantize(torch.randn(2, 256, generator=RANDOM), "ternary:group256:fp16")
    made = carry(q, parse("uint2:group64:fp16:asym"))
    assert torch.equal(made.dequantize(), q.dequantize()) and bool((made.zero_point == 1).all())


def test_blocks_of_the_flattened_tensor() -> None:
    q = bs.quantize(torch.randn(4, 128, generator=RANDOM), "nf4:flat64:fp32")
    made = carry(q, parse("nf4:group64:fp32"))
    assert made.qparams.scale.shape == (4, 2)
    assert torch.equal(made.dequantize(), q.dequantize())
    assert obstacle(parse("nf4:flat64:fp32"), parse("nf4:group64:fp32"), (4, 96)) is not None


def test_zero_points_of_whole_numbers() -> None:
    q = any_of("uint4:group32:fp16:asym")
    floats = QParams(q.qparams.scale, zero_point=q.zero_point.to(torch.float16))
    found = bs.QTensor(q.packed, floats, parse("uint4:group32:fp16:asym(fp16)"), q.size)
    made = carry(found, parse("uint4:group32:fp32:offset"))
    assert torch.equal(made.dequantize(), q.dequantize())
    floats.zero_point[0, 0] += 0.5
    with pytest.raises(InexactError, match="zero points are not integers"):
        carry(found, parse("uint4:group32:fp32:offset"))


def test_codes_on_the_meta_device() -> None:
    """Scales and zero points decide alone where they can, with the same parts; else it says so."""
    q = any_of("uint4:group64:fp16:asym")
    there = bs.QTensor(q.packed.to("meta"), q.qparams, q.format, q.size)
    for spelling in (
        "uint4:group32:fp32:offset",
        "int5:group32:fp16:full",
        "uint5:group32:fp16:asym",
    ):
        made, whole = carry(there, parse(spelling)), carry(q, parse(spelling))
        assert made.packed.is_meta and made.packed.shape == whole.packed.shape
        for one, other in zip(made.qparams, whole.qparams, strict=True):
            assert one is other is None or torch.equal(one, other)
    with pytest.raises(CodesNeededError):
        carry(there, parse("int4:group32:fp16:full"))


@pytest.mark.parametrize("fmt", ["int4:group32:fp32", "uint4:group32:fp32:asym"])
def test_offsets_under_scales_of_24_bits(fmt: str) -> None:
    """code * scale + offset is rounded twice, the code less its zero point times the scale once."""
    q = bs.quantize(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), fmt)
    wanted = parse("uint4:group32:fp32:offset")
    with pytest.raises(InexactError, match="scales of 24 bits"):
        carry(q, wanted)
    scale = q.qparams.scale
    scale.view(torch.int32).bitwise_and_(-16)  # 20 bits: products with codes of 4 are exact
    assert torch.equal(carry(q, wanted).dequantize(), q.dequantize())


SHAPE = (6, 96)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("tensor", "channel0"), ("tensor", "group32"), ("channel0", "group48"),
        ("token", "group32"), ("tensor", "tensor"),
        ("tile2x64", "group32"), ("tile4x96", "tile2x32"), ("group64", "group32"),
    ],
)  # fmt: skip
def test_numbers_of_smaller_blocks(outer: str, inner: str) -> None:
    large, small = read_block(outer), read_block(inner)
    assert nested(large, small, SHAPE)
    count = large.scale_shape(SHAPE)
    numbers = torch.arange(torch.Size(count).numel()).reshape(count)
    found = finer(numbers, large, small, SHAPE)
    assert tuple(found.shape) == small.scale_shape(SHAPE)
    assert torch.equal(
        small.expand(found, SHAPE).expand(SHAPE), large.expand(numbers, SHAPE).expand(SHAPE)
    )


@pytest.mark.parametrize(
    ("outer", "inner"),
    [("group32", "group64"), ("group32", "tensor"), ("flat64", "group32"), ("group48", "group32"),
     ("channel0", "channel1"), ("group32@0", "group32")],
)  # fmt: skip
def test_others(outer: str, inner: str) -> None:
    assert not nested(read_block(outer), read_block(inner), SHAPE)


def test_a_dimension_that_is_not_there() -> None:
    assert not nested(read_block("tensor"), read_block("tile2x2"), (8,))


MUL, DIV = parse("e2m1:group16:e4m3"), parse("e2m1:group16:e4m3/inv")


def test_there_and_back() -> None:
    found = 0
    for seed in range(40):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
        q = bs.quantize(x, MUL)
        made = invert_outer(q, DIV)
        if made is None:
            continue
        found += 1
        assert torch.equal(made.dequantize(), q.dequantize())
        back = invert_outer(made, MUL)
        assert back is not None and torch.equal(back.dequantize(), q.dequantize())
    assert 0 < found < 40  # some have no reciprocal


def test_which_formats() -> None:
    assert other_direction(MUL, DIV) and other_direction(DIV, MUL)
    assert not other_direction(MUL, MUL) and not other_direction(parse("mxfp4"), DIV)
    assert not other_direction(parse("e2m1:group32:e4m3"), DIV)


def test_no_multiplier_is_said() -> None:
    codes = torch.arange(1, 127, dtype=torch.uint8)
    exact = [multiplier(codes, torch.tensor(float(g)))[1] for g in (2.0, 3.0, 10.0, 448.0)]
    assert exact[0] and not all(exact)
