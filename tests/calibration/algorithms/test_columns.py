# SPDX-License-Identifier: BSD-3-Clause
"""Column after column under scales of its own gives what the whole gives under them."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.block_scales import spread
from blockscale.calibration.algorithms.columns import Columns
from blockscale.calibration.algorithms.mse import best_scales, search

FORMATS = [
    "int4:group8:fp32", "uint4:group8:fp32:asym", "mxfp4", "nvfp4", "int4:channel1:fp32",
    "int4:tensor:fp16", "int4:tile4x8:bf16", "int4:group4@0:fp32", "uint4:group8:e4m3:asym",
    "ternary:group8:fp32", "int4:token:fp32:full",
]  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_fed_back_is_plain_rounding(fmt: str) -> None:
    weight, form = torch.randn(10, 20), bs.parse(fmt)
    plain, columns = bs.quantize(weight, fmt), Columns(weight, form, None)
    columns.choose_all(weight)
    for i in range(0, 20, 7):
        some = torch.arange(i, min(i + 7, 20)).flip(0)  # in any order
        columns.round(some, weight.T[some].double())
    values, q = columns.values.T, columns.finished()
    assert torch.equal(q.packed, plain.packed) and torch.equal(q.qparams.scale, plain.qparams.scale)
    assert torch.equal(values, plain.dequantize())


@pytest.mark.parametrize("fmt", FORMATS)
def test_scales_of_least_error_are_those_of_the_search(fmt: str) -> None:
    weight, form = torch.randn(10, 20), bs.parse(fmt)
    importance = torch.rand(20, dtype=torch.float64) + 0.1
    columns = Columns(weight, form, importance)
    columns.choose_all(weight)
    columns.round(slice(None), weight.T.double())
    found = columns.finished()
    assert torch.equal(found.qparams.scale, best_scales(weight, form, importance).scale)
    single, _, outer = spread(weight, form)
    coarse = Columns(weight, form, importance, spacing=4)
    coarse.choose(0, weight[:, columns.block_of == 0])
    own = None if outer is None else outer[:, :1]
    part = weight[:, columns.block_of == 0], single, own, importance[columns.block_of == 0]
    assert torch.equal(coarse.qparams_of(0).scale, search(*part, spacing=4).scale)


@pytest.mark.parametrize("fmt", [*FORMATS, "int4:group8:fp32:signed", "book3:group8:fp32"])
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of learned tables
def test_scales_that_are_taken_and_changed(fmt: str) -> None:
    weight, form = torch.randn(10, 20), bs.parse(fmt)
    plain, columns = bs.quantize(weight, fmt), Columns(weight, form, None)
    columns.take(plain.qparams)
    assert columns.chosen == [True] * len(columns.chosen)
    columns.round(slice(None), weight.T.double())
    assert torch.equal(columns.finished().packed, plain.packed)
    if form.scale.dtype == torch.float32:
        doubled = plain.qparams._replace(scale=plain.qparams.scale * 2)
        columns.take(doubled)
        expected = bs.quantize(weight, fmt).codes
        assert torch.equal(columns.revalue(slice(2, 9)), columns.values[2:9])
        q = columns.finished()
        assert torch.equal(q.codes, expected)
        assert torch.equal(q.dequantize()[:, 2:9], columns.values[2:9].T)


def test_a_block_is_chosen_when_it_is_asked_for() -> None:
    weight, form = torch.randn(4, 20), bs.parse("int4:group8:fp32")
    columns = Columns(weight, form, None)
    assert columns.block_of.tolist() == [0] * 8 + [1] * 8 + [2] * 4
    columns.choose(1, 3 * weight[:, 8:16])
    assert columns.chosen == [False, True, False]
    tripled = bs.quantize(3 * weight[:, 8:16], form)
    columns.choose(0, weight[:, :8])
    columns.choose(2, weight[:, 16:])
    assert torch.equal(columns.finished().qparams.scale[:, 1:2], tripled.qparams.scale)
