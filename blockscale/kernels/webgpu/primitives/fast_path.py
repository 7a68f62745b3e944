# SPDX-License-Identifier: BSD-3-Clause
"""Groups of a format whose arithmetic has a shorter way: its parts, sums and codes."""

import warnings
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.rounding import nearest_even
from blockscale.kernels.numbers import FormatNumbers, lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download, upload
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Roles, Shader, ShaderKernel
from blockscale.kernels.webgpu.primitives.form import (
    Constants,
    Form,
    NumberRoles,
    Parts,
    StoredParams,
    coding,
    geometry,
    numbers,
    of_device,
    pieces,
    reading,
    shader,
    whole,
)
from blockscale.kernels.webgpu.spec import Coding, FormatRoles, bits_of, shader_of

# What the fast path's kernels know of formats: which parts they ask for, codebooks as cells.

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
    stochastic = family.startswith("stochastic")
    if rule is None or (numbers.asym and (rule != "float" or family != "integer")):
        return None
    if stochastic and own.how != "shift":
        return None
    if family == "codebook" and (own.how == "shift" or cells(numbers.element) is None):
        return None
    near = "shift_drawn" if stochastic else own.how
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
    inner = own.inner == "minifloat" and own.join == "multiplied"
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


# Whether a device's sums round where the kernels of the fast path want them to, asked of it once.
#
# Beside 1.5 * 2^23 the neighbours of a float32 are whole: those kernels round numbers by adding
# that and subtracting it again, which a compiler that takes liberties with floats may leave out.

_FORMATS = ("int8:group4:e8m0/floor", "e4m3:group4:e8m0/floor")  # of each way to round


@dataclass(frozen=True)
class ProbeFastPath(ShaderKernel, part="kernels/probe/fast_path"):
    """What numbers are rounded to. family, scaled: as those of FastParts"""

    coding: Coding
    family: str
    scaled: str


@cache
def refusal() -> str | None:
    """Why numbers cannot be rounded by sums on this device, or None; said once, as a warning."""
    wrong = [fmt.split(":")[0] for fmt in _FORMATS if _wrong(fmt)]
    if not wrong:
        return None
    reason = (
        f"{gpu().name} leaves out sums by which kernels round to {', '.join(wrong)}: slower "
        f"kernels, which round by other means, compute instead"
    )
    warnings.warn(reason, stacklevel=2)
    return reason


def _wrong(fmt: str) -> bool:
    """Whether a number of the probe is rounded to another value than the reference's."""
    element, x = parse(fmt).element, _numbers()
    right = element.decode(element.encode(x, nearest_even, None, False))
    return not torch.equal(rounded(x, fmt), right)


def rounded(x: Tensor, fmt: str) -> Tensor:
    """float32 [4 n] -> values of the format's elements, in steps of one"""
    own, constants = shader_of(fmt)
    scaled = "shift_drawn" if "stochastic" in own.approximate else "shift"
    shader = Shader(ProbeFastPath(Coding(own, of_device()), own.approximate, scaled), constants)
    values = allocate(4 * len(x))
    buffers = {"numbers": upload(x), "steps": upload(torch.ones(len(x) // 4)), "values": values}
    launch(shader, buffers, {"count": len(x) // 4}, -(-len(x) // 256), bake=False)
    return download(values, (len(x),), torch.float32)


def _numbers() -> Tensor:
    """Ties, their neighbours, and what lies beyond the codes."""
    quarters = torch.arange(-600.0, 600.0) / 4
    small = torch.arange(-400.0, 400.0) / 4096
    x = torch.cat([quarters, small, torch.tensor([500.0, -500.0, 1e30, -1e30])])
    beside = torch.cat([x, x * (1 + 2.0**-20), x * (1 - 2.0**-20)])
    return beside[: len(beside) // 4 * 4]


# Packed codes -> values, several units of 16 bytes an invocation: where that was measured to be
# faster than primitives/decode.py.

_GROUP = 256  # invocations of a workgroup


@dataclass(frozen=True)
class FastDequantize(ShaderKernel, part="kernels/fast_path/dequantize"):
    """Values of codes, several units an invocation. narrow: fast_path_memory/narrow/{narrow}"""

    coding: Coding
    numbers: NumberRoles
    stored: StoredParams
    blocks: str
    narrow: str


def units(f: Form, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
    """How many units of 16 bytes an invocation writes, the fastest that were measured
    (docs/webgpu.md, "Speed"), or None where decode.py has to: units that have several scales or
    are not full, offsets and zero points that are no integers, float16. Where floats are a CPU's,
    it is faster."""
    if not fits(f, shape, dtype):
        return None
    if dtype == torch.bfloat16 or f.inner is not None:
        return 2
    return 8 if f.asym else 4


def fits(f: Form, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether units are full and have one scale each, and codes follow one another."""
    at, row = geometry(tuple(shape), f.format.block), shape[-1] if shape else 1
    unit = 16 // dtype.itemsize
    if f.format.offset is not None or f.format.zero is not None or dtype == torch.float16:
        return False
    return f.streams(row) and at.shares(unit) and at.count % unit == 0 and arithmetic() != "native"


def decode(
    f: Form, codes: Memory, shape: tuple[int, ...], parts: Parts, dtype: torch.dtype, each: int
) -> Memory:
    """As decode.py, by `each` of `units`."""
    at, unit = geometry(shape, f.format.block), 16 // dtype.itemsize
    stored, buffers = reading(f, parts, shape)
    beside = {name: whole(part) for name, part in buffers.items()}
    kernel = FastDequantize(
        coding(f), numbers(dtype), stored, blocks=at.kind, narrow=narrowing(f, dtype)
    )
    constants: Constants = {"UNIT": unit, "GROUP": _GROUP, "EACH": each}
    element = lowered(f.format).element
    if element.family == "codebook" and element.bits <= 4:
        kernel = kernel.with_variants(values="codebook")
        values = [bits_of(value) for value in element.values]
        constants["VALUE_TABLE"] = (*values, *[0] * (16 - len(values)))
    result = shader(f, kernel, constants)
    out, bits = allocate(prod(shape) * dtype.itemsize), 8 * dtype.itemsize
    for piece in pieces(at.count, max(bits, f.bits)):
        windows = {"codes": piece.window(codes, f.bits), "values": piece.window(out, bits)}
        groups = -(-piece.count // (unit * _GROUP * each))
        launch(result, beside | windows, at.shader_sizes | piece.shader_sizes, groups)
    return out
