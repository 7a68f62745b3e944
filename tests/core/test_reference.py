# SPDX-License-Identifier: BSD-3-Clause
"""The reference: what it takes and refuses. test_against_rationals.py has its numbers."""

import itertools
import math

import pytest
import torch

from blockscale.core import reference as R
from blockscale.core.parse import parse

X = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.complex64])
def test_dtypes_that_float32_cannot_hold(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=f"found {name}: convert it first, e.g. x.float"):
        R.choose_qparams(X.to(dtype), parse("int8"))


@pytest.mark.parametrize("dtype", R.FLOATS)
def test_the_dtypes_it_takes(dtype: torch.dtype) -> None:
    assert R.widen(X.to(dtype)).dtype == torch.float32
    fmt = parse("int8:token:fp32")
    x = X.to(dtype)
    found = R.fake_quantize(x, R.choose_qparams(x, fmt), fmt)
    assert found.dtype == dtype


def test_stochastic_rounding_needs_a_seed() -> None:
    fmt = parse("int8:token:fp32:stochastic")
    qparams = R.choose_qparams(X, fmt)
    with pytest.raises(ValueError, match=r"int8:token:fp32:stochastic: stochastic .* needs a seed"):
        R.quantize(X, qparams, fmt)
    one = R.quantize(X, qparams, fmt, torch.tensor(3))
    assert torch.equal(one, R.quantize(X, qparams, fmt, torch.tensor([3, 0])))


@pytest.mark.parametrize(
    "spelling", ["int8", "uint8", "e2m1:tensor:e8m0/floor", "e4m3:tensor:e4m3"]
)
def test_ranges_merge(spelling: str) -> None:
    """Those of the whole are made of those of its parts; a NaN stays out of them, but is told."""
    fmt = parse(spelling)
    odd = torch.randn(3, 4)
    odd[1, 2] = math.nan
    for parts in ([torch.randn(3, 4), -torch.rand(3, 4)], [torch.randn(3, 4), odd]):
        whole, each = R.ranges(torch.cat(parts), fmt), [R.ranges(part, fmt) for part in parts]
        assert torch.equal(whole.low, torch.stack([r.low for r in each]).amin(0))
        assert torch.equal(whole.high, torch.stack([r.high for r in each]).amax(0))
        assert torch.equal(whole.poisoned, torch.stack([r.poisoned for r in each]).any(0))
        assert bool(whole.poisoned) == (parts[1] is odd and fmt.scale.poisons)


def test_a_gradient_passes_where_nothing_saturates() -> None:
    fmt = parse("int8:tensor:fp32")
    qparams = R.QParams(torch.tensor([0.5]))
    x = torch.tensor([0.0, 63.5, 63.7, 63.75, 64.0, -63.5, -64.0, math.nan, math.inf])
    expected = [True, True, True, False, False, True, False, False, False]  # 127.5 rounds to 128
    assert R.in_range(x, qparams, fmt).tolist() == expected


@pytest.mark.parametrize(
    ("spelling", "dtype"), list(itertools.product(["int4:group2:fp32", "mxfp4", "nvfp4"], R.FLOATS))
)
def test_a_second_round_trip_changes_nothing_more(spelling: str, dtype: torch.dtype) -> None:
    """With the same scales: values of codes are the values of those codes."""
    fmt, x = parse(spelling), torch.randn(4, 32).to(dtype)
    qparams = R.choose_qparams(x, fmt)
    once = R.fake_quantize(x.float(), qparams, fmt)
    assert torch.equal(R.fake_quantize(once, qparams, fmt), once)


@pytest.mark.parametrize("option", ["asym", "asym(fp16)", "asym(fp32)"])
def test_nan_passes_no_gradient_whatever_the_zero_point(option: str) -> None:
    """Though a zero point that is no integer makes a code of it as of 0."""
    fmt = parse(f"uint8:tensor:fp32:{option}")
    x = torch.tensor([-1.0, 0.5, torch.nan, 3.0, torch.inf])
    qparams = R.choose_qparams(x, fmt)
    assert R.in_range(x, qparams, fmt).tolist() == [True, True, False, True, False]
    zero = R.quantize(torch.zeros(1), qparams, fmt)
    assert R.quantize(x, qparams, fmt)[2] == zero[0]
