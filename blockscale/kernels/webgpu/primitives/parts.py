# SPDX-License-Identifier: BSD-3-Clause
"""What stands beside the codes of a tensor, in memory on the GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.reference import QParams
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.shader import Kernel, Roles, Shader
from blockscale.kernels.webgpu.primitives.form import (
    DTYPES,
    Form,
    back,
    memory_of,
    moved,
    place,
    whole,
)
from blockscale.kernels.webgpu.primitives.geometry import geometry

Shape = tuple[int, ...]


class Parts(NamedTuple):
    """As QParams; None where a format has none of it. outer: as it is stored"""

    scale: Memory
    outer: Memory | None = None
    zero: Memory | None = None
    offset: Memory | None = None


@dataclass(frozen=True)
class Stored(Roles):
    """How what stands beside codes is read: stored_params/scale_{given_scale} and so on."""

    given_scale: str
    given_zero: str
    given_offset: str
    given_outer: str = "none"


@dataclass(frozen=True)
class Spread(Kernel, part="kernels/spread"):
    """The outer scale of each block."""

    blocks: str
    given_scale: str


def given_parts(
    f: Form, shape: Shape, scale: Tensor, zero_point: Tensor | None, outer: Tensor | None,
    more: Sequence[Tensor] | None, x: Tensor,
) -> Parts:  # fmt: skip
    """A caller's scale for a tensor of `shape`, where x is. Raises ValueError if it misfits."""
    parts = f.checked_parts(torch.Size(shape), scale, zero_point, outer, place(x), more)
    found = (parts.scale, parts.outer, parts.zero_point, parts.offset)
    first, *others = (part if part is None else memory_of(part) for part in found)
    assert first is not None
    return Parts(first, *others)


def new_parts(f: Form, shape: Shape) -> Parts:
    """Memory for the scale of a tensor of `shape` and what goes with it, but for an outer one."""
    blocks = prod(f.scale_shape(shape))
    return Parts(
        allocate(blocks * f.scale_dtype.itemsize),
        None,
        allocate(blocks * f.zero_dtype.itemsize) if f.asym else None,
        None if f.offset_dtype is None else allocate(blocks * f.offset_dtype.itemsize),
    )


def returned(f: Form, parts: Parts, shape: Shape, like: Tensor) -> list[Tensor]:
    """The parts that there are, where `like` is, in the order that ops return them in."""
    blocks = f.scale_shape(shape)
    found = [back(parts.scale, blocks, f.scale_dtype, like)]
    if parts.outer is not None and f.outer_shape is not None:
        found.append(back(parts.outer, f.outer_shape(blocks), f.outer_dtype, like))
    if parts.zero is not None:
        found.append(back(parts.zero, blocks, f.zero_dtype, like))
    if parts.offset is not None and f.offset_dtype is not None:
        found.append(back(parts.offset, blocks, f.offset_dtype, like))
    return found


def listed(parts: QParams, like: Tensor) -> list[Tensor]:
    """What the reference chose on the CPU for an empty tensor, where `like` is."""
    return [moved(part, like) for part in parts if part is not None]


def reading(f: Form, parts: Parts, shape: Shape) -> tuple[Stored, dict[str, Memory]]:
    """How what stands beside codes is read, and its memory."""
    stored = Stored(
        given_scale="byte" if f.scale_dtype == torch.uint8 else DTYPES[f.scale_dtype],
        given_zero="none" if parts.zero is None else word_or_half(f.zero_dtype),
        given_offset="none" if f.offset_dtype is None else DTYPES[f.offset_dtype],
    )
    buffers = {"scales": parts.scale}
    if parts.zero is not None:
        buffers["zeros"] = parts.zero
    if parts.offset is not None:
        buffers["offsets"] = parts.offset
    if parts.outer is not None:
        how, buffers["outers"] = outer_of_blocks(f, parts.outer, shape)
        stored = replace(stored, given_outer=how)
    return stored, buffers


def word_or_half(dtype: torch.dtype) -> str:
    """How zero points of a dtype are read: words, integers or float32, or 16 bits."""
    return "word" if dtype.itemsize == 4 else DTYPES[dtype]


def outer_of_blocks(f: Form, outer: Memory, shape: Shape) -> tuple[str, Memory]:
    """The one outer scale of all blocks, or that of each: how it is read, and its memory."""
    assert f.inner is not None
    if f.one_outer and f.outer_dtype == torch.float32:
        return "one", outer
    blocks = f.scale_shape(shape)
    at = geometry(blocks, f.inner.block)
    each = allocate(4 * at.count)
    launch(
        Shader(Spread(at.kind, DTYPES[f.outer_dtype])),
        {"scales": whole(outer), "each": whole(each)},
        at.named | {"count": at.count},
        -(-at.count // 256),
    )
    return "each", each
