# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in 3-D textures, and their way there from linear memory and back."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import (
    COMPONENTS,
    Memory,
    Texels,
    allocate,
    download,
    texels,
)
from blockscale.kernels.webgpu.gpu.shader import Kernel, Shader
from blockscale.kernels.webgpu.primitives.form import memory_of
from blockscale.kernels.webgpu.textures.layout import Layout, layout
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor

_LOCAL = (16, 4)  # of the kernel that fills a texture: rows of a texture lie after one another
_LANES = 64  # of the kernel that reads one
_TOGETHER = 256  # rows: as many of any length begin at a multiple of 256 bytes


@dataclass(frozen=True)
class TextureFill(Kernel, part="kernels/texture_fill"):
    """Texels of packed elements. texel: texture/texel/{texel}"""

    texel: str


@dataclass(frozen=True, eq=False)
class Texture:
    """A tensor in a 3-D texture, whose layout is that of `layout`.

    shape:  the tensor's, of any rank
    bits:   of an element; codes of fewer than 8 bits have a component of 8 to themselves
    stored: the shape of the tensor in linear memory; as `shape`, but for packed codes
    dtype:  its dtype there: bytes for codes of other widths than 8 and 16 bits
    """

    shape: tuple[int, ...]
    bits: int
    stored: tuple[int, ...]
    dtype: torch.dtype
    texels: Texels

    def tensor(self, device: str | torch.device = "cpu") -> Tensor:
        """The elements in rows of linear memory, packed there, on the CPU or on "webgpu"."""
        rows = layout(self.shape)
        row_bytes = -(-rows.width * self.bits // 8)
        memory = allocate(rows.rows * row_bytes)
        _read(self, rows, row_bytes, memory)
        if torch.device(device).type == "cpu":
            return download(memory, self.stored, self.dtype)
        return WebGPUTensor(memory, self.stored, self.dtype)


def texture(x: Tensor) -> Texture:
    """A tensor on the CPU or on "webgpu", of elements of 1, 2 or 4 bytes, as a texture.

    Raises TypeError for what is no tensor and for elements of another size, GpuError where it is
    too large for a texture.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"expected a tensor, found a {type(x).__name__}: convert it with torch.as_tensor"
        )
    if x.dtype.itemsize not in (1, 2, 4):
        raise TypeError(
            f"expected elements of 1, 2 or 4 bytes, found {str(x.dtype).removeprefix('torch.')}: "
            f"textures have components of 8, 16 and 32 bits"
        )
    shape = tuple(x.shape)
    made = empty(shape, x.dtype.itemsize * 8, shape, x.dtype)
    fill(made, memory_of(x))
    return made


def texture_of_codes(packed: Tensor, shape: tuple[int, ...], bits: int) -> Texture:
    """Packed codes (docs/numerics.md, section 6) of a tensor of `shape` as a texture of codes.

    Raises ValueError if there is another number of bytes.
    """
    rows = layout(shape)
    expected = rows.rows * -(-rows.width * bits // 8)
    if packed.nbytes != expected:
        raise ValueError(
            f"packed codes of {bits} bits of a tensor of shape {shape} have {expected} bytes, "
            f"found {packed.nbytes}: pass what bs.quantize packed"
        )
    made = empty(shape, bits, tuple(packed.shape), packed.dtype)
    fill(made, memory_of(packed))
    return made


def empty(
    shape: tuple[int, ...], bits: int, stored: tuple[int, ...], dtype: torch.dtype
) -> Texture:
    """A texture of zeros. Raises GpuError if it is too large for one."""
    x, y, z = layout(shape).texels
    width = next(each for each in (8, 16, 32) if bits <= each)
    return Texture(shape, bits, stored, dtype, texels((max(x, 1), max(y, 1), max(z, 1)), width))


def fill(target: Texture, packed: Memory) -> None:
    """Elements in rows of memory, packed there -> the texture."""
    at = layout(target.shape)
    row_bytes = -(-at.width * target.bits // 8)
    constants = (("BITS", target.bits), ("LOCAL_X", _LOCAL[0]), ("LOCAL_Y", _LOCAL[1]))
    shader = Shader(TextureFill(f"bits{target.texels.bits}"), constants)
    for first, rows in _chunks(at, row_bytes):
        sizes = {
            "width": at.width, "height": at.height, "first": first, "rows": rows,
            "row_bytes": row_bytes,
        }  # fmt: skip
        window = _window(packed, first, rows, row_bytes)
        across = -(-at.width // (COMPONENTS * _LOCAL[0]))
        groups = (across, -(-rows // _LOCAL[1]), 1)
        launch(shader, {"packed": window, "result": target.texels}, sizes, groups)


def _read(source: Texture, at: Layout, row_bytes: int, packed: Memory) -> None:
    unit = 32 if row_bytes % 4 == 0 else 8
    shader = Shader("kernels/texture_read", (("BITS", source.bits), ("UNIT", unit)))
    for first, rows in _chunks(at, row_bytes):
        words = -(-rows * row_bytes // 4)
        sizes = {
            "width": at.width, "height": at.height, "first": first, "rows": rows,
            "row_bytes": row_bytes, "words": words,
        }  # fmt: skip
        window = _window(packed, first, rows, row_bytes)
        launch(shader, {"packed": window, "source": source.texels}, sizes, -(-words // _LANES))


def _window(packed: Memory, first: int, rows: int, row_bytes: int) -> Window:
    return Window(packed, first * row_bytes, -(-rows * row_bytes // 4) * 4)


def _chunks(at: Layout, row_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) that kernels can see and grids can count at once."""
    if row_bytes == 0:
        return
    limits = gpu().limits
    seen = gpu().binding_limit // row_bytes // _TOGETHER * _TOGETHER
    counted = limits["max-compute-workgroups-per-dimension"] // _TOGETHER * _TOGETHER
    most = min(seen, counted * _LOCAL[1])
    for first in range(0, at.rows, most):
        yield first, min(most, at.rows - first)
