# SPDX-License-Identifier: BSD-3-Clause
"""Rows alone and inside batches on a GPU, by the bit. Needs CUDA: `pytest -m gpu tests/gpu`.

The same on the CPU: tests/ops/test_batch_rows.py; on WebGPU: tests/kernels/webgpu/test_linear.py.
"""

import pytest
import torch

import blockscale as bs
from tests.support.batch_rows import PAIRS, differing, layer, rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("weight", "input"), PAIRS)
@pytest.mark.parametrize("k", [192, 4096])
def test_rows(weight: str, input: str | None, dtype: torch.dtype, k: int) -> None:
    model, x = layer(weight, input, 320, k).cuda(), rows(512, k).cuda()
    if dtype is torch.float16:
        x = x.clamp(-1000, 1000)
    with bs.use("cuda", batch_invariant=True):
        assert differing(model, x.to(dtype), range(0, 512, 73)) == []


def test_images() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1))
    bs.quantize_(model, bs.Recipe("int8_channel"))
    model, x = model.cuda(), torch.randn(7, 16, 20, 20, device="cuda")
    with torch.no_grad(), bs.use(batch_invariant=True):
        y = model(x)
        assert all(torch.equal(model(x[i : i + 1]), y[i : i + 1]) for i in range(7))
