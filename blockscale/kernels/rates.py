# SPDX-License-Identifier: BSD-3-Clause
"""What a machine does at best, measured: copies, and products of matrices."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.operand import operand, quantizer
from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.kernels.registry import supporting, unavailable

COPIED = 64 << 20  # bytes read, and as many written: beyond any last-level cache but the largest
SIZE = 1024  # of square matrices
_ROUNDS = 7


@dataclass(frozen=True)
class Rates:
    """Medians of some seconds on one device; None where a product cannot run.

    device: torch's name of it
    copy: bytes read and written a second by a copy of COPIED bytes
    float32, bfloat16: torch's products of SIZE² matrices, in multiplications and additions a second
    int8: the same of our kernel, int8_channel weights and int8_token inputs, quantizing included
    """

    device: str
    copy: float
    float32: float
    bfloat16: float | None
    int8: float | None


def rates(device: str = "cpu") -> Rates:
    """The rates of a device, on torch's number of threads. About a second.

    Raises ValueError for a device other than "cpu" and "cuda" with a number.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"cannot measure rates of device {device!r}; choose from cpu, cuda")
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    copy = 2 * COPIED / _seconds(lambda: target.copy_(source), device)
    operations = 2 * SIZE**3
    a, b = (torch.randn(SIZE, SIZE, device=device) for _ in range(2))
    low = [each.bfloat16() for each in (a, b)]
    int8 = _int8(a, b, kind)
    return Rates(
        device,
        copy,
        operations / _seconds(lambda: a @ b.T, device),
        operations / _seconds(lambda: low[0] @ low[1].T, device),
        None if int8 is None else operations / _seconds(int8, device),
    )


def _int8(x: Tensor, weight: Tensor, backend: str) -> Callable[[], Any] | None:
    """Our product of 8-bit integers; None where no kernel runs it."""
    if unavailable(backend) is not None:
        return None
    stored, given = parse("int8_channel"), parse("int8_token")
    qparams = reference.choose_qparams(weight, stored)
    codes = pack(reference.quantize(weight, qparams, stored), stored.element)
    held = operand(codes.contiguous(), qparams, stored.spelling, weight.shape[-1])
    by = quantizer(None, given.spelling, None)
    arguments = (x, held, None, by)
    kernel = supporting("linear", backend, (stored.spelling, given.spelling), arguments)
    return None if kernel is None else lambda: kernel.run(*arguments)


def _seconds(run: Callable[[], Any], device: str) -> float:
    """The median of some calls, after one that prepares."""
    run()
    _wait(device)
    samples = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        _wait(device)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
