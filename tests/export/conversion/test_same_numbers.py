# SPDX-License-Identifier: BSD-3-Clause
"""What is told from codes and scales alone is what the values say."""

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.conversion.exact import InexactError, carry
from blockscale.export.conversion.same_numbers import meaning, same_bytes, same_numbers
from blockscale.ops.tensor import QTensor
from tests.support.same import same

SEEN = [
    ("uint4:group32:fp16:asym", "int8:group32:fp16:full"),
    ("uint4:group128:fp16:asym", "int8:group32:fp16:full"),
    ("uint4:token:fp16:asym", "uint4:group32:fp32:offset"),
    ("int4:group32:fp16:full", "uint4:group32:fp16:asym"),
    ("int4:group32:fp16:full", "int8:group16:fp32"),
    ("uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)", "uint4:group32:fp32:offset"),
    ("int8:group32:e8m0", "int8:group32:fp32"),
]


def tensor(fmt: str) -> QTensor:
    return bs.quantize(torch.randn(40, 256) + 0.25, fmt)


def with_parts(q: QTensor, **parts: Any) -> QTensor:
    packed = parts.pop("packed", q.packed)
    return QTensor(packed, q.qparams._replace(**parts), q.format, q.size)


def equal(a: QTensor, b: QTensor) -> bool:
    return same(a.dequantize(), b.dequantize())


@pytest.mark.parametrize(("found", "wanted"), SEEN)
def test_carried_tensors_are_seen_both_ways(found: str, wanted: str) -> None:
    q = tensor(found)
    other = carry(q, parse(wanted))
    assert equal(q, other)
    assert same_numbers(q, other) == same_numbers(other, q) == 0


@pytest.mark.parametrize(("found", "wanted"), SEEN)
def test_any_bit_counts(found: str, wanted: str) -> None:
    q = tensor(found)
    other = carry(q, parse(wanted))
    for name, part in {"packed": other.packed, **other.qparams._asdict()}.items():
        if part is None or isinstance(part, QTensor):
            continue
        for place in (0, part.numel() // 2 + 1, part.numel() - 1):
            changed = part.clone().flatten()
            changed.view(torch.uint8)[place * part.itemsize] ^= 1
            another = with_parts(other, **{name: changed.reshape(part.shape)})
            assert not equal(q, another), (name, place)
            assert same_numbers(q, another) is None, (name, place)


def test_offsets_that_are_no_zero_points_of_exact_products() -> None:
    """Steps of 24 bits: (c - z) * s and c * s + o round differently."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(8).repeat(4, 1)
    step = (1 + torch.rand(4, 4)) / 3
    zero = torch.full((4, 4), 8, dtype=torch.int32)
    packed = bs.ops.primitives.pack(codes, "uint4:group32:fp32:asym")
    a = QTensor(packed, bs.core.reference.QParams(step, zero_point=zero),
                parse("uint4:group32:fp32:asym"), 128)  # fmt: skip
    offset = -(zero * step)
    b = QTensor(packed, bs.core.reference.QParams(step, offset=offset),
                parse("uint4:group32:fp32:offset"), 128)  # fmt: skip
    assert not equal(a, b) and same_numbers(a, b) is None
    short = step.to(torch.bfloat16).float()
    a, b = with_parts(a, scale=short), with_parts(b, scale=short, offset=-(zero * short))
    assert equal(a, b) and same_numbers(a, b) == 0
    for factor in (2.0**-130, 2.0**126):  # subnormals, infinities
        scale = short * factor
        one, two = with_parts(a, scale=scale), with_parts(b, scale=scale, offset=-(zero * scale))
        assert same_numbers(one, two) is None


@pytest.mark.parametrize("found", ["int4:group32:fp16:full", "uint4:group32:bf16:asym"])
def test_zeros_of_the_other_sign_are_counted(found: str) -> None:
    q = tensor(found)
    signs = torch.where(torch.arange(q.scale.numel()) % 3 == 0, -1, 1).reshape(q.scale.shape)
    q = with_parts(q, scale=q.scale * signs)
    other = carry(q, parse("uint4:group32:fp32:offset"))
    one, two = q.dequantize(), other.dequantize()
    expected = int(((one == 0) & (one.signbit() != two.signbit())).sum())
    assert torch.equal(one, two) and expected > 10
    assert same_numbers(q, other) == same_numbers(other, q) == expected
    changed = other.packed.clone()
    changed[-1, -1] ^= 1
    assert same_numbers(q, with_parts(other, packed=changed)) is None


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_point_of_0_under_a_negative_step_leaves_the_sign_to_the_offset(zero: float) -> None:
    q = tensor("uint4:group32:bf16:asym")
    q = with_parts(q, scale=-q.scale, zero_point=torch.zeros_like(q.zero_point))
    other = QTensor(q.packed, type(q.qparams)(q.scale, offset=torch.full(q.scale.shape, zero)),
                    parse("uint4:group32:bf16:offset(fp32)"), q.size)  # fmt: skip
    assert torch.equal(q.dequantize(), other.dequantize())
    assert same_numbers(q, other) is None


@pytest.mark.parametrize("scale", [0.0, -0.5, torch.nan, torch.inf])
def test_any_scale_means_the_same_in_both(scale: float) -> None:
    q = tensor("uint4:group32:fp16:asym")
    q = with_parts(q, scale=torch.full_like(q.scale, scale))
    other = carry(q, parse("int8:group32:fp16:full"))
    assert equal(q, other) and same_numbers(q, other) == 0


def test_zero_points_that_int16_would_wrap() -> None:
    q = tensor("uint4:group32:fp32:asym")
    far = with_parts(q, zero_point=q.zero_point + 2**16)
    assert same_numbers(q, far) is same_numbers(far, far) is None
    none = with_parts(q, zero_point=torch.zeros_like(q.zero_point))
    least = with_parts(q, zero_point=torch.full_like(q.zero_point, -(2**31)))
    other = carry(none, parse("int8:group32:fp32"))
    assert same_numbers(none, other) == 0 and same_numbers(least, other) is None


@pytest.mark.parametrize(
    "fmt",
    ["e4m3:group32:fp32", "ternary:group32:fp32", "int8:flat64:fp32", "int8:tile2x32:fp32",
     "int12:group32:fp32", "uint4:group32:fp16:asym(fp16)", "int4:group48:fp32", "nf4"],
)  # fmt: skip
def test_what_is_not_looked_at(fmt: str) -> None:
    q = tensor(fmt)
    assert same_numbers(q, q) is None


def test_shapes() -> None:
    q = tensor("int8:group32:fp32")
    assert same_numbers(q, q) == 0
    assert None is same_numbers(q, bs.quantize(torch.randn(40, 128), "int8:group32:fp32"))
    assert None is same_numbers(q, bs.quantize(torch.randn(2, 20, 256), "int8:group32:fp32"))
    cube = bs.quantize(torch.randn(2, 20, 256), "uint4:group32:fp16:asym")
    assert same_numbers(cube, carry(cube, parse("int8:group32:fp16:full"))) == 0
    with pytest.raises(InexactError):
        carry(cube, parse("int4:group32:fp16:full"))


# Bytes are the same, or one bit of one of them is not.


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 3, 8, 37])
def test_every_place(dtype: torch.dtype, count: int) -> None:
    a = torch.arange(count).to(dtype)
    assert same_bytes(a, a.clone()) and same_bytes(a[None], a.clone()[None])
    assert not same_bytes(a, a[None]) and not same_bytes(a, a.view(torch.int8))
    for place in range(count * dtype.itemsize):
        b = a.clone()
        b.view(torch.uint8)[place] ^= 1 << place % 8
        assert not same_bytes(a, b)


def test_nan_zeros_strides_and_nothing() -> None:
    a = torch.tensor([[torch.nan, 0.0, 1.0], [2.0, 3.0, 4.0]])
    assert same_bytes(a, a.clone()) and same_bytes(a.t(), a.t().contiguous())
    assert not same_bytes(a, torch.where(a == 0, -0.0, a))
    assert same_bytes(torch.empty(0, 4), torch.empty(0, 4)) and same_bytes(a[1:, 1:], a[1:, 1:])
    assert same_bytes(torch.tensor(2.0), torch.tensor(2.0))


# Two formats mean the same where the same stored parts have the same values.

SAME = (
    ("int8:group32:fp16", "int8:group32:fp16:full"), ("mxfp4", "e2m1:group32:e8m0/given"),
    ("int8:group32:fp16:recip", "int8:group32:fp16"),
    ("int4:tensor:fp32:stochastic", "int4:tensor:fp32"),
)  # fmt: skip
OTHER = (
    "int8:group32:fp16", "int8:group32:bf16", "int8:group64:fp16", "int8:group32:fp16:asym",
    "int8:group32:fp16:asym(fp16)", "int8:group32:fp16:offset", "int8:group32:fp16:offset(fp32)",
    "int8:group32:pow2/floor", "int8:group32:e8m0/floor", "e2m1:group16:e4m3", "uint8:group32:fp16",
    "e2m1:group16:e4m3/inv", "int6:group16:(int8:group16:fp16)", "int6:group16:(int8:group8:fp16)",
    "uint4:group32:fp16:offset(uint6:group8:fp16)", "uint4:group32:fp16:offset(group64:fp16)",
)  # fmt: skip


def test_same() -> None:
    assert all(meaning(parse(one)) == meaning(parse(other)) for one, other in SAME)


def test_other() -> None:
    found = [meaning(parse(each)) for each in OTHER]
    assert len(set(map(str, found))) == len(OTHER)
