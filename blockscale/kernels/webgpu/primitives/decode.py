# SPDX-License-Identifier: BSD-3-Clause
"""Packed codes -> values."""

from dataclasses import dataclass

import torch

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.gpu.shader import Kernel
from blockscale.kernels.webgpu.primitives import fast_path_decode
from blockscale.kernels.webgpu.primitives.choices import (
    Constants,
    Numbers,
    coding,
    numbers,
    shader,
)
from blockscale.kernels.webgpu.primitives.form import Form, result, whole
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, Stored, reading
from blockscale.kernels.webgpu.primitives.pieces import pieces
from blockscale.kernels.webgpu.spec import Coding


@dataclass(frozen=True)
class Dequantize(Kernel, part="kernels/dequantize"):
    """Values of codes. codes: in a "stream", or in "rows" with gaps"""

    coding: Coding
    numbers: Numbers
    stored: Stored
    blocks: str
    codes: str


def decode(
    f: Form, codes: Memory, shape: tuple[int, ...], parts: Parts, dtype: torch.dtype
) -> Memory:
    """Packed codes of a tensor of `shape`, which is not empty -> values of `dtype`."""
    shape = tuple(shape)
    each = fast_path_decode.units(f, shape, dtype)
    if each is not None:
        return fast_path_decode.decode(f, codes, shape, parts, dtype, each)
    at = geometry(shape, f.format.block)
    row = shape[-1] if shape else 1
    streams = f.streams(row)
    stored, buffers = reading(f, parts, shape)
    beside = {name: whole(part) for name, part in buffers.items()}
    kernel = Dequantize(
        coding(f), numbers(dtype), stored, blocks=at.kind, codes="stream" if streams else "rows"
    )
    chunk = 16 // dtype.itemsize
    constants: Constants = {"CHUNK": chunk, "SHARED": at.shares(chunk)}
    made = shader(f, kernel, constants)
    out, bits = result(shape, dtype), 8 * dtype.itemsize
    for piece in pieces(at.count, max(bits, f.bits)):
        sizes = at.named | piece.named
        if not streams:
            sizes |= {"row": row, "row_bytes": f.row_bytes(row)}
        memory = piece.window(codes, f.bits) if streams else whole(codes)
        launch(
            made,
            {**beside, "codes": memory, "values": piece.window(out, bits)},
            sizes,
            -(-piece.count // (256 * chunk)),
        )
    return out
