# SPDX-License-Identifier: BSD-3-Clause
"""Rows sorted by matrix times a quantized stack: one native call for all matrices that have rows.

A matrix is made ready (native.py) when the first row comes to it. What is computed is that of
`linear` for each matrix, to the bit: only how the work is divided among threads differs.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.core.stacks import check_ends, matrix, parts, parts_of, quantizer_of
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.linear import all_known, row_block
from blockscale.kernels.cpu.native import (
    DTYPES,
    Ready,
    fingerprint,
    floats,
    native,
    ready_of,
    threads,
)
from blockscale.kernels.cpu.quantize import fake_quantize
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import batch_invariant, kernel
from blockscale.kernels.resident import Residents


class Matrices:
    """The matrices of a stack that rows came to so far, each in its parts."""

    def __init__(self, count: int) -> None:
        self._ready: list[tuple[Ready, ...] | None] = [None] * count

    def weights(self, whole: Operand, numbers: list[int]) -> list[Any]:
        """The `_native.LinearWeight` of each part of the chosen matrices, in their order."""
        results = []
        for index in numbers:
            ready = self._ready[index]
            if ready is None:
                ready = self._ready[index] = _parts_ready(whole, index)
            results += [part.weight for part in ready]
        return results

    def forget(self, numbers: list[int]) -> None:
        """Make these ready again: memory of theirs has changed where torch does not count it."""
        for index in numbers:
            self._ready[index] = None


def _parts_ready(whole: Operand, index: int) -> tuple[Ready, ...]:
    one = matrix(whole, index)
    assert one is not None  # `_supports` asked
    return tuple(ready_of(part) for part in parts(one))


_MATRICES = Residents(lambda whole: Matrices(whole.codes.shape[0]), fingerprint)


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    x, whole, _, _, by = arguments
    result = parts_of(whole)
    if result is None or x.dtype not in DTYPES or not x.is_cpu:
        return False
    return all_known((result.fmt, by.fmt)) and len(formats) <= 2


class _Rows(NamedTuple):
    """The matrices that have rows, where the rows of each begin (and end, the last), and the memory
    of a product: y [rows, n] of x [rows, k]."""

    numbers: list[int]
    bounds: list[int]
    x: Tensor
    y: Tensor
    bias: Tensor | None

    @property
    def sizes(self) -> tuple[int, int]:
        """Outputs and inputs of a matrix."""
        return self.y.shape[1], self.x.shape[1]

    @property
    def biases(self) -> list[int]:
        """Where the bias of each lies."""
        return [] if self.bias is None else [self.bias[i].data_ptr() for i in self.numbers]


@kernel("grouped_linear", backend="cpu", supports=_supports)
def grouped_linear(
    x: Tensor,
    weight: Operand,
    ends: Tensor,
    bias: Tensor | None = None,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.grouped_linear.grouped_linear."""
    check_ends(x, weight, ends)
    x, _ = floats(x)
    count, n = weight.codes.shape[:2]
    y = torch.empty(x.shape[0], n, dtype=x.dtype)
    choice, bounds = _with_rows(ends.tolist())
    y[bounds[-1] :].zero_()
    if not choice or not n:
        return y
    offset = None if bias is None else in_order(bias.to(torch.float32).expand(count, n))
    rows = _Rows(choice, bounds, x, y, offset)
    if not x.shape[1]:
        return _without_sums(rows)
    own = Matrices(count) if weight.codes.is_inference() else _MATRICES[weight]
    if input.fmt:
        rows = _in_integers(rows, weight, own, input)
    if rows.numbers:
        _in_floats(rows, weight, own)
    return y


def _with_rows(places: list[int]) -> tuple[list[int], list[int]]:
    """The matrices that have rows, and where the rows of each begin, with where the last ends."""
    results, bounds = [], [0]
    for index, end in enumerate(places):
        if end > bounds[-1]:
            results.append(index)
            bounds.append(end)
    return results, bounds


def _without_sums(rows: _Rows) -> Tensor:
    """Products of no numbers: the biases."""
    for index, (start, end) in zip(rows.numbers, pairwise(rows.bounds), strict=True):
        rows.y[start:end] = 0 if rows.bias is None else rows.bias[index]
    return rows.y


def _in_floats(rows: _Rows, weight: Operand, own: Matrices) -> None:
    """Floats of x times decoded weights."""
    x, y = rows.x, rows.y

    def run() -> bool:
        weights = own.weights(weight, rows.numbers)
        ran: bool = _native.grouped_floats(
            weights, rows.bounds, rows.biases, rows.sizes, x.data_ptr(), DTYPES[x.dtype],
            y.data_ptr(), DTYPES[y.dtype], threads(), batch_invariant(),
        )  # fmt: skip
        return ran

    if not run():
        own.forget(rows.numbers)
        run()


def _in_integers(rows: _Rows, weight: Operand, own: Matrices, by: Quantizer) -> _Rows:
    """Quantized x times integer weights, where integer arithmetic gives that. Returns what is left
    of the rows: with none, or with x as floats that the input format leaves."""
    results = list(range(len(rows.numbers)))
    block = row_block(by.fmt, 2)
    if block is not None and (by.scale is None or not block):
        results = _by_integers(rows, weight, own, by, block)
    if len(results) == len(rows.numbers):
        return rows._replace(x=_quantized(rows, by))
    for group in results:
        start, end = rows.bounds[group : group + 2]
        one = _Rows(rows.numbers[group : group + 1], [0, end - start], rows.x[start:end],
                    rows.y[start:end], rows.bias)  # fmt: skip
        _in_floats(one._replace(x=_quantized(one, by)), weight, own)
    return rows._replace(numbers=[])


def _by_integers(
    rows: _Rows, weight: Operand, own: Matrices, by: Quantizer, block: int
) -> list[int]:
    """The groups that integer arithmetic cannot give, by number; the others are in y."""
    form, x, y = native(by.fmt), rows.x, rows.y
    rest, scales, zeros = [], [], []
    if by.scale is not None:
        for index, (start, end) in zip(rows.numbers, pairwise(rows.bounds), strict=True):
            mine = quantizer_of(by, index)
            assert mine.scale is not None
            shape = (end - start, x.shape[1])
            result = form.checked_parts(shape, mine.scale, mine.zero_point, mine.outer)
            rest.append(result)
            scales.append(result.scale.data_ptr())
            zeros += [] if result.zero_point is None else [result.zero_point.data_ptr()]

    def run() -> list[int] | None:
        weights = own.weights(weight, rows.numbers)
        refusals: list[int] | None = _native.grouped_integers(
            weights, rows.bounds, rows.biases, rows.sizes, form.handle, x.data_ptr(),
            DTYPES[x.dtype], block, scales, zeros, y.data_ptr(), DTYPES[y.dtype], threads(),
        )  # fmt: skip
        return refusals

    refusals = run()
    if refusals is None:
        own.forget(rows.numbers)
        refusals = run()
    del rest
    return list(range(len(rows.numbers))) if refusals is None else refusals


def _quantized(rows: _Rows, by: Quantizer) -> Tensor:
    """What the input format leaves of x, in float32: the rows of each matrix by themselves."""
    x = rows.x.to(torch.float32)
    if by.scale is None and by.seed is None and _each_row_alone(by.fmt):
        return fake_quantize(x, by)
    each = [
        fake_quantize(x[start:end], quantizer_of(by, index))
        for index, (start, end) in zip(rows.numbers, pairwise(rows.bounds), strict=True)
    ]
    return torch.cat([*each, x[rows.bounds[-1] :]])


def _each_row_alone(fmt: str) -> bool:
    """Whether no two rows share a scale that is chosen."""
    form = parse(fmt)
    if form.block.flat or isinstance(form.scale, TwoLevel) or form.offset is not None:
        return False
    return form.block.sizes_for(2)[0] == 1
