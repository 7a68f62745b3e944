# SPDX-License-Identifier: BSD-3-Clause
"""The shaders of products: their text is whole for every choice."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.kernels.webgpu.matmul.plan import plan
from blockscale.kernels.webgpu.matmul.shaders import cast_shader, product_shader, storage
from blockscale.kernels.webgpu.matmul.weight import right_of
from tests.kernels.webgpu.matmul.exact import stored


@pytest.mark.parametrize("fmt", ["int4", "nvfp4", "nf4", "uint4", "mxfp6"])
@pytest.mark.parametrize("rows", [1, 100])
def test_all_parts_are_there(fmt: str, rows: int) -> None:
    right = right_of(stored(torch.randn(2, 128), fmt))
    made = plan(1, rows, 2, 128, right.chunk, right.chunk_quads)
    shader = product_shader(
        made, right.roles, right.constants, torch.float16, torch.float32, torch.float16
    )
    found = source(shader, ("rows",), None)
    assert {"x", "y", "codes", "bias"} <= set(found.bindings)
    assert "fn main" in found.text


def test_how_numbers_are_stored() -> None:
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    assert [storage(kind) for kind in kinds] == [0, 1, 2]
    assert dict(cast_shader(torch.float16).constants) == {"RESULT_STORAGE": 1}
