# SPDX-License-Identifier: BSD-3-Clause
"""Biases in steps of sums: exact rationals, onnxruntime's own codes, and every boundary."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockscale.core.arithmetic.sums import (
    SumInteger,
    digest,
    in_units,
    live_steps,
    mean_of,
    sum_steps,
    unit_exponent,
)
from blockscale.core.block import Blocks, read_block
from tests.support.arithmetic_sums import code_of
from tests.support.exact import FLT_MAX, multiply, nearest

RECORDED = Path(__file__).parent / "data" / "onnxruntime_bias.json"
BITS = [2, 5, 8, 9, 16, 17, 24, 31, 32]

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
steps = st.floats(width=32, min_value=2.0**-149, max_value=FLT_MAX, exclude_min=False)


def tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(st.tuples(floats, steps), min_size=1, max_size=20), st.sampled_from(BITS))
def test_codes_are_those_of_rationals(pairs: list[tuple[float, float]], bits: int) -> None:
    kind = SumInteger(bits)
    bias, step = (list(each) for each in zip(*pairs, strict=True))
    found = kind.encode(tensor(bias), tensor(step))
    expected = [code_of(b, s, 2 ** (bits - 1) - 1) for b, s in pairs]
    assert found.tolist() == expected
    assert found.dtype == (torch.int8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32)
    values = kind.decode(found, tensor(step)).tolist()
    assert values == [multiply(nearest(c), s) for c, s in zip(expected, step, strict=True)]
    inside = [
        math.isfinite(b) and abs(Fraction(b) / Fraction(s)) < 2 ** (bits - 1) - Fraction(1, 2)
        for b, s in pairs
    ]
    assert kind.in_range(tensor(bias), tensor(step)).tolist() == inside


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(-(2**28), 2**28), st.sampled_from([0, 1]), st.integers(-1, 1), steps)
def test_around_every_tie_the_nearest_is_taken(
    whole: int, half: int, aside: int, step: float
) -> None:
    """Below 2^29 a quotient in binary64 rounds as the exact one: nothing becomes a tie."""
    exact = (whole + Fraction(half, 2)) * Fraction(step)
    bias = np.float32(nearest(exact))
    if abs(bias) >= FLT_MAX:  # it has no neighbour there
        return
    for _ in range(abs(aside)):
        bias = np.nextafter(bias, np.float32(math.copysign(math.inf, aside)))
    found = SumInteger(32).encode(tensor([float(bias)]), tensor([step])).item()
    quotient = Fraction(float(bias)) / Fraction(step)
    if abs(quotient) < 2**29:
        assert found == round(quotient)


def test_boundaries() -> None:
    """Ties, zeros, subnormals, both ends of int32 and int16, infinities and NaN."""
    kind, one = SumInteger(32), torch.ones(1)
    bias = [0.5, 1.5, -0.5, -2.5, 0.0, -0.0, 1e-45, 2.0**31, -(2.0**31), 2.0**31 - 128]
    codes = [0, 2, 0, -2, 0, 0, 0, 2**31 - 1, -(2**31) + 1, 2**31 - 128]
    bias += [math.inf, -math.inf, math.nan, FLT_MAX, -FLT_MAX]
    codes += [2**31 - 1, -(2**31) + 1, 0, 2**31 - 1, -(2**31) + 1]
    found = kind.encode(tensor(bias), one)
    assert found.tolist() == codes
    assert not kind.decode(found, one).signbit()[:7][kind.decode(found, one)[:7] == 0].any()
    ends = [32767.0, 32767.49, 32767.5, -32767.5, -32768.0]
    found = SumInteger(16).encode(tensor(ends), one)
    assert found.tolist() == [32767, 32767, 32767, -32767, -32767]
    assert SumInteger(16).in_range(tensor(ends), one).tolist() == [True, True, False, False, False]
    assert kind.encode(torch.empty(0), torch.empty(0)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_biases_are_widened(dtype: torch.dtype) -> None:
    bias = torch.randn(100).to(dtype)
    step = torch.rand(100) + 0.001
    found = SumInteger(32).encode(bias, step)
    assert torch.equal(found, SumInteger(32).encode(bias.float(), step))


def test_onnxruntime_gives_these_codes() -> None:
    """`quantize_bias_static_impl` of onnxruntime.quantization was run on these numbers: ordinary
    ones, ties and their neighbours, beyond 2^24, where a quotient in float32 gives others."""
    recorded = json.loads(RECORDED.read_text())
    assert recorded["onnxruntime"] == "1.31.1"
    for case in recorded["cases"]:
        weight, bias, expected = (
            tensor([float.fromhex(v) for v in case[key]])
            for key in ("weight_steps", "bias", "steps")
        )
        step = sum_steps(tensor([float.fromhex(case["input_step"])]), weight)
        assert torch.equal(step, expected)
        assert SumInteger(32).encode(bias, step).tolist() == case["codes"]


def test_torch_quantizes_so_under_powers_of_two() -> None:
    """torch's own operator for PT2E's derived bias (DerivedQuantizationSpec), which multiplies by a
    reciprocal: exact for powers of two, while the sum fits float32."""
    from torch.ao.quantization.fx import _decomposed  # noqa: F401 - defines the operator

    steps = torch.exp2(torch.randint(-12, 2, (200,)).float())
    bias = torch.randint(-4000, 4000, (200,)) / 2 * steps
    limits = (-(2**31) + 1, 2**31 - 1)
    operator = torch.ops.quantized_decomposed.quantize_per_channel
    zeros = torch.zeros(200, dtype=torch.int64)
    theirs = operator(bias, steps, zeros, 0, *limits, torch.int32)
    assert torch.equal(SumInteger(32).encode(bias, steps), theirs)


@pytest.mark.slow
@settings(max_examples=300)
@given(steps, st.lists(steps, max_size=8))
def test_steps_of_sums(taken: float, weight: list[float]) -> None:
    found = sum_steps(tensor([taken]), tensor(weight)).tolist()
    products = [multiply(taken, w) for w in weight]
    assert found == [min(max(p, 2.0**-149), FLT_MAX) for p in products]


def test_signed_and_zero_steps() -> None:
    """Scales that others chose can be negative, and some are 0: the step stays a number."""
    found = sum_steps(torch.tensor([0.5]), torch.tensor([-2.0, 0.0, -0.0, -FLT_MAX]))
    assert found.tolist() == [-1.0, 2.0**-149, 2.0**-149, nearest(-FLT_MAX / 2)]
    assert SumInteger(8).encode(torch.tensor([3.0]), found[:1]).tolist() == [-3]


def test_outputs_of_zeros_take_the_step_of_others() -> None:
    dead = torch.tensor([False, True, False])
    assert live_steps(torch.tensor([0.5, 1e-38, 0.25]), dead).tolist() == [0.5, 0.5, 0.25]
    assert live_steps(torch.tensor([1e-38, 1e-38]), torch.ones(2).bool()).tolist() == [2**-7] * 2
    odd = live_steps(torch.tensor([math.nan, 1e-38, 0.25]), dead)
    assert odd[1:].tolist() == [0.25, 0.25]
    assert odd[0].isnan()
    assert live_steps(torch.empty(0), torch.empty(0).bool()).shape == (0,)


def test_how_it_is_stored() -> None:
    assert SumInteger(16).parts((7,)) == {
        "codes": (torch.int16, (7,)),
        "scale": (torch.float32, (7,)),
    }
    with pytest.raises(ValueError, match=r"int32:sums is for a bias \[n\], found shape \(2, 3\)"):
        SumInteger(32).parts((2, 3))


# Magnitudes as whole units: their sums are exact, in whatever pieces they are taken.

EDGES = [
    0.0, 2.0**-149, 3 * 2.0**-149, 2.0**-126, 2.0**-126 - 2.0**-149, 0.99999994, 1.0, 1.0000001,
    1.9999999, 2.0, 6.5e4, 3.4028234663852886e38,
]  # fmt: skip


@pytest.mark.parametrize("largest", EDGES)
def test_the_exponent_is_the_largest_magnitude_s(largest: float) -> None:
    power = int(unit_exponent(torch.tensor(largest)))
    if largest < 2.0**-126:  # subnormals share the smallest exponent, and a zero has that of 1
        assert power == (0 if largest == 0 else -126)
    else:
        assert Fraction(2) ** power <= Fraction(largest) < Fraction(2) ** (power + 1)


@pytest.mark.parametrize("largest", EDGES[1:])
def test_units_are_rounded_down(largest: float) -> None:
    size = torch.tensor([e for e in EDGES if e <= largest])
    power = unit_exponent(torch.tensor(largest))
    unit = Fraction(2) ** (int(power) - 30)
    expected = [int(Fraction(float(x)) / unit) for x in size]
    assert in_units(size, power).tolist() == expected
    assert max(expected) < 2**31


def test_the_mean_of_nothing_is_zero() -> None:
    nothing = torch.zeros((), dtype=torch.int64)
    assert mean_of(nothing, nothing, torch.tensor(0, dtype=torch.int32)).item() == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e38])
def test_pieces_give_the_mean_of_the_whole(scale: float) -> None:
    x = (torch.randn(1000) * scale).clamp(-3e38, 3e38)
    whole = Blocks(x, read_block("tensor")).mean_magnitude()
    power = unit_exponent(x.abs().amax())
    pieces = [in_units(piece.abs(), power) for piece in x.split([1, 400, 599])]
    total = sum(int(piece.sum()) for piece in pieces)
    mean = mean_of(torch.tensor(total), torch.tensor(x.numel()), power)
    assert torch.equal(mean, whole.squeeze())


def digest_in_numpy(data: bytes) -> int:
    """The same by numpy's 64-bit words."""
    words = np.frombuffer((data + bytes(-len(data) % 8)) or bytes(8), dtype=np.uint64)
    z = words ^ (np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return int((z ^ (z >> np.uint64(31))).sum(dtype=np.uint64))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 8 * (1 << 15), 8 * (1 << 16) + 3])
def test_digests_are_sums_of_mixed_words(size: int) -> None:
    draw = np.random.default_rng(size)
    data = draw.integers(0, 256, size, dtype=np.uint8)
    assert int(digest(torch.from_numpy(data))) % 2**64 == digest_in_numpy(data.tobytes())


def test_digests_see_every_bit_and_its_place() -> None:
    """Of any dtype, wherever and however the tensor lies in memory."""
    x = torch.arange(200, dtype=torch.float32)
    seen = {int(digest(x))}
    for byte in range(0, 800, 7):
        for bit in range(8):
            flipped = x.clone()
            flipped.view(torch.uint8)[byte] ^= 1 << bit
            seen.add(int(digest(flipped)))
    swapped = x.view(100, 2).flip(0).flatten()  # words at other places
    assert len(seen | {int(digest(swapped))}) == 2 + len(range(0, 800, 7)) * 8
    odd = torch.cat([x.new_zeros(1), x])[1:]
    assert odd.data_ptr() % 8 and int(digest(odd)) == int(digest(x))
    assert int(digest(x.view(10, 20).t().contiguous().t())) == int(digest(x))
    assert int(digest(x.view(torch.int8))) == int(digest(x.view(torch.bfloat16)))
