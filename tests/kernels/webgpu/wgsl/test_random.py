"""Random numbers of indices against the reference (random/philox.wgsl)."""

import torch

from blockscale.core.arithmetic import philox
from blockscale.kernels.webgpu.gpu.shader import Shader
from tests.kernels.webgpu.wgsl.running import run, words


def test_philox() -> None:
    for seed, first in ((0, 0), (7, 3), (-5, 2**32 - 9), (2**62 + 12345, 2**40 + 1)):
        index = torch.arange(1000, dtype=torch.int64) + first
        key = torch.tensor(seed)
        asked = words(index & 0xFFFFFFFF, index >> 32, key & 0xFFFFFFFF, key >> 32)
        shader = Shader("probe/random", (("random", "philox"),))
        found = run(shader, ("asked", "drawn"), asked, 1)[:, 0]
        given = torch.tensor([seed, first])
        expected = philox.uniform(torch.Size([1000]), given, torch.device("cpu"))
        assert torch.equal(found.float() * 2.0**-24, expected), seed
