# SPDX-License-Identifier: BSD-3-Clause
"""The kernel that turns texels into texels: numbers into codes, codes into values."""

from blockscale.kernels.webgpu.gpu.launch import Bound, launch
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.gpu.texels import COMPONENTS
from blockscale.kernels.webgpu.primitives.choices import of_device
from blockscale.kernels.webgpu.primitives.form import DTYPES, Form, whole
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, reading
from blockscale.kernels.webgpu.spec import shader_of
from blockscale.kernels.webgpu.textures.layout import BlockGrid, Layout, block_grid, layout
from blockscale.kernels.webgpu.textures.local_size import Three, local_size
from blockscale.kernels.webgpu.textures.storage import Texture

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
    own, known = shader_of(f.format)
    read, buffers = reading(f, parts, source.shape)
    chosen, sizes, shared, block = _blocks(f, source.shape, at)
    size = local or local_size(block, at.texels)
    choices = dict(own) | of_device() | read | chosen | {
        "texel": f"bits{made.texels.bits}", "op": op, "dtype": DTYPES[numbers.dtype],
        "drawn": "undrawn" if seed is None else "drawn",
    }  # fmt: skip
    constants: dict[str, Constant] = {
        **dict(known), "SHARED": shared,
        "LOCAL_X": size[0], "LOCAL_Y": size[1], "LOCAL_Z": size[2],
    }  # fmt: skip
    bound: dict[str, Bound] = {name: whole(memory) for name, memory in buffers.items()}
    bound |= {"source": source.texels, "result": made.texels}
    if seed is not None:
        bound["seed"] = whole(seed)
    shader = Shader("kernels/texture_map", tuple(choices.items()), tuple(constants.items()))
    named = {"width": at.width, "height": at.height, "depth": at.depth}
    launch(shader, bound, named | sizes, groups(at.texels, size))


def _blocks(
    f: Form, shape: tuple[int, ...], at: Layout
) -> tuple[dict[str, str], dict[str, int], bool, Three]:
    """(parts that find a texel's blocks, sizes they read, whether a texel has one, its texels)."""
    boxes = block_grid(shape, f.format.block)
    around = geometry(shape, f.format.block)
    choices = {"texels": "any" if boxes is None else "boxes", "blocks": around.kind}
    if boxes is None:
        shared = at.width % COMPONENTS == 0 and around.shares(COMPONENTS)
        return choices, around.named, shared, at.texels
    return choices, _named(boxes), boxes.shared, boxes.texels


def _named(boxes: BlockGrid) -> dict[str, int]:
    blocks = {f"block_{name}": n for name, n in zip(_NAMES, boxes.sizes, strict=True)}
    strides = {f"stride_{name}": n for name, n in zip(_NAMES, boxes.strides, strict=True)}
    return {"channels": boxes.tensor[2]} | blocks | strides


def groups(size: Three, local: Three) -> Three:
    """Workgroups of a local size that cover a texture."""
    x, y, z = (-(-n // step) for n, step in zip(size, local, strict=True))
    return x, y, z
