"""The scale of each block of a tensor."""

from math import prod

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, zeros
from blockscale.kernels.webgpu.primitives.choices import Choices, Constants, shader
from blockscale.kernels.webgpu.primitives.find import GROUP, find, of_means, statistic
from blockscale.kernels.webgpu.primitives.form import DTYPES, Form, whole
from blockscale.kernels.webgpu.primitives.geometry import geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, new_parts, outer_of_blocks
from blockscale.kernels.webgpu.primitives.source import Source

Shape = tuple[int, ...]


def choose(f: Form, x: Source, dtype: torch.dtype, shape: Shape) -> Parts:
    """The scale of numbers [*shape], of which there are some, and what goes with it."""
    at = geometry(tuple(shape), f.format.block)
    found = find(f, x, dtype, at)
    choices: Choices = {
        "statistic": statistic(f),
        "found": "means" if of_means(f) else "extremes",
        "given_outer": "none",
    }
    parts = new_parts(f, shape)
    buffers = dict(found)
    if f.inner is not None:
        parts = parts._replace(outer=_outer(f, found, choices, shape))
        assert parts.outer is not None
        choices["given_outer"], buffers["outers"] = outer_of_blocks(f, parts.outer, shape)
    _finish(f, buffers, choices, parts, at.blocks)
    return parts


def _finish(
    f: Form, buffers: dict[str, Memory], choices: Choices, parts: Parts, blocks: int
) -> None:
    """Write the scales of blocks."""
    scale_bits = 8 * f.scale_dtype.itemsize
    offset_bits = 32 if f.offset_dtype is None else 8 * f.offset_dtype.itemsize
    together = 32 // min(scale_bits, offset_bits)
    constants: Constants = {
        "SCALE_BITS": scale_bits,
        "OFFSET_BITS": offset_bits,
        "TOGETHER": together,
        "POISONS": lowered(f.format).poisons,
    }
    choices = {
        **choices,
        "store_zero": "none" if parts.zero is None else "word",
        "store_offsets": "none" if parts.offset is None else "words",
        "stored_scale": stored(f.scale_dtype),
        "stored_offset": stored(f.offset_dtype),
    }
    written = {"scales": parts.scale, "zeros": parts.zero, "offsets": parts.offset}
    there = {name: part for name, part in written.items() if part is not None}
    launch(
        shader("finish", f, choices, constants),
        {name: whole(memory) for name, memory in (buffers | there).items()},
        {"blocks": blocks},
        -(-blocks // (GROUP * together)),
    )


def stored(dtype: torch.dtype | None) -> str:
    """How what is chosen as float32, or as a byte, is stored."""
    return DTYPES[dtype] if dtype in (torch.float16, torch.bfloat16) else "plain"


def _outer(f: Form, found: dict[str, Memory], choices: Choices, shape: Shape) -> Memory:
    """The outer scales, chosen from the largest numerators of the blocks that share them."""
    assert f.inner is not None and f.outer_shape is not None
    scales = f.scale_shape(shape)
    at = geometry(scales, f.inner.block)
    count = prod(f.outer_shape(scales))
    largest, outers = zeros(4 * count), allocate(4 * count)
    constants: Constants = {"ONE_OUTER": count == 1, "POISONS": lowered(f.format).poisons}
    launch(
        shader("numerators", f, {**choices, "blocks": at.kind}, constants),
        {name: whole(memory) for name, memory in found.items()} | {"largest": whole(largest)},
        at.named | {"blocks": at.count},
        -(-at.count // (GROUP * 16)),
    )
    launch(
        shader("outer", f, choices, {}),
        {"largest": whole(largest), "outers": whole(outers)},
        {"outers": count},
        -(-count // GROUP),
    )
    return outers
