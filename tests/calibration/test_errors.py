# SPDX-License-Identifier: BSD-3-Clause
"""Deviations and roundings, added up piece by piece."""

import copy
import math

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.comparison import compare
from tests.calibration.pairs import X, pair


def test_saturated_underflowed_and_worst() -> None:
    """By hand: a weight of two blocks, an input whose static scale is 1."""
    layer = nn.Linear(8, 1, bias=False)
    layer.weight.data = torch.tensor([[7.0, 0.4, -0.4, 0, 0, 0, 0, 0.0], [0.7] * 4 + [0.7] * 4])[:1]
    layer.weight.data[0, 4:] = torch.tensor([70.0, 3.0, 20.0, 4.9])
    model = nn.Sequential(layer)
    other = copy.deepcopy(model)
    recipe = bs.Recipe("int4:group4:fp32", input="int8")
    bs.quantize_(other, recipe, input_scales={"0": torch.ones(1, 1)})
    x = torch.tensor([[200.0, -300.0, 0.2, 0.0, 1.0, 2.0, 3.5, 4.0]])
    row = compare(model, other, [x])["0"]
    # steps 1 and 10: 0.4, -0.4, 3.0 and 4.9 of seven nonzero weights become 0; none is too large
    assert row.weight.saturated == 0
    assert row.weight.underflowed == pytest.approx(100 * 4 / 7)
    assert [place.index for place in row.weight.worst] == [(0, 1), (0, 0)]
    block = math.sqrt((3.0**2 + 4.9**2) / 4)
    assert row.weight.worst[0].rms_error == pytest.approx(block, rel=1e-6)
    assert row.weight.worst[1].rms_error == pytest.approx(math.sqrt(2 * 0.16 / 4), rel=1e-6)
    # 200 and -300 saturate at 127; of seven nonzero inputs 0.2 becomes 0
    assert row.input.saturated == pytest.approx(100 * 2 / 8)
    assert row.input.underflowed == pytest.approx(100 / 7)
    assert [place.index for place in row.input.worst] == [(1,), (0,), (6,)]
    assert row.input.worst[0].rms_error == 173


def test_partial_blocks_do_not_count_padding() -> None:
    layer = nn.Linear(5, 1, bias=False)
    layer.weight.data = torch.tensor([[7.0, 0, 0, 0, 0.1]])
    model = nn.Sequential(layer)
    other = copy.deepcopy(model)
    bs.quantize_(other, "int4:group4:pow2/floor", strict=True)
    worst = compare(model, other, [torch.randn(2, 5)])["0"].weight.worst
    expected = float((layer.weight.detach() - other[0].dequantize_weight())[0, 4].abs())
    assert [place.index for place in worst] == ([(0, 1)] if expected else [])
    assert [place.rms_error for place in worst] == pytest.approx([expected] * bool(expected))


def test_nan_is_counted_and_left_out() -> None:
    model, other = pair("int8", nn.Linear(32, 4))
    model[0].bias.data[1] = torch.nan
    other[0].bias.data = torch.tensor([0, 0, torch.inf, 0])  # and on the other side
    row = compare(model, other, X)["0"]
    assert row.isolated.odd == 36
    model[0].bias.data[2] = torch.inf  # the same infinity on both is no error
    assert compare(model, other, X)["0"].isolated.odd == 18
    assert math.isfinite(row.isolated.sqnr)
    assert row.isolated.sqnr > 20
    assert "0: isolated: 18 elements are NaN or infinite on one side only" in str(
        compare(model, other, X)
    )
