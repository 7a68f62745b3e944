# SPDX-License-Identifier: BSD-3-Clause
"""Textures as memory: their sizes, and what the device refuses."""

import pytest

from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.texels import AXIS, texels


@pytest.mark.parametrize(("bits", "nbytes"), [(8, 96), (16, 192), (32, 384)])
def test_bytes(bits: int, nbytes: int) -> None:
    made = texels((2, 3, 4), bits)
    assert made.nbytes == nbytes
    assert made.texture.format == f"rgba{bits}uint"
    assert made.texture.size == (2, 3, 4)


def test_the_error_names_device_and_limit() -> None:
    size = (1, gpu().limits[AXIS] + 1, 1)
    with pytest.raises(GpuError, match=AXIS) as error:
        texels(size, 8)
    assert gpu().name in str(error.value)
