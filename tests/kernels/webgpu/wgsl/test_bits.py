# SPDX-License-Identifier: BSD-3-Clause
"""Arithmetic on the bits of floats against the CPU's, IEEE 754's (wgsl/arithmetic.wgsl)."""

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.probe import DeviceArithmetic, ProbeArithmetic
from blockscale.kernels.webgpu.gpu.shader import Shader
from tests.kernels.webgpu.wgsl.inputs import FEW, any_bits, beside
from tests.kernels.webgpu.wgsl.running import run, same_bits, words

COUNT = 1 << 18


def pairs() -> tuple[Tensor, Tensor]:
    a, b = any_bits(COUNT, 1), any_bits(COUNT, 2)
    near = a * (1 + 2.0**-20 * torch.randn(COUNT))  # sums that cancel, quotients near 1
    few = torch.cat([FEW, any_bits(48, 3)])
    return (
        torch.cat([a, a, few.repeat_interleave(len(few))]),
        torch.cat([b, -near, few.repeat(len(few))]),
    )


def arithmetic(a: Tensor, b: Tensor, hardware: str) -> Tensor:
    return run(
        Shader(ProbeArithmetic(DeviceArithmetic(hardware=hardware))),
        ("pairs", "results"),
        words(a, b),
        9,
    )


def test_every_operation_is_exact(either: str) -> None:
    a, b = pairs()
    found = arithmetic(a, b, either)
    whole = a.view(torch.int32).to(torch.float32)
    assert bool(same_bits(found[:, 8], (a.view(torch.int32) >> 8).float()).all())
    for column, expected in enumerate((a * b, a / b, a + b, a - b, whole, a / b)):
        wrong = ~same_bits(found[:, column], expected)
        at = int(wrong.nonzero()[0]) if wrong.any() else 0
        assert not wrong.any(), (column, int(wrong.sum()), a[at], b[at], expected[at])


def test_quotients_beside_powers_of_two_and_halves(either: str) -> None:
    """Where a product with the reciprocal lands on the other side of a power of two."""
    made = torch.Generator().manual_seed(5)
    b = torch.rand(1 << 15, generator=made) + 1.0
    b = torch.cat([b, beside(torch.tensor([1.0, 2.0, 1.5]), 8)])
    times = torch.tensor([1.0, 0.5, 2.0, 1.5, 3.0, 127.5, 0.25 + 2.0**-20])
    a = (b[:, None] * times).flatten()
    a = torch.cat([(a.view(torch.int32) + k).view(torch.float32) for k in (-2, -1, 0, 1, 2)])
    b = b.repeat_interleave(len(times)).repeat(5)
    found = arithmetic(a, b, either)
    assert bool(same_bits(found[:, 5], a / b).all())
    assert bool(same_bits(found[:, 1], a / b).all())


def test_what_devices_must_get_right() -> None:
    """Products and sums of normal numbers with normal results."""
    a, b = any_bits(COUNT, 7), any_bits(COUNT, 8)
    found = arithmetic(a, b, "plain")

    def normal(x: Tensor) -> Tensor:
        return x.isfinite() & (x.abs() >= 2.0**-125)

    for column, expected in ((6, a * b), (7, a + b)):
        asked = normal(a) & normal(b) & normal(expected)
        assert bool(same_bits(found[:, column], expected)[asked].all())
