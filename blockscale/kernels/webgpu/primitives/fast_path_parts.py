# SPDX-License-Identifier: BSD-3-Clause
"""What the fast path's kernels know of formats: which parts they ask for, codebooks as cells."""

from dataclasses import dataclass
from functools import cache

import torch

from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.kernels.numbers import FormatNumbers, lowered
from blockscale.kernels.webgpu.gpu.shader import Constant, Roles
from blockscale.kernels.webgpu.primitives.form import Form
from blockscale.kernels.webgpu.spec import FormatRoles, bits_of, shader_of

_UNUSUAL = {"offset", "float_zero", "signed", "given", "inner"}  # features that parts do not know
_CELLS = 64  # at most: two of a table share a bank of a workgroup's memory
_BESIDE = 1e-5  # of a cell: numbers that near its end may fall into either
_LEAST = 2.0**-24  # a threshold
_FAR = 2.0**100  # where no number comes: the threshold of a cell that has none


@dataclass(frozen=True)
class FastParts(Roles):
    """The roles of the fast path's parts that a format fills.

    family:      fast_path_code/{family}, how codes are found; tie_break: those beside ties
    fast_choose: fast_path_choose/{fast_choose}, how scales are chosen
    scaled:      fast_path_code/scaled/{scaled}, how numbers are divided by them
    mean, range: what is found of blocks beside extremes, fast_path_choose/mean/… and …/range/…
    """

    family: str
    fast_choose: str
    scaled: str
    tie_break: str
    mean: str
    range: str


@cache
def parts(fmt: Format) -> FastParts | None:
    """The parts of shaders that a format asks for, or None where there are none.

    They know of elements of at most 8 bits that are rounded to nearest or, under shared powers of
    two, stochastically, and of scales that are such powers, float32, or minifloats under a float32.
    """
    numbers, own = lowered(fmt), shader_of(fmt)[0]
    if _UNUSUAL & set(numbers.features) or numbers.recip or numbers.element.bits > 8:
        return None
    means = numbers.statistic in ("mean", "mean_above")
    if own.approximate == "none" or not (means or numbers.statistic in ("magnitude", "range")):
        return None
    family, rule = own.approximate, _rule(numbers, own)
    drawn = family.startswith("stochastic")
    if rule is None or (numbers.asym and (rule != "float" or family != "integer")):
        return None
    if drawn and own.how != "shift":
        return None
    if family == "codebook" and (own.how == "shift" or cells(numbers.element) is None):
        return None
    near = "shift_drawn" if drawn else own.how
    if means and rule != "float":
        return None
    if means:
        return FastParts(family, "means", near, family, mean="sums", range="means")
    return FastParts(family, rule, near, family, mean="none", range="extremes")


def _rule(numbers: FormatNumbers, own: FormatRoles) -> str | None:
    """The part fast_path_choose/{rule}."""
    if numbers.scale == "e8m0":
        return "any"
    if numbers.full or own.how != "quotient":
        return None
    if numbers.scale == "fp32":
        return "float"
    inner = own.inner == "minifloat" and own.joined == "multiplied"
    return "two_level" if inner and own.levels == "joint" and not numbers.asym else None


def narrowing(f: Form, dtype: torch.dtype) -> str:
    """The part fast_path_memory/narrow/{narrowing}: how values become numbers of the dtype."""
    if dtype == torch.float32:
        return "none"
    numbers = lowered(f.format)
    exact = numbers.scale == "e8m0" and _is_bfloat16(numbers.element)
    return "exact" if exact else "bfloat16"


def _is_bfloat16(element: ElementNumbers) -> bool:
    """Whether an element's values have no more bits than a bfloat16."""
    if element.family == "codebook":
        return not any(bits_of(value) & 0xFFFF for value in element.values if value == value)
    return element.bits <= 8


# Codebooks as cells of numbers, of which none has more than one threshold between two codes.


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
        if last - first >= _CELLS:
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
