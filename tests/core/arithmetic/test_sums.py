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

from blockscale.core.arithmetic.sums import SumInteger, live_steps, sum_steps
from tests.support.arithmetic_sums import code_of
from tests.support.exact import FLT_MAX, multiply, nearest

RECORDED = Path(__file__).parent / "data" / "onnxruntime_bias.json"
BITS = [2, 5, 8, 9, 16, 17, 24, 31, 32]

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
steps = st.floats(width=32, min_value=2.0**-149, max_value=FLT_MAX, exclude_min=False)


def tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@settings(max_examples=200)
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


@settings(max_examples=120)
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


@settings(max_examples=120)
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
    with pytest.raises(ValueError, match=r"int32:sums is for a bias \[n\], not for \(2, 3\)"):
        SumInteger(32).parts((2, 3))
