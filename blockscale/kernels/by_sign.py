# SPDX-License-Identifier: BSD-3-Clause
"""The ops of `if4`, whose blocks are floats or integers as the signs of their scales say.

Kernels of the two grids do them: numbers go through both, and each block takes what its sign means.

The step of a block is the magnitude of its scale in both (docs/numerics.md, 1.1). Integers are
written as a table of 15 values and read as one of 16, with the value that is never written; their
codes are two's complement, where tables count from the smallest.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.elements.codebook import Codebook, shortest_decimal
from blockscale.core.elements.int_float import IntFloat
from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import FLOAT_SCALES
from blockscale.core.scales import TwoLevel
from blockscale.kernels.operand import present_parts, strided_like
from blockscale.kernels.registry import ByFormats, Formats, kernel
from blockscale.kernels.resident import Residents
from blockscale.kernels.restate import choose_scales, in_rows, restated_parts

_READS = 0x88  # two codes of a byte: their top bits, which tables have the other way round


class Kernels(Protocol):
    """What `RestatedOps` has: the kernels of a backend."""

    def run(self, op: str, *args: Any) -> Any:
        """Run one."""

    def runs(self, op: str, *formats: Format) -> bool:
        """Whether there is one."""

    def scale_of(self, x: Tensor, plain: Format) -> Tensor:
        """The scale that x chooses."""

    def block_errors(self, x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
        """As reference.block_errors."""


class Grids(NamedTuple):
    """The formats of kernels that one of two grids stands for, all with float32 steps."""

    floats: Format
    integers: Format  # integers
    read: Format


@cache
def grids(spelling: str, *, encode: bool) -> Grids | None:
    """Those of a format; None for other elements, and to encode by reciprocals of scales of two
    levels, which are not those of their steps (docs/numerics.md, 4)."""
    fmt = parse(spelling)
    element, scale = fmt.element, fmt.scale
    if not isinstance(element, IntFloat):
        return None
    if encode and fmt.recip and isinstance(scale, TwoLevel) and not scale.reciprocal:
        return None
    values = element.integers.table
    every = (element.unwritten, *values)
    book = Codebook(f"book({','.join(map(shortest_decimal, every))})", every)
    plain = replace(fmt, scale=FLOAT_SCALES["fp32"])
    result = (replace(plain, element=each) for each in (element.floats, element.integers, book))
    return Grids(*result)


def register(backend: str, kernels: Kernels, fingerprint: Callable[[Tensor], int]) -> None:
    """Make a backend's ops take `if4` by the kernels that it has.

    fingerprint: as `Residents` takes it
    """
    ops = _Ops(kernels, fingerprint)
    decoding = ("dequantize", "embedding", "pack", "unpack")
    encoding = ("choose_qparams", "quantize", "choose_quantize", "fake_quantize")
    for name in (*decoding, *encoding, "straight_through"):
        supports = ByFormats(ops.supporting(encode=name not in decoding))
        kernel(name, backend=backend, supports=supports, last=True)(getattr(ops, name))
    for name in ("linear", "conv", "conv_transpose"):
        supports = ByFormats(ops.supporting_products(name))
        kernel(name, backend=backend, supports=supports, last=True)(getattr(ops, name))
    supports = ByFormats(ops.supporting(encode=True))
    kernel("block_errors", backend=backend, supports=supports)(ops.block_errors)


class _Scaled(NamedTuple):
    """The scale of a tensor as kernels of both grids take it."""

    steps: QParams
    integers: Tensor  # bool, as the steps: which blocks are
    grids: Grids  # with blocks in rows of the tensor

    def where(self, integers: Tensor, floats: Tensor) -> Tensor:
        """What one kernel gave for each element and what the other did -> that of its grid."""
        each = self.grids.floats.block.expand(self.integers, floats.shape)
        return torch.where(each, integers, floats)


def _scaled(qparams: QParams, fmt: Format, shape: Sequence[int], *, encode: bool) -> _Scaled:
    both = grids(fmt.spelling, encode=encode)
    assert both is not None  # `supports` asked
    block = in_rows(fmt.block, shape)
    both = Grids(*(replace(each, block=block) for each in both))
    steps = restated_parts(qparams, fmt, both.floats, shape).scale
    return _Scaled(QParams(steps.abs()), steps.signbit(), both)


class _Ops:
    """Each as in blockscale.ops."""

    def __init__(self, kernels: Kernels, fingerprint: Callable[[Tensor], int]):
        self._kernels = kernels
        self._run = kernels.run
        self._joint = Residents(self._join, fingerprint)

    def supporting(self, *, encode: bool) -> Callable[[Formats], bool]:
        """Whether the backend has what such an op of one format is made of."""
        needs = ("quantize", "fake_quantize", "straight_through") if encode else ("dequantize",)

        def supports(formats: Formats) -> bool:
            both = grids(formats[0].spelling, encode=encode)
            runs = self._kernels.runs
            return both is not None and all(runs(op, each) for op in needs for each in both)

        return supports

    def supporting_products(self, op: str) -> Callable[[Formats], bool]:
        """The same for products, of a weight and, if wanted, a quantized input."""
        encodes = self.supporting(encode=True)

        def supports(formats: Formats) -> bool:
            weight, *others = formats
            table = _joint(weight.spelling)
            rest = [fmt for fmt in others if grids(fmt.spelling, encode=True) is None]
            if table is None and rest == others:
                return False
            inputs = all(encodes((fmt,)) for fmt in others if fmt not in rest)
            return inputs and self._kernels.runs(op, weight if table is None else table[0], *rest)

        return supports

    def dequantize(self, packed: Operand, dtype: torch.dtype) -> Tensor:
        """As ops.primitives.dequantize."""
        by = _scaled(packed.qparams, packed.format, packed.shape, encode=False)
        floats = operand(packed.codes, by.steps, by.grids.floats, packed.size)
        integers = operand(packed.codes ^ _READS, by.steps, by.grids.read, packed.size)
        run = self._run
        return by.where(run("dequantize", integers, dtype), run("dequantize", floats, dtype))

    def pack(self, codes: Tensor, fmt: str) -> Tensor:
        """As ops.primitives.pack: codes of both grids have four bits."""
        return self._run("pack", codes, _floats(fmt))

    def unpack(self, packed: Tensor, fmt: str, size: int) -> Tensor:
        """As ops.primitives.unpack."""
        return self._run("unpack", packed, _floats(fmt), size)

    def embedding(self, weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """As ops.embedding.embedding."""
        by = _scaled(weight.qparams, weight.format, weight.shape, encode=False)
        floats = operand(weight.codes, by.steps, by.grids.floats, weight.size)
        values = self._run("embedding", floats, indices, dtype)  # refuses what are no indices
        rows = indices.reshape(-1)
        scales = by.grids.floats.block.sizes_for(2)[0] == 1
        steps, kinds = (
            part.index_select(0, rows) if scales else part for part in (by.steps.scale, by.integers)
        )
        codes = weight.codes.index_select(0, rows) ^ _READS
        integers = operand(codes, QParams(steps), by.grids.read, weight.size)
        flat = values.reshape(-1, weight.size)
        choice = by._replace(integers=kinds)
        return choice.where(self._run("dequantize", integers, dtype), flat).reshape(values.shape)

    def choose_qparams(self, x: Tensor, fmt: str) -> list[Tensor]:
        """As ops.primitives.choose_qparams."""
        return present_parts(self._choose(x, parse(fmt)))

    def choose_quantize(self, x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
        """As ops.primitives.choose_quantize."""
        qparams = self._choose(x, parse(fmt))
        return [self.quantize(x, quantizer(qparams, fmt, seed)), *present_parts(qparams)]

    def quantize(self, x: Tensor, by: Quantizer) -> Tensor:
        """As ops.primitives.quantize."""
        scaled = self._scale_for(x, by)
        floats, places = (
            self._run("quantize", x, quantizer(scaled.steps, each)) for each in scaled.grids[:2]
        )
        integers = _codes(places.device)[places.to(torch.int32)]
        nibbles = scaled.where(*(torch.full_like(x, n, dtype=torch.uint8) for n in (15, 0)))
        mask = self.pack(nibbles, by.fmt)
        return (floats & ~mask) | (integers & mask)

    # --- products, of both grids as one table

    def linear(
        self, x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
    ) -> Tensor:
        """As ops.linear.linear."""
        dtype, by = x.dtype, input
        if by.fmt and grids(by.fmt, encode=True):
            x, by = self.fake_quantize(reference.widen(x), by), UNQUANTIZED
        y: Tensor = self._run("linear", x, self._weight(weight), bias, by)
        return y.to(dtype)

    def conv(self, x: Tensor, weight: Operand, bias: Tensor | None, *settings: Any) -> Tensor:
        """As ops.conv.conv."""
        return self._convolve("conv", x, weight, bias, *settings)

    def conv_transpose(
        self, x: Tensor, weight: Operand, bias: Tensor | None, *settings: Any
    ) -> Tensor:
        """As ops.conv_transpose.conv_transpose."""
        return self._convolve("conv_transpose", x, weight, bias, *settings)

    def _convolve(
        self, op: str, x: Tensor, weight: Operand, bias: Tensor | None, *settings: Any
    ) -> Tensor:
        dtype, last = x.dtype, settings[-1]
        by: Quantizer = last if isinstance(last, Quantizer) else UNQUANTIZED
        settings = settings[:-1] if isinstance(last, Quantizer) else settings
        if by.fmt and grids(by.fmt, encode=True):
            values = self.fake_quantize(reference.widen(x).movedim(1, -1), by)
            x, by = values.movedim(-1, 1), UNQUANTIZED
        y: Tensor = self._run(op, x, self._weight(weight), bias, *settings, by)
        return y.to(dtype)

    def _weight(self, weight: Operand) -> Operand:
        """A weight as kernels of products take it. One of `if4` is made once and kept beside the
        weight: .9 bytes a number in groups of 16, where the weight itself has .56."""
        return self._joint[weight] if _joint(weight.fmt) else weight

    def _join(self, weight: Operand) -> Operand:
        """Codes of both grids -> places in one table, and the steps of blocks."""
        info = _joint(weight.fmt)
        assert info is not None
        fmt, places = info
        by = _scaled(weight.qparams, weight.format, weight.shape, encode=False)
        fmt = replace(fmt, block=by.grids.floats.block)
        codes = self.unpack(weight.codes, weight.fmt, weight.size).to(torch.int32)
        table = torch.tensor(places, dtype=torch.uint8, device=codes.device)
        packed = self._run("pack", table[by.where(codes + 16, codes)], fmt.spelling)
        return operand(packed, by.steps, fmt, weight.size)

    def fake_quantize(self, x: Tensor, by: Quantizer) -> Tensor:
        """As ops.primitives.fake_quantize."""
        return self._both("fake_quantize", (x,), by)

    def straight_through(self, gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
        """As ops.primitives.straight_through."""
        return self._both("straight_through", (gradient, x), by)

    def _both(self, op: str, args: tuple[Tensor, ...], by: Quantizer) -> Tensor:
        scaled = self._scale_for(args[-1], by)
        floats, integers = (
            self._run(op, *args, quantizer(scaled.steps, each)) for each in scaled.grids[:2]
        )
        return strided_like(args[0], scaled.where(integers, floats))

    def _scale_for(self, x: Tensor, by: Quantizer) -> _Scaled:
        """The scale of x: the given one, else the one that it chooses."""
        qparams = by.qparams or self._choose(x, by.format)
        return _scaled(qparams, by.format, x.shape, encode=True)

    def _choose(self, x: Tensor, fmt: Format) -> QParams:
        return choose_scales(x, fmt, self._kernels.scale_of, self.block_errors)

    def block_errors(self, x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
        """As reference.block_errors."""
        scaled = _scaled(qparams, fmt, x.shape, encode=True)
        if scaled.grids.floats.block != fmt.block:  # rows may cut blocks
            return reference.squared_errors(x, self.fake_quantize(x, quantizer(qparams, fmt)), fmt)
        errors: list[Tensor] = [
            self._kernels.block_errors(x, scaled.steps, each) for each in scaled.grids[:2]
        ]
        return torch.where(scaled.integers, errors[1], errors[0])


@cache
def _joint(spelling: str) -> tuple[Format, tuple[int, ...]] | None:
    """A format whose table has the values of both grids, and the place there of each code of floats
    and then of each of integers; None for other elements."""
    both = grids(spelling, encode=False)
    if both is None:
        return None
    codes = torch.arange(16, dtype=torch.uint8)
    floats = both.floats.element.decode(codes).tolist()
    integers = both.read.element.decode(codes ^ 8).tolist()
    values = list(dict.fromkeys(map(shortest_decimal, (*floats, *integers))))
    table = Codebook(f"book({','.join(values)})", tuple(float(np.float32(v)) for v in values))
    places = tuple(values.index(shortest_decimal(value)) for value in (*floats, *integers))
    return replace(both.floats, element=table), places


@cache
def _floats(spelling: str) -> str:
    both = grids(spelling, encode=False)
    assert both is not None  # `supports` asked
    return replace(both.floats, block=in_rows(both.floats.block, (1, 16))).spelling


@cache
def _codes(device: torch.device) -> Tensor:
    """Two places in the table of integers a byte -> their codes, two's complement."""
    bytes_ = torch.arange(256, device=device)
    low, high = (bytes_ - 7) & 15, ((bytes_ >> 4) - 7) & 15
    return (low | high << 4).to(torch.uint8)
