"""Which parts of shaders a kernel is made of."""

import torch

from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.kernels.webgpu.primitives.choices import numbers, shader
from blockscale.kernels.webgpu.primitives.form import form


def test_sixteen_bits_are_read_as_halves() -> None:
    assert numbers(torch.float32)["load"] == "whole"
    assert numbers(torch.bfloat16) == {"dtype": "bfloat16", "load": "halves", "store": "halves"}


def test_what_a_kernel_chooses_comes_before_what_a_format_does() -> None:
    made = shader("pack", form("int4"), {"rounding": "own"}, {"ITEM_BITS": 8, "BY_SIGN": False})
    assert dict(made.choices)["rounding"] == "own"
    assert "const BITS: u32 = 4u;" in source(made, ("bytes", "row", "row_bytes"), None).text
