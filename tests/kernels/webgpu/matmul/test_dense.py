# SPDX-License-Identifier: BSD-3-Clause
"""Products of float views, against float64."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.matmul.dense import dense
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor

ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def view(x: torch.Tensor, turned: bool) -> WebGPUTensor:
    """The same numbers on the GPU behind three others, perhaps with rows and columns exchanged."""
    stored = x.mT.contiguous() if turned else x
    whole = torch.cat([torch.full((3,), torch.nan, dtype=x.dtype), stored.reshape(-1)])
    stride = stored.mT.stride() if turned else stored.stride()
    return WebGPUTensor(upload(whole), tuple(x.shape), x.dtype, stride, 3)


@pytest.mark.parametrize("shape", [(1, 5, 33, 7), (3, 70, 65, 66), (2, 1, 8, 300)], ids=str)
def test_views_of_any_strides(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batches, m, k, n = shape
    for i, dtype in enumerate(ROUNDS):
        a, b = torch.randn(batches, m, k).to(dtype), torch.randn(batches, k, n).to(dtype)
        memory = dense(view(a, i == 1), view(b, i != 1), dtype)
        found = download(memory, (batches, m, n), dtype).double()
        exact = a.double() @ b.double()
        bound = 64 * 2.0**-24 * (a.double().abs() @ b.double().abs())
        assert ((found - exact).abs() <= bound + ROUNDS[dtype] * (exact.abs() + bound)).all()
