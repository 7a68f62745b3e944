# SPDX-License-Identifier: BSD-3-Clause
"""Blocks of a weight, one by itself, a part of the weight at a time."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms import block_scales
from blockscale.calibration.algorithms.mse import best_scales
from blockscale.core.blocks import Blocks


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt", ["int4:group8:fp32", "mxfp4", "int4:group8@0:fp32", "int4:channel1:fp32"]
)
def test_pieces_change_nothing(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, form, weights = torch.randn(37, 50), bs.parse(fmt), torch.rand(50, dtype=torch.float64)
    whole = best_scales(x, form, weights)
    monkeypatch.setattr(block_scales, "_PART", 64)
    parts = best_scales(x, form, weights)
    assert torch.equal(whole.scale, parts.scale)


@pytest.mark.parametrize(
    "block", ["tensor", "token", "channel0", "channel1", "group5", "group4@0", "tile3x4"]
)
def test_block_sums(block: str) -> None:
    x = torch.randn(7, 11).abs()
    form = bs.parse(f"int4:{block}:fp32")
    count = block_scales.block_sums(torch.ones_like(x), form.block)
    mean = block_scales.block_sums(x, form.block) / count
    assert count.sum() == 77
    torch.testing.assert_close(mean, Blocks(x, form.block).mean_magnitude())
