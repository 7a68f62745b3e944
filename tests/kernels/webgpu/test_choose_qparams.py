# SPDX-License-Identifier: BSD-3-Clause
"""Scales of blocks that no workgroup holds, and of those that hold nothing finite."""

import pytest
import torch

import blockscale as bs
from blockscale.ops import primitives as P
from tests.kernels.webgpu.equal import hard
from tests.support.same import same


def differing(x: torch.Tensor, fmt: str) -> list[int]:
    with bs.use("reference"):
        expected = P.choose_qparams(x, fmt)
    with bs.use("webgpu"):
        found = P.choose_qparams(x, fmt)
    return [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not same(a, b)]


@pytest.mark.parametrize(
    "fmt", ["int8:tensor:fp32", "uint8:channel1:bf16:asym", "ternary:tensor:fp32"]
)
def test_large_blocks_are_merged_from_slices(fmt: str) -> None:
    x = hard((1200, 300), torch.float32, finite=True).clamp(-1e3, 1e3)
    assert not differing(x, fmt)


@pytest.mark.parametrize("fmt", ["int8:group4:fp32", "mxfp8", "uint4:group8:fp32:offset"])
@pytest.mark.parametrize("value", [0.0, -0.0, torch.inf, torch.nan, 1e-45, -3.4e38])
def test_blocks_of_one_number(fmt: str, value: float) -> None:
    assert not differing(torch.full((2, 32), value), fmt)
