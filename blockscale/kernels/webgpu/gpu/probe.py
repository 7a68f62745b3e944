# SPDX-License-Identifier: BSD-3-Clause
"""What a device computes otherwise than it must: asked of it once, before a kernel is trusted.

Kernels need exact integers everywhere, and exact floats in few places: products and sums of normal
numbers with normal results, and divisions within 2.5 ulps, which they put right themselves.
"""

import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.device import gpu, missing
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Roles, Shader, ShaderKernel

OPERATIONS = (  # the columns of kernels/probe/arithmetic
    "multiplication from integers",
    "division from integers",
    "addition from integers",
    "subtraction from integers",
    "conversion from integers",
    "division by a reciprocal",
    "product of normal numbers",
    "sum of normal numbers",
    "conversion of whole numbers",
)
INTEGERS = OPERATIONS[:5]
ARITHMETIC = "BLOCKSCALE_WEBGPU_ARITHMETIC"
_HARDWARE = "plain"  # tests ask devices that do the worst that WGSL allows
_told: set[str] = set()


@dataclass(frozen=True)
class DeviceArithmetic(Roles):
    """How a device computes.

    arithmetic: "integers", of which floats are made, or "native" ones
    hardware:   "plain", or "flushing", which does what WGSL allows to the worst
    wide:       integers of 64 bits: "words" of 32 bits, or "native" ones
    """

    arithmetic: str = "integers"
    hardware: str = "plain"
    wide: str = "words"


EXACT = DeviceArithmetic()  # right on every device


@dataclass(frozen=True)
class ProbeArithmetic(ShaderKernel, part="kernels/probe/arithmetic"):
    """What a device makes of floats."""

    device: DeviceArithmetic


def refusal(operations: Collection[str]) -> str | None:
    """Why kernels that need these OPERATIONS cannot be trusted on this device, or None.

    Said once, as a warning. Without an adapter there is nothing to refuse.
    """
    if missing() is not None:
        return None
    wrong = [name for name in wrongly_computed() if name in operations]
    if not wrong:
        return None
    reason = f"{gpu().name} is wrong in {', '.join(wrong)}: the reference computes instead"
    if reason not in _told:
        _told.add(reason)
        warnings.warn(reason, stacklevel=2)
    return reason


def arithmetic() -> str:
    """How numbers are computed: "native", by the device's own floats, or "integers".

    Floats are trusted on software adapters that pass the probe with them: processors divide
    exactly, and such adapters run both sides of every branch, rare ones too. With
    BLOCKSCALE_WEBGPU_ARITHMETIC=integers they compute as GPUs do.
    """
    return os.environ.get(ARITHMETIC) or _arithmetic()


@cache
def _arithmetic() -> str:
    return "native" if gpu().software and not wrongly_computed("native") else "integers"


@cache
def wrongly_computed(arithmetic: str = "integers") -> tuple[str, ...]:
    """Those of OPERATIONS of which this device gets a number of the probe wrong."""
    a, b = _pairs()
    result = _results(a, b, arithmetic)
    wrong = [_differ(result[:, i], right, at) for i, (right, at) in enumerate(_expected(a, b))]
    return tuple(name for name, each in zip(OPERATIONS, wrong, strict=True) if each)


def _results(a: Tensor, b: Tensor, arithmetic: str) -> Tensor:
    """float32 [n] each -> int32 [n, operations]"""
    shape = (len(a), len(OPERATIONS))
    results = allocate(4 * shape[0] * shape[1])
    buffers = {"pairs": upload(torch.stack([a, b], 1)), "results": results}
    probe = Shader(ProbeArithmetic(DeviceArithmetic(arithmetic, _HARDWARE)))
    launch(probe, buffers, {"count": len(a)}, -(-len(a) // 64), bake=False)
    return download(results, shape, torch.int32)


def _pairs() -> tuple[Tensor, Tensor]:
    """Numbers of every exponent, and all pairs of the hard ones."""
    result = torch.Generator().manual_seed(0)
    either = torch.randint(-(2**31), 2**31, (2, 1 << 13), generator=result)
    a, b = either.to(torch.int32).view(torch.float32)
    near = -a * (1 + torch.randn(len(a), generator=result) / 2**18)  # sums that cancel
    hard = torch.cat([a[:20], torch.tensor(_HARD), torch.tensor(_HARD) * -1.0])
    n = len(hard)
    return torch.cat([a, a, hard.repeat(n)]), torch.cat([b, near, hard.repeat_interleave(n)])


_HARD = (0.0, 1.0, 1.5, 2.0**-126, 2.0**-149, 2.0**-127, 3.4028234663852886e38, 0.5, 2.0**23 + 1,
         float("inf"), float("nan"), 448.0, 127.0, 1 / 3, 2.0**-63, 2.0**64)  # fmt: skip


def _expected(a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of each operation: the numbers, and where they are asked for."""
    everywhere = torch.ones_like(a, dtype=torch.bool)
    whole = a.view(torch.int32)
    exact = [a * b, a / b, a + b, a - b, whole.to(torch.float32), a / b]
    normal = [(x, _normal(a) & _normal(b) & _normal(x)) for x in (a * b, a + b)]
    last = ((whole >> 8).to(torch.float32), everywhere)
    return [*((x, everywhere) for x in exact), *normal, last]


def _normal(x: Tensor) -> Tensor:
    """Where numbers are normal, and not next to the subnormal ones."""
    return x.isfinite() & (x.abs() >= 2.0**-125)


def _differ(tensor: Tensor, right: Tensor, at: Tensor) -> bool:
    """Whether words are other numbers than these where asked; every NaN is alike."""
    got = tensor.contiguous().view(torch.float32)
    same = (tensor == right.view(torch.int32)) | (got.isnan() & right.isnan())
    return bool((at & ~same).any())
