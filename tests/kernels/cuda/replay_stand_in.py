# SPDX-License-Identifier: BSD-3-Clause
"""What stands in for compiled kernels: Triton's interpreter, which is given addresses."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.support.same import same


class Compiled:
    """What Triton would have compiled: runs the interpreter on what lies at addresses."""

    packed_metadata = (4, 1, 0)

    def __init__(self, kernel: Any, options: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        self.kernel, self.function, self.options = kernel, id(self), options
        self.sizes = [extent(each) for each in arguments]

    def run(self, *given: Any) -> None:
        grid, (stream, function, metadata, *hooks), arguments = given[:3], given[3:9], given[9:]
        assert (stream, function, metadata) == (7, self.function, self.packed_metadata)
        assert hooks == [None, None, None]
        there = [at(*each) for each in zip(arguments, self.sizes, strict=True)]
        self.kernel[grid](*there, **self.options)


def extent(argument: Any) -> tuple[int, torch.dtype] | None:
    if not isinstance(argument, Tensor):
        return None
    storage = argument.untyped_storage()
    return storage.nbytes() - (argument.data_ptr() - storage.data_ptr()), argument.dtype


def at(argument: Any, extent: tuple[int, torch.dtype] | None) -> Any:
    """The numbers that begin at an address."""
    if extent is None:
        return argument
    size, dtype = extent
    memory = (ctypes.c_byte * (size - size % dtype.itemsize)).from_address(argument)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def flat(result: Any) -> list[Tensor]:
    return result if isinstance(result, list) else [result]


def outcomes(op: Any) -> list[str]:
    """What became of each kind of call: "Recording", or why there is none."""
    values = op.recordings.values()
    return [each if isinstance(each, str) else type(each).__name__ for each in values]


def check(op: Any, first: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    """Whether another call of the kind of the first comes out as one that is not repeated."""
    op.recordings.clear()
    for _ in range(2):
        op(*first)
    assert all(map(same, flat(op(*other)), flat(op.run(*other))))
    assert len(op.recordings) == 1
    return outcomes(op)[0]


def operand(codes: Tensor, qparams: QParams, fmt: str, size: int) -> Operand:
    return Operand(codes, qparams.scale, qparams.zero_point, qparams.outer, fmt, size)


def stored(x: Tensor, fmt: str) -> tuple[Tensor, QParams]:
    codes, *rest = P.choose_quantize.reference(x, fmt, None)
    return codes, P.from_list(rest, parse(fmt))


def rounded(x: Tensor) -> tuple[Any, ...]:
    return x, Quantizer(None, None, None, str(parse("mxfp4")))


class Counting:
    """In place of a kernel's function: how often Python was asked."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.calls = run, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.run(*arguments)


class Passing(TorchDispatchMode):
    """Sees every operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))
