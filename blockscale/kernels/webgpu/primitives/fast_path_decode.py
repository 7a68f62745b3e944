# SPDX-License-Identifier: BSD-3-Clause
"""Packed codes -> values, several units of 16 bytes an invocation: where that was measured to be
faster than primitives/decode.py."""

from dataclasses import dataclass
from math import prod

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.gpu.shader import Kernel
from blockscale.kernels.webgpu.primitives.choices import (
    Constants,
    Numbers,
    coding,
    numbers,
    shader,
)
from blockscale.kernels.webgpu.primitives.fast_path_parts import narrowing
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, Stored, reading
from blockscale.kernels.webgpu.primitives.pieces import pieces
from blockscale.kernels.webgpu.spec import Coding, bits_of

_GROUP = 256  # invocations of a workgroup


@dataclass(frozen=True)
class FastDequantize(Kernel, part="kernels/fast_path_dequantize"):
    """Values of codes, several units an invocation. narrow: fast_path_memory/narrow/{narrow}"""

    coding: Coding
    numbers: Numbers
    stored: Stored
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
        kernel = kernel.replaced(values="codebook")
        values = [bits_of(value) for value in element.values]
        constants["VALUE_TABLE"] = (*values, *[0] * (16 - len(values)))
    made = shader(f, kernel, constants)
    out, bits = allocate(prod(shape) * dtype.itemsize), 8 * dtype.itemsize
    for piece in pieces(at.count, max(bits, f.bits)):
        windows = {"codes": piece.window(codes, f.bits), "values": piece.window(out, bits)}
        groups = -(-piece.count // (unit * _GROUP * each))
        launch(made, beside | windows, at.named | piece.named, groups)
    return out
