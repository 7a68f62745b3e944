# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers of indices against the reference (rounding/random/philox)."""

import pytest
import torch

from blockscale.core.arithmetic import philox
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import DeviceArithmetic
from blockscale.kernels.webgpu.gpu.shader import Shader
from tests.kernels.webgpu.wgsl.running import ProbeRandom, run, words


@pytest.mark.parametrize("wide", ["words", "native"])
def test_philox(wide: str) -> None:
    if wide == "native" and "shader-int64" not in gpu().features:
        pytest.skip("the device has no 64-bit integers")
    for seed, first in ((0, 0), (7, 3), (-5, 2**32 - 9), (2**62 + 12345, 2**40 + 1)):
        index = torch.arange(1000, dtype=torch.int64) + first
        key = torch.tensor(seed)
        asked = words(index & 0xFFFFFFFF, index >> 32, key & 0xFFFFFFFF, key >> 32)
        shader = Shader(ProbeRandom("philox", DeviceArithmetic(wide=wide)))
        found = run(shader, ("asked", "drawn"), asked, 8)
        given = torch.tensor([seed, first])
        expected = philox.uniform(torch.Size([1003]), given, torch.device("cpu"))
        assert torch.equal(found[:, 4].float() * 2.0**-24, expected[:1000]), seed
        for i in range(4):
            assert torch.equal(found[:, i].float() * 2.0**-24, expected[i : i + 1000]), (seed, i)
