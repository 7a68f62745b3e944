"""Packed codes -> values, several units of 16 bytes an invocation: where that was measured to be
faster than primitives/decode.py."""

from math import prod
from typing import NamedTuple

import torch

from blockscale.core.format import Format
from blockscale.core.scales.two_level import TwoLevel
from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.primitives.choices import Constants, numbers, shader
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, reading
from blockscale.kernels.webgpu.primitives.pieces import pieces

_GROUP = 256  # invocations of a workgroup


class Family(NamedTuple):
    """What formats whose codes were measured together have in common, as spellings name it.

    scale: its dtype's name, or that of the scales' own format
    zero:  "" without zero points, "int32" of those that are integers
    """

    element: str
    scale: str
    zero: str = ""


# Units of 16 bytes of values that an invocation writes: the fastest ones measured on an H200
# (docs/webgpu.md, "Speed").
_UNITS = {
    Family("e4m3", "e8m0"): {torch.float32: 4, torch.bfloat16: 2},
    Family("e2m1", "e8m0"): {torch.float32: 4, torch.bfloat16: 2},
    Family("e2m1", "e4m3"): {torch.float32: 2, torch.bfloat16: 2},
    Family("int8", "fp32"): {torch.float32: 4, torch.bfloat16: 8},
    Family("int4", "fp32"): {torch.float32: 4, torch.bfloat16: 8},
    Family("uint8", "fp32", "int32"): {torch.float32: 8},
}


def family(fmt: Format) -> Family:
    """The family of a format."""
    scale = str(fmt.scale) if isinstance(fmt.scale, TwoLevel) else lowered(fmt).scale
    zero = "int32" if fmt.zero is None else str(fmt.zero)
    return Family(fmt.element.name, scale, zero if fmt.asym else "")


def units(f: Form, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
    """How many units an invocation takes, or None where decode.py has to: other formats and dtypes,
    boxes, and units that have several scales or are not full. Where floats are a CPU's, it is
    faster."""
    at, row = geometry(shape, f.format.block), shape[-1] if shape else 1
    unit = 16 // dtype.itemsize
    own = f.format.offset is None and not at.shape and f.streams(row)
    if not own or not at.shares(unit) or at.count % unit or arithmetic() == "native":
        return None
    return _UNITS.get(family(f.format), {}).get(dtype)


def decode(
    f: Form, codes: Memory, shape: tuple[int, ...], parts: Parts, dtype: torch.dtype, each: int
) -> Memory:
    """As decode.py, by `each` of `units`."""
    at, unit = geometry(shape, f.format.block), 16 // dtype.itemsize
    choices, buffers = reading(f, parts, shape)
    beside = {name: whole(part) for name, part in buffers.items()}
    exact = "exact" if family(f.format).scale == "e8m0" else "bfloat16"
    narrow = "none" if dtype == torch.float32 else exact
    choices |= numbers(dtype) | {"blocks": at.kind, "narrow": narrow}
    constants: Constants = {"UNIT": unit, "GROUP": _GROUP, "EACH": each}
    made = shader("swift_dequantize", f, choices, constants)
    out, bits = allocate(prod(shape) * dtype.itemsize), 8 * dtype.itemsize
    for piece in pieces(at.count, max(bits, f.bits)):
        windows = {"codes": piece.window(codes, f.bits), "values": piece.window(out, bits)}
        groups = -(-piece.count // (unit * _GROUP * each))
        launch(made, beside | windows, at.named | piece.named, groups)
    return out
