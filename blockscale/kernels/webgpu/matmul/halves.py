# SPDX-License-Identifier: BSD-3-Clause
"""Whether the device widens float16 exactly, subnormals included: asked of it once."""

from functools import cache

import torch

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Shader

_COUNT = 1 << 16


@cache
def widened_exactly() -> bool:
    """Whether all float16 that are numbers become the same float32."""
    patterns = torch.arange(_COUNT, dtype=torch.int32).to(torch.int16)
    result = allocate(4 * _COUNT)
    launch(
        Shader("kernels/widen"),
        {"source": upload(patterns), "result": result},
        {"count": _COUNT // 2},
        _COUNT // 2 // 256,
    )
    found = download(result, (_COUNT,), torch.float32)
    expected = patterns.view(torch.float16).to(torch.float32)
    numbers = ~expected.isnan()
    same = found.view(torch.int32)[numbers] == expected.view(torch.int32)[numbers]
    return bool(same.all()) and bool(found[~numbers].isnan().all())
