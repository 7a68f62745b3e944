# SPDX-License-Identifier: BSD-3-Clause
"""Which parts of shaders a kernel is made of."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.gpu.shader import source
from blockscale.kernels.webgpu.primitives import choices
from blockscale.kernels.webgpu.primitives.choices import Numbers, coding, numbers, shader
from blockscale.kernels.webgpu.primitives.choose import Outer
from blockscale.kernels.webgpu.primitives.form import form
from tests.kernels.webgpu.equal import hard, wrong


def test_sixteen_bits_are_read_as_halves() -> None:
    assert numbers(torch.float32).load == "words"
    assert numbers(torch.bfloat16) == Numbers("bfloat16", "halves", "halves")


def test_constants_of_a_kernel_come_before_those_of_a_format() -> None:
    f = form("int4")
    kernel = Outer(coding(f), "plain")
    assert dict(shader(f, kernel, {"BITS": 9}).constants)["BITS"] == 9
    made = shader(f, kernel, {"SCALE_BITS": 16, "POISONS": False})
    assert (made.part, dict(made.constants)["BITS"]) == ("kernels/outer", 4)
    assert "const SCALE_BITS: u32 = 16u;" in source(made, ("outers",), None).text


FORMATS = [
    *("nvfp4", "uint4:group32:bf16:asym"),
    *(pytest.param(fmt, marks=pytest.mark.slow) for fmt in ("int8:group32:fp32", "mxfp4")),
]


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_bits_do_not_depend_on_what_a_device_does_with_floats(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divisions off by ulps, subnormals flushed; and teams of invocations, as on GPUs."""
    monkeypatch.setattr(choices, "HARDWARE", "flushing")
    monkeypatch.setattr("blockscale.kernels.webgpu.primitives.plan._ALONE", 0)
    assert not wrong(hard((4, 96), torch.float32), fmt)


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_right_with_floats_is_computed_with_them(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ARITHMETIC)
    assert not wrong(hard((4, 96), torch.float32), fmt)
