# SPDX-License-Identifier: BSD-3-Clause
"""What a format makes of values under candidate ranges is what the reference makes of them."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.candidate_ranges import pinned, round_trips
from blockscale.core import reference
from blockscale.core.blocks import Blocks

FORMATS = [
    "int4:token:fp32", "uint4:token:fp16:asym", "e2m1:token:e8m0/floor", "int8:token:pow2/ceil",
    "int4:token:fp32:full", "log4:token:bf16", "int8:token:fp32:up",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_candidate_is_the_reference_s_round_trip(name: str) -> None:
    x, fmt = torch.randn(5, 12), bs.parse(name)
    low, high = Blocks(x, fmt.block).range()
    fractions = torch.tensor([1.0, 0.5, 2.0, 0.0])[:, None, None]
    found = round_trips(x, fractions * low, fractions * high, fmt)
    assert found.shape == (4, 5, 12)
    for each, fraction in zip(found, fractions, strict=True):
        nowhere = torch.zeros_like(low, dtype=torch.bool)
        qparams = reference.qparams_from_range(fraction * low, fraction * high, nowhere, fmt)
        assert torch.equal(each, reference.fake_quantize(x, qparams, fmt))


def test_the_outer_scale_stays_where_one_block_alone_sets_it() -> None:
    fmt = bs.parse("e2m1:group4:e4m3")
    x = torch.tensor([[1.0, 0, 0, 0, -6.0, 0, 0, 0, 3.0, 0, 0, 0]])
    low, high = Blocks(x, fmt.block).range()
    assert pinned(low, high, fmt).tolist() == [[False, True, False]]
    outer = reference.choose_qparams(x, fmt).outer
    shrunk = torch.where(pinned(low, high, fmt), 1.0, 0.1)
    nowhere = torch.zeros_like(low, dtype=torch.bool)
    again = reference.qparams_from_range(low * shrunk, high * shrunk, nowhere, fmt)
    assert torch.equal(again.outer, outer)


def test_nothing_is_pinned_without_an_outer_scale() -> None:
    x = torch.randn(2, 8)
    for name in ("int4:group4:fp32", "mxfp4", "e2m1:tensor:e4m3"):  # or where one block is alone
        fmt = bs.parse(name)
        assert not bool(pinned(*Blocks(x, fmt.block).range(), fmt).any())
