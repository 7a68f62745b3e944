# SPDX-License-Identifier: BSD-3-Clause
"""Every local size gives the same bits, also where it does not divide the texture."""

from math import prod

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.primitives.form import form, given_parts
from blockscale.kernels.webgpu.textures.storage import empty, texture
from blockscale.kernels.webgpu.textures.texels_to_texels import INVOCATIONS, groups, local_size, run


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


LARGE = (1024, 1024, 64)


@pytest.mark.parametrize(
    ("block", "size", "expected"),
    [
        ((8, 1, 1), LARGE, (128, 2, 1)),  # groups of 32: sixteen in a row, of two rows
        ((1, 2, 3), LARGE, (32, 2, 4)),  # blocks of three layers, side by side
        ((4, 16, 1), LARGE, (16, 16, 1)),  # four tiles of 16 x 16
        ((1024, 1, 1), LARGE, (128, 2, 1)),  # parts of rows
        ((1, 1024, 1), LARGE, (16, 16, 1)),  # blocks along columns
        ((1, 1, 1), (3, 5, 100), (4, 8, 8)),  # narrow textures: no invocation lies idle far off
    ],
)
def test_a_block_first_then_its_neighbours(
    block: tuple[int, int, int], size: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    found = local_size(block, size)
    assert found == expected
    assert prod(found) == INVOCATIONS


def test_small_textures_have_small_workgroups() -> None:
    assert local_size((1, 1, 1), (1, 1, 1)) == (1, 1, 1)
    assert local_size((2, 2, 1), (3, 2, 1)) == (4, 2, 1)
