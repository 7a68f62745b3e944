# SPDX-License-Identifier: BSD-3-Clause
"""What is found in blocks, against torch, and outer scales that some or all blocks share."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.block import read_block
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.choose import (
    choose_outer,
    find,
    of_means,
    statistic,
    stored,
    stored_bits,
    team_of,
)
from blockscale.kernels.webgpu.primitives.form import form, geometry
from tests.support.same import same


@pytest.mark.parametrize(
    "fmt", ["nvfp4", "e2m1:group16:(e4m3:token:bf16)", "e2m1:group16:(e4m3:group2:fp32)"]
)
def test_outer_scales_without_poisoned_blocks(fmt: str) -> None:
    x = torch.randn(3, 80)
    x[1, :20] = torch.nan
    f = form(fmt)
    expected = reference.choose_qparams(x, parse(fmt)).outer
    assert expected is not None
    for _ in range(3):  # the pool's memory has other content each time
        outer = choose_outer(f, upload(x), x.dtype, (3, 80))
        assert same(download(outer, tuple(expected.shape), expected.dtype), expected)


def test_how_scales_are_stored() -> None:
    assert stored_bits(form("uint4:group8:bf16:asym")) == (16, 32, 32)
    assert stored_bits(form("mxfp4")) == (8, 32, 32)
    assert [stored(d) for d in (torch.float16, torch.uint8, None)] == ["float16", "plain", "plain"]


@pytest.mark.parametrize(("block", "dim"), [("channel1", 0), ("token", 1)])
def test_the_largest_magnitude_of_a_block(block: str, dim: int) -> None:
    x = torch.randn(700, 300)
    x[3, 5] = torch.inf  # this scale cannot say so
    at = geometry((700, 300), read_block(block))
    found = find(form(f"int8:{block}:fp32"), upload(x), x.dtype, at)["work"]
    expected = torch.where(x.isfinite(), x, 0).abs().amax(dim)
    assert torch.equal(download(found, (at.blocks,), torch.float32), expected)


def test_sums_of_whole_numbers_are_exact_beyond_32_bits() -> None:
    x = torch.ones(9000)
    at = geometry((9000,), read_block("tensor"))
    low, high, count = download(
        find(form("binary:tensor:fp32"), upload(x), x.dtype, at)["totals"], (3,), torch.int32
    ).tolist()
    assert (low % 2**32 + 2**32 * high, count) == (9000 * 2**30, 9000)


def test_each_format_has_its_statistic() -> None:
    kinds = ("int8", "uint8:tensor:fp32", "uint8", "int4:group8:fp32:offset", "binary")
    assert [statistic(form(kind)) for kind in kinds] == [
        "magnitude", "high", "both", "bare", "magnitude",
    ]  # fmt: skip
    assert [of_means(form(kind)) for kind in kinds] == [False] * 4 + [True]
    assert [team_of(n) for n in (1, 2, 3, 32, 5000)] == [1, 2, 4, 32, 256]
