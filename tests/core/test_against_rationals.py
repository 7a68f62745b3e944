# SPDX-License-Identifier: BSD-3-Clause
"""Scales, codes, values and mask, bit for bit against the exact oracle, over the whole grammar."""

import math

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from torch import Tensor

from blockscale.core import reference as R
from blockscale.core.parse import parse
from tests.support.exact import FLT_MAX, layout
from tests.support.oracle import Oracle
from tests.support.oracle import QParams as Expected
from tests.support.rational_cases import cases
from tests.support.strategies import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
QUICK = settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=4000)


def listed(x: Tensor) -> list[float]:
    """Row-major, whatever the strides; float64 holds every dtype here exactly."""
    return x.to(torch.float64).flatten().tolist()


def bits(values: list[float]) -> list[object]:
    """Comparable numbers: NaN equals NaN, and -0 is not +0."""
    return ["nan" if math.isnan(v) else (v, math.copysign(1, v)) for v in values]


def check_qparams(actual: R.QParams, expected: Expected, spelling: str, shape) -> None:
    oracle = Oracle(spelling)
    counts = layout(oracle.block, shape)[1]
    assert tuple(actual.scale.shape) == counts
    assert actual.scale.dtype == DTYPES.get(oracle.scale) or actual.scale.dtype == (
        torch.float32 if oracle.scale == "pow2" else torch.uint8
    )
    assert bits(listed(actual.scale)) == bits(expected.scale)
    assert (actual.outer is None) == (expected.outer is None)
    if actual.outer is not None:
        assert actual.outer.dtype == DTYPES[oracle.inner.scale]
        assert tuple(actual.outer.shape) == layout(oracle.inner.block, counts)[1]
        assert bits(listed(actual.outer)) == bits(expected.outer)
    assert (actual.zero_point is None) == (expected.zero is None)
    if actual.zero_point is not None:
        assert actual.zero_point.dtype == DTYPES.get(oracle.zero_type, torch.int32)
        assert actual.zero_point.shape == actual.scale.shape
        assert bits(listed(actual.zero_point)) == bits(expected.zero)
    assert (actual.offset is None) == (expected.offset is None)
    if actual.offset is not None:
        assert actual.offset.dtype == DTYPES.get(oracle.offset_type, torch.uint8)
        assert actual.offset.shape == actual.scale.shape
        assert bits(listed(actual.offset)) == bits(expected.offset)
    if actual.offset_outer is not None:
        assert actual.offset_outer.dtype == DTYPES[oracle.offset_inner.scale]
        assert bits(listed(actual.offset_outer)) == bits(expected.offset_outer)


def check_case(case: tuple[str, Tensor, int, int]) -> None:
    spelling, x, seed, offset = case
    fmt, oracle, shape, values = parse(spelling), Oracle(spelling), tuple(x.shape), listed(x)
    qparams, expected = R.choose_qparams(x, fmt), oracle.choose(values, shape)
    check_qparams(qparams, expected, spelling, shape)
    steps = oracle.steps(expected, tuple(qparams.scale.shape))
    assert bits(listed(R.step_of(qparams, fmt))) == bits(steps)
    codes = R.quantize(x, qparams, fmt, torch.tensor([seed, offset]))
    assert codes.shape == x.shape
    assert codes.dtype == fmt.element.code_dtype
    assert codes.flatten().tolist() == oracle.quantize(values, shape, expected, seed, offset)
    for name, dtype in DTYPES.items():
        back = R.dequantize(codes, qparams, fmt, dtype)
        assert back.dtype == dtype
        wanted = oracle.dequantize(codes.flatten().tolist(), shape, expected, name)
        assert bits(listed(back)) == bits(wanted), name
        # section 4: no finite input ever gives NaN
        assert not (back.isnan().any() and x.isfinite().all())
    mask = R.in_range(x, qparams, fmt)
    assert mask.flatten().tolist() == oracle.in_range(values, shape, expected)
    assert_round_trip(x, qparams, spelling, oracle, expected)


def assert_round_trip(x, qparams, spelling, oracle, expected) -> None:
    """fake_quantize is dequantize of quantize, in x's dtype; a lone seed means index 0."""
    values, shape = listed(x), tuple(x.shape)
    codes = oracle.quantize(values, shape, expected, seed=5)
    fake = R.fake_quantize(x, qparams, parse(spelling), torch.tensor(5))
    assert fake.dtype == x.dtype
    assert bits(listed(fake)) == bits(oracle.dequantize(codes, shape, expected, NAMES[x.dtype]))


@pytest.mark.slow
@QUICK
@given(cases())
def test_reference(case) -> None:
    event(
        case[0].partition(":")[0][:3]
    )  # how the elements are spread: --hypothesis-show-statistics
    check_case(case)


@pytest.mark.slow
@LONG
@given(cases())
def test_reference_at_length(case) -> None:
    check_case(case)


RAMP = torch.linspace(-3.1, 4.7, 40)
# What Hypothesis finds depends on the machine, so these cases name the edges it should not miss.
EDGES = {
    "a value between 0.7 and 0.75 of the mean": (
        "ternary:tensor:fp32",
        torch.tensor([1.0] * 7 + [0.69]),
    ),
    "each maximum over 127": ("int8:group2:fp32", RAMP),
    "an infinity beside a finite block": (
        "e2m1:group16:e4m3",
        torch.cat([RAMP[:32], torch.tensor([math.inf, 1e3])]),
    ),
    "bfloat16": ("int8:group4:fp32", RAMP.bfloat16()),
    "a quotient near a tie": ("int8:tensor:fp32", RAMP),
    "a zero point": ("uint8:group4:fp32:asym", torch.cos(40 * RAMP)),
    "a range beyond float32": ("uint8:tensor:fp32:asym", torch.tensor([-FLT_MAX, FLT_MAX, 1.0])),
    "the far side of a full range": ("int8:tensor:fp32:full", torch.tensor([-4.0, 3.0, 1.0])),
    "half a level more": ("int4:group4:fp32:half", RAMP),
    "an offset beyond float32, as a code": (
        "int2:token:e8m0/ceil:offset(e2m0r1:tensor:fp32)",
        torch.tensor([[0.0, 0.0], [0.0, FLT_MAX]]),
    ),
    "an offset beyond float32, as an unsigned code": (
        "int2:tensor:e8m0/ceil:offset(uint1:tensor:fp32)",
        torch.tensor([0.0, FLT_MAX]),
    ),
    "an offset whose scale was rounded up beyond float32": (
        "int2:tensor:e8m0/ceil:offset(int6:tensor:fp32)",
        torch.tensor([0.0, FLT_MAX]),
    ),
    "above the largest level": (
        "int8:group4:e8m0:stochastic",
        torch.tensor([1.99, 1.992, 0.1, -1.99]),
    ),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges(edge: str) -> None:
    check_case((*EDGES[edge], 7, 3))


FULL_RANGE = torch.tensor([FLT_MAX, -FLT_MAX, 1.0, 0.0])
INNER = ["e4m3", "e5m2", "(uint5:tensor:fp32)", "(uint7:tensor:fp32)", "(e3m4r16:tensor:fp32)"]
INNER += ["(e6m1r1:tensor:fp32)", "(e7m0r1:tensor:fp32)"]


@pytest.mark.pairs
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("element", ["e4m3", "ternary", "log4", "int2", "int8"])
@pytest.mark.parametrize("x", [torch.zeros(4), -torch.zeros(4), FULL_RANGE], ids=["0", "-0", "max"])
def test_no_finite_input_gives_nan(x: Tensor, element: str, inner: str) -> None:
    """Outer times inner can leave float32 at both ends: a step of 0 or infinity makes NaN."""
    fmt = parse(f"{element}:tensor:{inner}")
    qparams = R.choose_qparams(x, fmt)
    values = R.fake_quantize(x, qparams, fmt)
    assert not values.isnan().any(), R.step_of(qparams, fmt)
    assert not values[x == 0].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    fmt, one = parse("int8"), R.QParams(torch.tensor([1.0]))
    refused = rf"^expected float32, bfloat16 or float16, found {str(dtype)[6:]}: convert it first"
    for use in (lambda x: R.choose_qparams(x, fmt), lambda x: R.quantize(x, one, fmt)):
        with pytest.raises(TypeError, match=refused):
            use(torch.zeros(3).to(dtype))
