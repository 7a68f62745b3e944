# SPDX-License-Identifier: BSD-3-Clause
"""The kernel that turns texels into texels: numbers into codes, codes into values."""

from dataclasses import dataclass

from blockscale.kernels.webgpu.gpu.launch import Bound, launch
from blockscale.kernels.webgpu.gpu.memory import COMPONENTS, Memory
from blockscale.kernels.webgpu.gpu.shader import Constant, Kernel
from blockscale.kernels.webgpu.primitives.form import (
    DTYPES,
    Form,
    Parts,
    Stored,
    coding,
    geometry,
    reading,
    shader,
    whole,
)
from blockscale.kernels.webgpu.spec import Coding
from blockscale.kernels.webgpu.textures.layout import BlockGrid, Layout, block_grid, layout
from blockscale.kernels.webgpu.textures.storage import Texture

INVOCATIONS = 256  # of a workgroup, which every device has
_ROW = 16  # texels along x, at least: neighbours in memory, which lanes read together
_LONGEST = 128  # along x

Three = tuple[int, int, int]


@dataclass(frozen=True)
class TextureMap(Kernel, part="kernels/texture_map"):
    """Texels of texels. texel: texture/texel/{texel}; op: texture/ops/{op}

    texels, blocks: how a texel's blocks are found, texture/blocks/{texels} and blocks/{blocks}
    """

    coding: Coding
    stored: Stored
    texels: str
    blocks: str
    texel: str
    op: str
    dtype: str
    drawn: str


_NAMES = ("width", "height", "channels", "batch")


def run(
    op: str, f: Form, source: Texture, made: Texture, parts: Parts, seed: Memory | None,
    local: Three | None = None,
) -> None:  # fmt: skip
    """Texels of `source` -> texels of `made`, by the part texture/ops/{op}.

    local: the local size; None for that of the rule
    """
    at = layout(source.shape)
    if at.rows * at.width == 0:
        return
    numbers = made if op == "dequantize" else source
    stored, buffers = reading(f, parts, source.shape)
    (texels, blocks), sizes, shared, block = _blocks(f, source.shape, at)
    size = local or local_size(block, at.texels)
    kernel = TextureMap(
        coding(f), stored, texels, blocks, texel=f"bits{made.texels.bits}", op=op,
        dtype=DTYPES[numbers.dtype], drawn="undrawn" if seed is None else "drawn",
    )  # fmt: skip
    constants: dict[str, Constant] = {
        "SHARED": shared, "LOCAL_X": size[0], "LOCAL_Y": size[1], "LOCAL_Z": size[2],
    }  # fmt: skip
    bound: dict[str, Bound] = {name: whole(memory) for name, memory in buffers.items()}
    bound |= {"source": source.texels, "result": made.texels}
    if seed is not None:
        bound["seed"] = whole(seed)
    named = {"width": at.width, "height": at.height, "depth": at.depth}
    launch(shader(f, kernel, constants), bound, named | sizes, groups(at.texels, size))


def _blocks(
    f: Form, shape: tuple[int, ...], at: Layout
) -> tuple[tuple[str, str], dict[str, int], bool, Three]:
    """(TextureMap's texels and blocks, sizes they read, whether a texel has one, its texels)."""
    boxes = block_grid(shape, f.format.block)
    around = geometry(shape, f.format.block)
    roles = "any" if boxes is None else "boxes", around.kind
    if boxes is None:
        shared = at.width % COMPONENTS == 0 and around.shares(COMPONENTS)
        return roles, around.named, shared, at.texels
    return roles, _named(boxes), boxes.shared, boxes.texels


def _named(boxes: BlockGrid) -> dict[str, int]:
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
    left = INVOCATIONS
    for bound in (first, (min(size[0], _LONGEST), size[1], min(size[2], 64))):
        for axis in range(3):
            while left > 1 and sizes[axis] < min(bound[axis], size[axis], 64 if axis == 2 else 256):
                sizes[axis] *= 2
                left //= 2
    return sizes[0], sizes[1], sizes[2]
