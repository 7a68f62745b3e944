# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in 3-D textures: how elements lie in them and get there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block
from blockscale.core.untrusted import kind_of
from blockscale.kernels.numbers import merged
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import Bound, Window, launch
from blockscale.kernels.webgpu.gpu.memory import (
    COMPONENTS,
    Memory,
    Texels,
    allocate,
    download,
    texels,
)
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader, ShaderKernel
from blockscale.kernels.webgpu.primitives.form import (
    DTYPES,
    Form,
    Parts,
    StoredParams,
    coding,
    geometry,
    memory_of,
    reading,
    shader,
    whole,
)
from blockscale.kernels.webgpu.spec import Coding
from blockscale.kernels.webgpu.torch_device import WebGPUTensor

# Where the elements of a tensor lie in a 3-D texture, and to which blocks they belong.
#
# Texel (x, y, z) holds the elements 4x … 4x + 3 along the last dimension (the width), of row y of
# the one before (the height); z counts all other dimensions in row-major order, so that the batch
# is folded with the channels: z = channel + channels * batch.

Four = tuple[int, int, int, int]  # along the width, the height, the channels, the batch


class Layout(NamedTuple):
    """Elements along the width, rows along the height, and layers of them."""

    width: int
    height: int
    depth: int

    @property
    def texels(self) -> tuple[int, int, int]:
        """Texels along x, y and z."""
        return -(-self.width // COMPONENTS), self.height, self.depth

    @property
    def rows(self) -> int:
        """Rows of elements."""
        return self.height * self.depth


class BlockGrid(NamedTuple):
    """Blocks that are boxes; all four by width, height, channels, batch.

    tensor:  the tensor's sizes
    sizes:   the blocks' sizes, at most the tensor's
    counts:  how many there are along each dimension
    strides: between neighbours along each dimension in the row-major order of scales
    """

    tensor: Four
    sizes: Four
    counts: Four
    strides: Four

    @property
    def shared(self) -> bool:
        """Whether the components of a texel lie in one block."""
        return self.counts[0] == 1 or self.sizes[0] % COMPONENTS == 0

    @property
    def texels(self) -> tuple[int, int, int]:
        """The most texels that a block reaches into, along x, y and z."""
        width, height, channels, batch = self.sizes
        across = -(-width // COMPONENTS) if self.shared else (width + 2) // COMPONENTS + 1
        return min(across, -(-self.tensor[0] // COMPONENTS)), height, channels * batch


def layout(shape: Sequence[int]) -> Layout:
    """The layout of a tensor of `shape`, of any rank."""
    height, width = _last_two(shape)
    return Layout(width, height, prod(shape[:-2]))


@cache
def block_grid(shape: tuple[int, ...], block: Block) -> BlockGrid | None:
    """The blocks of a tensor of `shape`, which has elements; None where they are no boxes so.

    Dimensions before the last two are merged into two where blocks allow it; they are no boxes
    where they do not, and where blocks run over the flattened tensor.
    """
    if block.flat:
        return None
    block_sizes = block.sizes_for(len(shape))
    own = [n if size == WHOLE else min(size, n) for n, size in zip(shape, block_sizes, strict=True)]
    outer, outer_sizes = merged(shape[:-2], own[:-2])
    if len(outer) > 2:
        return None
    tensor = _four(outer, _last_two(shape))
    sizes = _four(outer_sizes, _last_two(own))
    counts = _four((), tuple(-(-n // size) for n, size in zip(tensor, sizes, strict=True))[::-1])
    strides = (1, counts[0], prod(counts[:2]), prod(counts[:3]))
    return BlockGrid(tensor, sizes, counts, strides)


def _last_two(sizes: Sequence[int]) -> tuple[int, int]:
    height, width = (1, 1, *sizes)[-2:]
    return height, width


def _four(outer: tuple[int, ...], inner: tuple[int, ...]) -> Four:
    """Sizes in the order of a shape, as width, height, channels, batch."""
    batch, channels, height, width = (1, 1, *outer, *inner)[-4:]
    return width, height, channels, batch


# Tensors in 3-D textures, and their way there from linear memory and back.

_LOCAL = (16, 4)  # of the kernel that fills a texture: rows of a texture lie after one another
_LANES = 64  # of the kernel that reads one
_TOGETHER = 256  # rows: as many of any length begin at a multiple of 256 bytes


@dataclass(frozen=True)
class TextureFill(ShaderKernel, part="kernels/texture/fill"):
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
        raise TypeError(f"expected a tensor, found {kind_of(x)}: convert it with torch.as_tensor")
    if x.dtype.itemsize not in (1, 2, 4):
        raise TypeError(
            f"expected elements of 1, 2 or 4 bytes, found {str(x.dtype).removeprefix('torch.')}: "
            f"textures have components of 8, 16 and 32 bits"
        )
    shape = tuple(x.shape)
    result = empty(shape, x.dtype.itemsize * 8, shape, x.dtype)
    fill(result, memory_of(x))
    return result


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
    result = empty(shape, bits, tuple(packed.shape), packed.dtype)
    fill(result, memory_of(packed))
    return result


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
    shader = Shader("kernels/texture/read", (("BITS", source.bits), ("UNIT", unit)))
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
    by_bytes = gpu().binding_limit // row_bytes // _TOGETHER * _TOGETHER
    by_count = limits["max-compute-workgroups-per-dimension"] // _TOGETHER * _TOGETHER
    most = min(by_bytes, by_count * _LOCAL[1])
    for first in range(0, at.rows, most):
        yield first, min(most, at.rows - first)


# The kernel that turns texels into texels: numbers into codes, codes into values.

INVOCATIONS = 256  # of a workgroup, which every device has
_ROW = 16  # texels along x, at least: neighbours in memory, which lanes read together
_LONGEST = 128  # along x

Three = tuple[int, int, int]


@dataclass(frozen=True)
class TextureMap(ShaderKernel, part="kernels/texture/map"):
    """Texels of texels. texel: texture/texel/{texel}; op: texture/ops/{op}

    texels, blocks: how a texel's blocks are found, texture/blocks/{texels} and blocks/{blocks}
    """

    coding: Coding
    stored: StoredParams
    texels: str
    blocks: str
    texel: str
    op: str
    dtype: str
    draws: str


_NAMES = ("width", "height", "channels", "batch")


def run(
    op: str, f: Form, source: Texture, texture: Texture, parts: Parts, seed: Memory | None,
    local: Three | None = None,
) -> None:  # fmt: skip
    """Texels of `source` -> texels of `made`, by the part texture/ops/{op}.

    local: the local size; None for that of the rule
    """
    at = layout(source.shape)
    if at.rows * at.width == 0:
        return
    numbers = texture if op == "dequantize" else source
    stored, buffers = reading(f, parts, source.shape)
    (texels, blocks), sizes, shared, block = _blocks(f, source.shape, at)
    size = local or local_size(block, at.texels)
    kernel = TextureMap(
        coding(f), stored, texels, blocks, texel=f"bits{texture.texels.bits}", op=op,
        dtype=DTYPES[numbers.dtype], draws="undrawn" if seed is None else "drawn",
    )  # fmt: skip
    constants: dict[str, Constant] = {
        "SHARED": shared, "LOCAL_X": size[0], "LOCAL_Y": size[1], "LOCAL_Z": size[2],
    }  # fmt: skip
    bound: dict[str, Bound] = {name: whole(memory) for name, memory in buffers.items()}
    bound |= {"source": source.texels, "result": texture.texels}
    if seed is not None:
        bound["seed"] = whole(seed)
    extent = {"width": at.width, "height": at.height, "depth": at.depth}
    launch(shader(f, kernel, constants), bound, extent | sizes, groups(at.texels, size))


def _blocks(
    f: Form, shape: tuple[int, ...], at: Layout
) -> tuple[tuple[str, str], dict[str, int], bool, Three]:
    """(TextureMap's texels and blocks, sizes they read, whether a texel has one, its texels)."""
    boxes = block_grid(shape, f.format.block)
    around = geometry(shape, f.format.block)
    roles = "any" if boxes is None else "boxes", around.kind
    if boxes is None:
        shared = at.width % COMPONENTS == 0 and around.shares(COMPONENTS)
        return roles, around.shader_sizes, shared, at.texels
    return roles, _block_sizes(boxes), boxes.shared, boxes.texels


def _block_sizes(boxes: BlockGrid) -> dict[str, int]:
    blocks = {f"block_{name}": n for name, n in zip(_NAMES, boxes.sizes, strict=True)}
    strides = {f"stride_{name}": n for name, n in zip(_NAMES, boxes.strides, strict=True)}
    return {"channels": boxes.tensor[2]} | blocks | strides


def groups(size: Three, local: Three) -> Three:
    """Workgroups of a local size that cover a texture."""
    x, y, z = (-(-n // step) for n, step in zip(size, local, strict=True))
    return x, y, z


def local_size(block: Three, size: Three) -> Three:
    """The local size for blocks that reach into `block` texels of a texture of `size`.

    A workgroup takes a row of 16 texels, or of as many as a block has, then as much of the block as
    it can, along y, then z, so that its invocations use the same scales; what is left goes to
    blocks beside it, along x first. Each is a power of two, and none is larger than needed.
    """
    first = (min(max(block[0], _ROW), _LONGEST), block[1], block[2])
    sizes = [1, 1, 1]
    rest = INVOCATIONS
    for bound in (first, (min(size[0], _LONGEST), size[1], min(size[2], 64))):
        for axis in range(3):
            while rest > 1 and sizes[axis] < min(bound[axis], size[axis], 64 if axis == 2 else 256):
                sizes[axis] *= 2
                rest //= 2
    return sizes[0], sizes[1], sizes[2]
