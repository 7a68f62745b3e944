# SPDX-License-Identifier: BSD-3-Clause
"""Every local size gives the same bits, also where it does not divide the texture."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.parts import given_parts
from blockscale.kernels.webgpu.textures.storage import empty, texture
from blockscale.kernels.webgpu.textures.texels_to_texels import groups, run


@pytest.mark.parametrize("local", [(1, 1, 1), (64, 1, 1), (2, 8, 4), (1, 1, 32), (3, 5, 7)])
def test_any_local_size(local: tuple[int, int, int]) -> None:
    f = form("int8:block2x3x5:fp32")
    torch.manual_seed(2)
    x = torch.randn(7, 8, 33)
    parts = reference.choose_qparams(x, f.format)
    made = empty(x.shape, 8, x.shape, torch.int8)
    given = given_parts(f, x.shape, parts.scale, None, None, None, x)
    run("quantize", f, texture(x), made, given, None, local)
    assert torch.equal(made.tensor(), reference.quantize(x, parts, parse(f.format)))


def test_groups_cover_the_texture() -> None:
    assert groups((9, 8, 1), (4, 8, 2)) == (3, 1, 1)
