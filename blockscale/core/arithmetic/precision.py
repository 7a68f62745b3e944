# SPDX-License-Identifier: BSD-3-Clause
"""Float32 arithmetic that stays float32, whatever torch's switches and other libraries say; and
exponents and powers of two from bits."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockscale.core.torch_private import disable_modes

_SMALLEST, _ONE = 5e-324, 1.0  # a subnormal number, and what a constant would not be folded with
_GRAIN = 32768  # elements that torch gives to a thread at least (ATen/TensorIterator.h)


@contextmanager
def _float32_on_cuda() -> Iterator[None]:
    """No autocast and no TF32, which is cuDNN's default and keeps 11 bits."""
    settings: tuple[Any, ...] = (
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cuda.matmul,
    )
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        for each, old in zip(settings, before, strict=True):
            each.fp32_precision = old


def float32_inside(x: Tensor) -> AbstractContextManager[object]:
    """Keeps lower precisions out of an op's arithmetic, which is float32 by contract."""
    kind = x.device.type
    if kind == "cuda":
        return _float32_on_cuda()
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # asking is cheaper than entering
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def flushes() -> bool:
    """Whether this thread takes subnormal numbers for 0: Python's floats are under the same switch.

    torch.set_flush_denormal and libraries compiled with -ffast-math, which set it while they are
    loaded, turn it on; a new thread has it from the one that starts it.
    """
    return not _SMALLEST * _ONE


def _others_flush(threads: int) -> bool:
    """The same of the threads that torch computes on here: of a norm, each has one of the rows.

    They keep the switch that they were started with, whatever this thread's is now. Asked for real,
    whatever is being traced around it.
    """
    with disable_modes():
        tiny = torch.full((threads, 1), 2.0**-140, dtype=torch.float32, device="cpu")
        return not F.layer_norm(torch.cat([tiny, -tiny], 1), (2,), eps=1.0).all()


@contextmanager
def subnormals_kept(elements: int = _GRAIN + 1) -> Iterator[None]:
    """Inside, float32 arithmetic on the CPU has subnormal numbers (docs/numerics.md, notation).

    elements: of the largest tensors, all together; torch computes fewer than _GRAIN on one thread

    Where other threads would flush, which cannot be told to stop, torch computes on this one.
    """
    flush = flushes()
    if flush:
        torch.set_flush_denormal(False)
    try:
        threads = torch.get_num_threads()
        alone = elements > _GRAIN and threads > 1 and _others_flush(threads)
        if alone:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if alone:
                torch.set_num_threads(threads)
    finally:
        if flush:
            torch.set_flush_denormal(True)


# Exponents and powers of two from bits, exact for every float32 including subnormals.
#
# Never `log2`: it rounds up just below powers of two (docs/numerics.md, notation).


FLT_MAX = (2.0 - 2.0**-23) * 2.0**127
FLT_MIN = 2.0**-126  # the smallest normal float32
FLT_SMALLEST = 2.0**-149  # the smallest float32 above 0


def exponent(x: Tensor) -> Tensor:
    """x [...] float32, finite and not 0 -> floor(log2|x|) [...] int32."""
    return torch.frexp(x).exponent - 1


def mantissa(x: Tensor) -> Tensor:
    """x [...] float32, finite and not 0 -> the 23 fraction bits of |x| normalized, int32."""
    fraction = torch.frexp(x.abs()).mantissa  # in [0.5, 1)
    return fraction.view(torch.int32) & 0x7FFFFF


def pow2(n: Tensor) -> Tensor:
    """n [...] int32 in -149 ... 127 -> 2^n [...] float32."""
    normal = (n.clamp(min=-126) + 127) << 23
    subnormal = torch.ones_like(n) << (n.clamp(max=-127) + 149)
    return torch.where(n >= -126, normal, subnormal).view(torch.float32)


def divide(x: Tensor, value: float) -> Tensor:
    """x [...] float32 / value, by IEEE division.

    `x / 448.0` would not do: torch's CUDA kernel multiplies by the reciprocal of a Python number.
    """
    return x / torch.full((), value, dtype=torch.float32, device=x.device)
