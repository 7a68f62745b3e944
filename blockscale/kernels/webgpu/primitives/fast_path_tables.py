# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks as cells of numbers, of which none has more than one threshold between two codes."""

from functools import cache

from blockscale.core.element import ElementNumbers
from blockscale.kernels.webgpu.gpu.shader import Constant
from blockscale.kernels.webgpu.spec import bits_of

_MOST = 64  # cells: two of a table share a bank of a workgroup's memory
_BESIDE = 1e-5  # of a cell: numbers that near its end may fall into either
_LEAST = 2.0**-24  # a threshold
_FAR = 2.0**100  # where no number comes: the threshold of a cell that has none


@cache
def cells(element: ElementNumbers) -> dict[str, Constant] | None:
    """The constants that fast_path_code/codebook reads, or None where cells would be too many."""
    if element.family != "codebook" or element.bits > 4:
        return None
    if any(abs(each) < _LEAST for each in element.thresholds):
        return None  # zeros of both signs lie beside it
    values = [each for each in element.values if each == each]
    low, high = min(values), max(values)
    for power in range(-20, 21):
        width = 2.0**-power
        first, last = round(low / width), round(high / width)
        if last - first >= _MOST:
            return None
        inside = [_inside(element.thresholds, i * width, width) for i in range(first, last + 1)]
        if all(len(each) <= 1 for each in inside):
            return _constants(element, width, first, inside)
    return None


def _inside(thresholds: tuple[float, ...], center: float, width: float) -> list[int]:
    """Which thresholds lie in a cell, or so near it that its numbers may be on either side."""
    reach = width * (0.5 + _BESIDE)
    return [i for i, each in enumerate(thresholds) if abs(each - center) <= reach]


def _constants(
    element: ElementNumbers, width: float, first: int, inside: list[list[int]]
) -> dict[str, Constant]:
    thresholds, codes = [], []
    for number, each in enumerate(inside, first):
        below = sum(threshold < number * width for threshold in element.thresholds)
        at = each[0] if each else below
        thresholds.append(bits_of(element.thresholds[at] if each else _FAR))
        low, high = element.order[at], element.order[min(at + 1, len(element.order) - 1)]
        codes.append(low | high << 4)
    values = [bits_of(each) for each in element.values]
    values += [0] * (16 - len(values))
    return {
        "CELLS": len(inside),
        "CELLS_A_ONE": bits_of(1 / width),
        "CELL_OF_ZERO": -first % 2**32,
        "CELL_TABLE": (*thresholds, *codes, *values),
    }
