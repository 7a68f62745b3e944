# SPDX-License-Identifier: BSD-3-Clause
"""Which parts of shaders a kernel is made of."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.kernels.webgpu.primitives import choices
from blockscale.kernels.webgpu.primitives.choices import numbers, shader
from blockscale.kernels.webgpu.primitives.form import form
from tests.kernels.webgpu.equal import hard, wrong


def test_sixteen_bits_are_read_as_halves() -> None:
    assert numbers(torch.float32)["load"] == "words"
    assert numbers(torch.bfloat16) == {"dtype": "bfloat16", "load": "halves", "store": "halves"}


def test_what_a_kernel_chooses_comes_before_what_a_format_does() -> None:
    made = shader("pack", form("int4"), {"rounding": "own"}, {"ITEM_BITS": 8, "BY_SIGN": False})
    assert dict(made.choices)["rounding"] == "own"
    assert "const BITS: u32 = 4u;" in source(made, ("bytes", "row", "row_bytes"), None).text


FORMATS = [
    *("nvfp4", "uint4:group32:bf16:asym"),
    *(pytest.param(fmt, marks=pytest.mark.slow) for fmt in ("int8:group32:fp32", "mxfp4")),
]


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_bits_do_not_depend_on_what_a_device_does_with_floats(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divisions off by ulps, subnormals flushed; and teams of invocations, as on GPUs."""
    monkeypatch.setattr(choices, "on_device", lambda features: {"hardware": "flushing"})
    monkeypatch.setattr("blockscale.kernels.webgpu.primitives.one_pass._ALONE", 0)
    assert not wrong(hard((4, 96), torch.float32), fmt)


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_right_with_floats_is_computed_with_them(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ARITHMETIC)
    assert not wrong(hard((4, 96), torch.float32), fmt)
