# SPDX-License-Identifier: BSD-3-Clause
"""Numbers become codes and packed bytes on the GPU, and codes numbers."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, upload
from blockscale.kernels.webgpu.gpu.shader import Shader, ShaderKernel
from blockscale.kernels.webgpu.primitives import fast_path
from blockscale.kernels.webgpu.primitives.form import (
    Constants,
    Form,
    NumberRoles,
    Parts,
    StoredParams,
    coding,
    geometry,
    numbers,
    pieces,
    reading,
    result,
    shader,
    whole,
)
from blockscale.kernels.webgpu.spec import Coding, shader_of

# Codes, one an item, become packed bytes on the GPU.


def pack_items(f: Form, items: Memory, count: int, row: int, item_bits: int) -> Memory:
    """Codes [count], one an item of 8, 16 or 32 bits, of rows of `row` -> packed bytes.

    Bits of an item above those of a code are dropped.
    """
    constants = dict(f.item_constants) | {"ITEM_BITS": item_bits}
    if item_bits != 8 * f.format.element.code_dtype.itemsize:
        constants["BY_SIGN"] = False  # patterns, not codes
    nbytes = count // row * f.row_bytes(row)
    packed = allocate(nbytes)
    launch(
        Shader("kernels/codes/pack", tuple(constants.items())),
        {"items": whole(items), "codes": whole(packed)},
        {"bytes": nbytes, "row_bytes": f.row_bytes(row), "row": row},
        -(-nbytes // 1024),
    )
    return packed


# Numbers -> codes or values, with a scale that is given.

Shape = tuple[int, ...]


@dataclass(frozen=True)
class QuantizeKernel(ShaderKernel, part="kernels/codes/quantize"):
    """What a stored scale makes of numbers.

    result: "codes", "values", or the "gradient" that passes where numbers are in range, whose
        ends are those of element/in_range/{ends}
    draws:  "drawn" or "undrawn" random numbers
    """

    coding: Coding
    numbers: NumberRoles
    stored: StoredParams
    blocks: str
    result: str
    draws: str
    ends: str | None = None


def seed_memory(f: Form, seed: Tensor | None) -> Memory | None:
    """The four words that kernels read of a seed, or None where rounding draws nothing.

    Raises ValueError if it is missing or something else.
    """
    tensor = f.checked_seed(seed, anywhere=True)
    if tensor is None:
        return None
    words = torch.zeros(2, dtype=torch.int64)
    words[: tensor.numel()] = tensor.cpu().reshape(-1)
    return upload(words)


def begins_four(seed: Tensor | None) -> bool:
    """Whether the first element's random number is the first of four that are drawn together."""
    return seed is None or seed.numel() < 2 or int(seed.reshape(-1)[1]) % 4 == 0


def codes(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, parts: Parts, seed: Memory | None
) -> Memory:
    """Packed codes of numbers [*shape], of which there are some.

    Rows that end within a byte are packed by a second kernel.
    """
    row = shape[-1] if shape else 1
    streams, bits = f.streams(row), written_bits(f, shape)
    out = allocate(-(-prod(shape) * bits // 8))
    _encode(f, x, dtype, shape, parts, seed, "codes", out, bits)
    return out if streams else pack_items(f, out, prod(shape), row, bits)


def values(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, parts: Parts, seed: Memory | None
) -> Memory:
    """Numbers [*shape] after a round trip, in their dtype."""
    out = result(shape, dtype)
    _encode(f, x, dtype, shape, parts, seed, "values", out, 8 * dtype.itemsize)
    return out


def passing(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, parts: Parts, gradient: Memory, bits: int
) -> Memory:
    """A gradient of `bits` an element where x is in range, else 0."""
    out = allocate(prod(shape) * bits // 8)
    _encode(f, x, dtype, shape, parts, None, "gradient", out, bits, gradient)
    return out


def _encode(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, parts: Parts, seed: Memory | None,
    what: str, out: Memory, bits: int, gradient: Memory | None = None,
) -> None:  # fmt: skip
    """bits: of an element of `out`"""
    at = geometry(tuple(shape), f.format.block)
    stored, buffers = reading(f, parts, shape)
    beside = {name: whole(memory) for name, memory in buffers.items()}
    draws = "undrawn" if seed is None else "drawn"
    kernel = QuantizeKernel(coding(f), numbers(dtype), stored, at.kind, what, draws)
    constants: Constants = {"OUT_BITS": bits} if what == "codes" else {}
    if what == "gradient":  # its mask does not depend on a draw (docs/numerics.md, 5)
        constants["GRADIENT_BITS"] = bits
        kernel = kernel.with_variants(
            element=without_table(f),
            ends=lowered(f.format).element.family,
            rounding=f.format.rounding if not f.needs_seed else "nearest_even",
        )
    chunk = chunk_of(bits, dtype)
    constants |= {"CHUNK": chunk, "SHARED": at.shares(chunk)}
    result = shader(f, kernel, constants)
    output = "codes" if what == "codes" else "values"
    own = 8 * dtype.itemsize
    for piece in pieces(at.count, max(own, bits)):
        sizes = at.shader_sizes | piece.shader_sizes
        given_buffers = {**beside, "x": piece.window(x, own), output: piece.window(out, bits)}
        if what == "codes":
            sizes["words"] = -(-piece.count * bits // 32)
        if seed is not None:
            given_buffers["seed"] = whole(seed)
        if gradient is not None:
            given_buffers["gradient"] = piece.window(gradient, bits)
        launch(result, given_buffers, sizes, -(-piece.count // (256 * chunk)))


def without_table(f: Form) -> str:
    """The part element/… of a kernel that asks for no codes: such would bind a table in vain."""
    element = shader_of(f.format)[0].element
    return "ends" if element == "large_codebook" else element


def written_bits(f: Form, shape: Shape) -> int:
    """The bits that a code takes where it is first written: bytes where rows end within one."""
    if f.streams(shape[-1] if shape else 1):
        return f.bits
    return 8 if f.bits <= 8 else 16


def chunk_of(bits: int, dtype: torch.dtype) -> int:
    """How many elements an invocation takes: such that it writes whole words, and reads 16 bytes.

    bits: of what it writes
    """
    whole_words = max(32 // (bits & -bits), 4)
    return max(whole_words, 16 // dtype.itemsize)


# Packed codes -> values.


@dataclass(frozen=True)
class DequantizeKernel(ShaderKernel, part="kernels/codes/dequantize"):
    """Values of codes. codes: in a "stream", or in "rows" with gaps"""

    coding: Coding
    numbers: NumberRoles
    stored: StoredParams
    blocks: str
    codes: str


def decode(
    f: Form, codes: Memory, shape: tuple[int, ...], parts: Parts, dtype: torch.dtype
) -> Memory:
    """Packed codes of a tensor of `shape`, which is not empty -> values of `dtype`."""
    shape = tuple(shape)
    each = fast_path.units(f, shape, dtype)
    if each is not None:
        return fast_path.decode(f, codes, shape, parts, dtype, each)
    at = geometry(shape, f.format.block)
    row = shape[-1] if shape else 1
    streams = f.streams(row)
    stored, buffers = reading(f, parts, shape)
    beside = {name: whole(part) for name, part in buffers.items()}
    kernel = DequantizeKernel(
        coding(f), numbers(dtype), stored, blocks=at.kind, codes="stream" if streams else "rows"
    )
    chunk = 16 // dtype.itemsize
    constants: Constants = {"CHUNK": chunk, "SHARED": at.shares(chunk)}
    output = shader(f, kernel, constants)
    out, bits = result(shape, dtype), 8 * dtype.itemsize
    for piece in pieces(at.count, max(bits, f.bits)):
        sizes = at.shader_sizes | piece.shader_sizes
        if not streams:
            sizes |= {"row": row, "row_bytes": f.row_bytes(row)}
        memory = piece.window(codes, f.bits) if streams else whole(codes)
        launch(
            output,
            {**beside, "codes": memory, "values": piece.window(out, bits)},
            sizes,
            -(-piece.count // (256 * chunk)),
        )
    return out
