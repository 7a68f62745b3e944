# SPDX-License-Identifier: BSD-3-Clause
"""Which scales saturate: those whose quotient or power cannot be stored."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.layers import saturation
from blockscale.layers.saturation import not_finite, saturates


@pytest.mark.parametrize(
    ("spelling", "low", "high", "found"),
    [
        ("int8:tensor:fp32", 0.0, 0.0, False),
        ("e2m1:group16:ue5m3", 0.0, 6 * 2.0**-17, False),
        ("e2m1:group16:ue5m3", 0.0, 6 * 2.0**-18, True),
        ("e2m1:group16:ue5m3", -6 * 114688.0, 0.0, False),
        ("e2m1:group16:ue5m3", -7 * 114688.0, 0.0, True),
        ("int8:tensor:fp32", 0.0, 2.0**-149, True),  # its scale would be 2^-126 at least
        ("int8:tensor:fp32", -3e38, 3e38, False),
        ("int8:tensor:fp16", 0.0, 127 * 65504.0, False),
        ("int8:tensor:fp16", 0.0, 127 * 65536.0, True),
        ("int8:tensor:e8m0/floor", 0.0, 2.0**-149, True),
        ("int8:tensor:e8m0/floor", 0.0, 1.0, False),
        ("e2m1:tensor:pow2/nearest", 0.0, 2.0**-149, True),
        ("e2m1:tensor:e4m3", 0.0, 6.0, False),
        ("uint8:tensor:fp32:asym", -3e38, 3e38, False),  # the range is cut at FLT_MAX
    ],
)
def test_which_scales_cannot_be_stored(spelling: str, low: float, high: float, found: bool) -> None:
    answer = saturates(torch.tensor([low]), torch.tensor([high]), parse(spelling))
    assert answer.tolist() == [found]


@pytest.mark.parametrize(
    "spelling", ["mxfp4", "int8_channel", "int8", "nvfp4", "int8:channel1:fp32"]
)
def test_ranges_of_slabs_are_those_of_the_whole(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fmt, x = parse(spelling), torch.randn(70, 48, generator=torch.Generator().manual_seed(0))
    low, high, _ = reference.ranges(x, fmt)
    monkeypatch.setattr(saturation, "_SLAB", 100)
    found = saturation.block_ranges(x, fmt)
    assert torch.equal(found[0], low)
    assert torch.equal(found[1], high)


def test_all_values_that_are_not_finite_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "_SLAB", 10)
    x = torch.zeros(7, 8)
    x[0, 0], x[3, 5], x[6, 7] = float("nan"), float("inf"), -float("inf")
    assert saturation.not_finite(x) == 3
    assert saturation.not_finite(torch.tensor(float("nan"))) == 1


@pytest.mark.parametrize(("value", "odd"), [(1.0, 0), (torch.nan, 12), (-torch.inf, 12)])
def test_one_number_in_all_places(value: float, odd: int) -> None:
    assert not_finite(torch.full((1, 1), value).expand(3, 4)) == odd
    assert not_finite(torch.full((1,), value).expand(0)) == 0
    assert not_finite(torch.tensor(value)) == odd // 12
