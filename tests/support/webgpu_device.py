# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/kernels/webgpu/gpu/test_device.py: `copy`."""

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.shader import Shader

COPY = Shader("kernels/copies/words")


def copy(source, result, words=64):
    launch(COPY, {"source": source, "result": result}, {"count": words // 4}, 1)
