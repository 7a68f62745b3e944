# SPDX-License-Identifier: BSD-3-Clause
"""The extremes of blocks, parts of which several programs see, are those that torch finds."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.kernels.cuda import primitives
from blockscale.kernels.cuda.primitives.plan import form
from tests.support.cuda_equal import DEVICE, DTYPES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
INFINITY = 0x7F800000


@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", ["int8:token:fp32:full", "uint8:channel1:e8m0/ceil:asym"])
def test_extremes_of_parts(fmt: str, dtype: torch.dtype) -> None:
    """Of what is finite; the largest magnitude tells whether something is not."""
    x = torch.randn(3, 40).to(dtype)
    x[0, 3], x[1, 7], x[2] = torch.nan, -torch.inf, -x[2].abs()
    work = primitives._merged(form(str(parse(fmt))), x.to(DEVICE)).cpu()
    blocks = x.float() if "token" in fmt else x.float().t()
    finite = torch.where(blocks.isfinite(), blocks, 0.0)
    high, low, top = work
    assert torch.equal(high.view(torch.float32), finite.amax(1).clamp(min=0))
    assert torch.equal(low.view(torch.float32), (-finite).amax(1).clamp(min=0))
    poisoned = ~blocks.isfinite().all(1)
    if not form(str(parse(fmt))).spec.poisons:  # then nobody asks
        assert not top.any()
        return
    assert torch.equal(top >= INFINITY, poisoned)
    largest = finite.abs().amax(1)
    assert torch.equal(top.view(torch.float32)[~poisoned], largest[~poisoned])
