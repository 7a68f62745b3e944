# SPDX-License-Identifier: BSD-3-Clause
"""Means of exact sums, and floats of 16 bits, against torch (choose/mean, memory/float/…)."""

import pytest
import torch

from blockscale.core.arithmetic.sums import mean_of
from blockscale.kernels.webgpu.gpu.probe import EXACT
from blockscale.kernels.webgpu.gpu.shader import Shader
from tests.kernels.webgpu.wgsl.inputs import FEW, any_bits, beside
from tests.kernels.webgpu.wgsl.running import ProbeMeans, run, same_bits, words
from tests.support.same import bits

COUNT = 1 << 16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_means_and_floats_of_16_bits(name: str) -> None:
    dtype = getattr(torch, name)
    every = torch.arange(COUNT, dtype=torch.int32).to(torch.int16).view(dtype)
    middles = (every.double() + every.roll(-1).double()).div(2).float()
    x = torch.cat([any_bits(COUNT), beside(torch.cat([middles, every.float()])), FEW])
    made = torch.Generator().manual_seed(3)
    n = len(x)
    total = torch.randint(2**62, (n,), generator=made) >> torch.randint(62, (n,), generator=made)
    count = torch.randint(2**32, (n,), generator=made) >> torch.randint(32, (n,), generator=made)
    field = torch.randint(1, 255, (n,), generator=made)
    half = torch.arange(n) % COUNT
    asked = words(total & 0xFFFFFFFF, total >> 32, count, field, x, half)
    shader = Shader(ProbeMeans(name, EXACT))
    found = run(shader, ("given", "found"), asked, 3)
    assert bool(same_bits(found[:, 0], mean_of(total, count, field.to(torch.int32) - 127)).all())
    narrow = found[:, 1].to(torch.int16).view(dtype)
    assert torch.equal(bits(narrow), bits(x.to(dtype)))
    assert bool(same_bits(found[:, 2], every.float().repeat(-(-n // COUNT))[:n]).all())
