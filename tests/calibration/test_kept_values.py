# SPDX-License-Identifier: BSD-3-Clause
"""Values kept as they are, then a histogram: what a format does to them."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.kept_values import CAPACITY, KeptValues
from tests.calibration.observers.seen import FORMATS, draw


def of(fmt: str, *batches: torch.Tensor) -> KeptValues:
    values = KeptValues(fmt)
    for x in batches:
        values.observe(x)
    return values


def measured(x: torch.Tensor, fmt: str) -> float:
    """The error of the scales that the format itself chooses, element by element."""
    plain = str(bs.parse(fmt).deterministic)
    return float((bs.fake_quantize(x, plain).double() - x).square().mean())


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_error_is_exact_while_everything_is_kept(fmt: str) -> None:
    x = draw(24, 48) * torch.linspace(0.1, 9, 48)
    values = of(fmt, x[:8], x[8:]) if "group" not in fmt else of(fmt, x)
    assert values.exact
    low, high, _ = bs.core.reference.ranges(x, values.format)
    points = values.points()
    assert points.mass.sum() == x.numel()
    # a two-level scale is multiplied by reciprocals in another order: the last bit may differ
    found = points.mean_squared_error(low, high, values.format)
    assert found == pytest.approx(measured(x, fmt), rel=1e-5 if "e4m3" in fmt else 1e-12)


def test_blocks_of_unequal_numbers() -> None:
    x = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, torch.nan, 4.0], [7.0, torch.nan, 5.0]])
    points = of("int8:channel-1:fp32", x).points()
    assert points.mass.sum(1).tolist() == [2, 0, 3]
    assert points.value[points.mass > 0].tolist() == [1, 7, 3, 4, 5]


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint4:channel-1:fp32:asym"])
def test_the_histogram_is_off_by_half_a_bin(fmt: str) -> None:
    """The root mean square is a distance to the codes: it moves no farther than the values do."""
    x = draw(CAPACITY // 8 + 1, 8) ** 3
    values = of(fmt, x)
    assert not values.exact
    assert values.kept.numel() == 0
    low, high, _ = bs.core.reference.ranges(x, values.format)
    found = values.points().mean_squared_error(low, high, values.format) ** 0.5
    off = (x.double().square().mean() * 2.0**-18 + (x.abs().max() * 2.0**-14) ** 2).sqrt()
    assert abs(found - measured(x, fmt) ** 0.5) <= off


def test_what_is_kept_is_given_up_at_once() -> None:
    values = of("int8:tensor:fp32", draw(CAPACITY))
    assert values.kept.numel() == values.owner.numel() == CAPACITY
    other = of("int8:tensor:fp32", draw(1))
    assert values.merge_(other).kept.numel() == 0
    assert not values.exact
