# SPDX-License-Identifier: BSD-3-Clause
"""Outer scales that one, some or all blocks share, as they are stored."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.choose import choose_outer, stored, stored_bits
from blockscale.kernels.webgpu.primitives.form import form
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
