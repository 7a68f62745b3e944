# SPDX-License-Identifier: BSD-3-Clause
"""How fast the operations on tensors are, what memory they take, what block sizes cost and bring.

Times and memory are measured. The best block size is counted, so that it does not depend on what
else the machine does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.calibration.errors import Sums
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.ops.linear import linear
from blockscale.ops.quantize import fake_quantize, quantize
from blockscale.selection.times import peak, race

SHAPE = (1024, 1024)
FORMATS = ("int8_channel", "mxfp8", "int4", "mxfp4", "nvfp4")
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class OperationTime:
    """seconds: of one call; rate: bytes of the float and the stored tensor a second."""

    operation: str
    format: str
    seconds: float
    rate: float


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes of an operation. stored: of the quantized tensor; result: of what the call returns;
    temporary: of the tensors that it holds at its peak beside that."""

    operation: str
    format: str
    stored: int
    result: int
    temporary: int


@dataclass(frozen=True)
class BlockSize:
    """A block size. bits: an element with its share of scales; sqnr: of the data in dB; seconds: of
    the product of one row with it, and of quantizing it."""

    size: int
    bits: float
    sqnr: float
    product: float
    quantize: float


def operation_times(
    formats: Sequence[str] = FORMATS, shape: tuple[int, int] = SHAPE
) -> tuple[OperationTime, ...]:
    """quantize, dequantize and fake_quantize of normal float32 numbers [shape] in each format."""
    x, calls = _calls(formats, shape)
    times = race(calls)
    results = []
    for (operation, name), seconds in times.items():
        stored = x.nbytes if operation == "fake_quantize" else parse(name).nbytes(shape)
        results.append(OperationTime(operation, name, seconds, (x.nbytes + stored) / seconds))
    return tuple(results)


def memory_usage(
    formats: Sequence[str] = FORMATS, shape: tuple[int, int] = SHAPE
) -> tuple[MemoryUsage, ...]:
    """The bytes that each of `operation_times` takes: of tensors, whoever makes them."""
    usage = []
    for (operation, name), call in _calls(formats, shape)[1].items():
        result = call().nbytes
        stored = parse(name).nbytes(shape)
        usage.append(MemoryUsage(operation, name, stored, result, peak(call, "cpu") - result))
    return tuple(usage)


def _calls(
    formats: Sequence[str], shape: tuple[int, int]
) -> tuple[Tensor, dict[tuple[str, str], Callable[[], Any]]]:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for name in formats:
        calls["quantize", name] = partial(quantize, x, name)
        calls["dequantize", name] = quantize(x, name).dequantize
        calls["fake_quantize", name] = partial(fake_quantize, x, name)
    return x, calls


def optimal_block_size(element: str = "int4", scale: str = "fp16", share: float = 1 / 16) -> int:
    """The smallest of BLOCKS whose scales are at most a `share` of all bytes, or the largest.

    A product of one row takes as long as the weight's bytes take to be read, and the smaller a
    block the smaller its error: beyond this size nearly nothing is left to gain in time. Counted,
    so that it is one answer however busy the machine is; `block_sizes` has the times. Raises
    ValueError for elements and scales that do not parse.
    """
    for size in BLOCKS:
        form = parse(f"{element}:group{size}:{scale}")
        every = form.bits_per_element((size, size))
        if every - form.bits <= share * every:
            return size
    return BLOCKS[-1]


def block_sizes(
    element: str = "int4",
    scale: str = "fp16",
    data: Tensor | None = None,
    sizes: Sequence[int] = BLOCKS,
) -> tuple[BlockSize, ...]:
    """What each block size of an element costs and brings on this machine.

    data: a weight [outputs, inputs]; None: normal numbers [SHAPE[0], the largest size]
    Raises ValueError for elements and scales that do not parse.
    """
    if data is None:
        generator = torch.Generator().manual_seed(0)
        data = torch.randn(SHAPE[0], max(sizes), generator=generator)
    weight = data.detach().float()
    row = torch.ones(1, weight.shape[-1])
    stored = {size: quantize(weight, f"{element}:group{size}:{scale}") for size in sizes}
    calls: dict[tuple[str, int], Callable[[], Any]] = {}
    for size, q in stored.items():
        one = operand(q.packed, q.qparams, q.format, q.size)
        calls["product", size] = partial(linear, row, one)
        calls["quantize", size] = partial(quantize, weight, q.format)
    times = race(calls)
    results = []
    for size, q in stored.items():
        sums = Sums()
        sums.add(weight, q.dequantize())
        bits = 8 * q.nbytes / prod(weight.shape)
        sqnr = sums.result().sqnr
        results.append(BlockSize(size, bits, sqnr, times["product", size], times["quantize", size]))
    return tuple(results)
