# SPDX-License-Identifier: BSD-3-Clause
"""What kernels know of a format, of where numbers lie and of how they are read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import Block
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, QParams
from blockscale.core.scales import TwoLevel
from blockscale.kernels.numbers import Sizes, merged
from blockscale.kernels.operand import Storage
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import Bound, Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, Texels, allocate, upload
from blockscale.kernels.webgpu.gpu.probe import DeviceArithmetic, arithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Roles, Shader, ShaderKernel
from blockscale.kernels.webgpu.spec import Coding, shader_of
from blockscale.kernels.webgpu.torch_device import WebGPUTensor, on_gpu, wrap_memory

# A format, and the tensors of a call, as the kernels of the primitives take them.

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Form(Storage):
    """How tensors of a format lie in memory, and what its kernels ask of it.

    inner:     the format of the scale's own scale, for two levels; else None
    one_outer: there is one outer scale for everything
    """

    def __init__(self, fmt: Format):
        super().__init__(fmt)
        self.inner: Format | None = fmt.scale.inner if isinstance(fmt.scale, TwoLevel) else None
        self.one_outer = self.inner is not None and self.inner.block.name == "tensor"

    @property
    def item_constants(self) -> tuple[tuple[str, Constant], ...]:
        """What kernels that pack and unpack know of codes."""
        element = self.format.element
        return (
            ("BITS", self.bits),
            ("ITEM_BITS", 8 * element.code_dtype.itemsize),
            ("SIGNED", (element.integer and element.signed) or element.name == "ternary"),
            ("BY_SIGN", element.name == "binary"),
        )

    def row_bytes(self, row: int) -> int:
        """The bytes of the packed codes of a row."""
        return -(-row * self.bits // 8)

    def streams(self, row: int) -> bool:
        """Whether rows of so many codes follow one another without a gap."""
        return row * self.bits % 8 == 0


@cache
def form(spelling: str) -> Form:
    """The Form of a format's name or spelling. Raises ValueError if there is no such format."""
    return Form(parse(spelling))


def memory_of(x: Tensor) -> Memory:
    """The bytes of a tensor on the GPU or the CPU, in row-major order, on the GPU."""
    if isinstance(x, WebGPUTensor) and (not x.is_contiguous() or x.storage_offset()):
        x = x.clone(memory_format=torch.contiguous_format)
    return on_gpu(x)


def floats(x: Tensor) -> Memory:
    """Numbers as kernels read them. Raises TypeError for a dtype that the reference refuses."""
    if x.dtype not in FLOATS:
        reference.widen(x)
    return memory_of(x)


def whole(memory: Memory) -> Window:
    """All of a buffer, in fours of words."""
    return Window(memory, 0, max(-(-memory.nbytes // 16) * 16, 16))


def result(shape: Sequence[int], dtype: torch.dtype) -> Memory:
    """Memory for a tensor, its content undefined."""
    return allocate(prod(shape) * dtype.itemsize)


def back(memory: Memory, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """A result where `like` is."""
    return wrap_memory(memory, tuple(shape), dtype, like)


def move_like(tensor: Tensor, like: Tensor) -> Tensor:
    """What the reference computed on the CPU, where `like` is."""
    if not isinstance(like, WebGPUTensor):
        return tensor
    return WebGPUTensor(upload(tensor), tuple(tensor.shape), tensor.dtype)


def place(x: Tensor) -> torch.device | None:
    """Where a call runs, as Storage takes it: None is the CPU."""
    return None if x.is_cpu else x.device


# How the blocks of a tensor lie in its memory: after one another, or as boxes.

DIMENSIONS = 8  # of boxes, as blocks/box has them
_MOST = (1 << 32) - (1 << 24)  # elements: kernels count them, and a little further, in 32 bits


@dataclass(frozen=True)
class Geometry:
    """A tensor that is not empty, in blocks.

    count:  elements
    blocks: how many there are, in the order of the stored scale
    block:  elements of a full one
    shape, sizes: of boxes, their dimensions and those of a block; () where blocks follow one
        another in memory
    """

    count: int
    blocks: int
    block: int
    shape: Sizes = ()
    sizes: Sizes = ()

    @property
    def kind(self) -> str:
        """The part blocks/{kind}."""
        return "box" if self.shape else "line"

    @property
    def inner(self) -> int:
        """How many elements of a block at least follow one another, if none is cut off."""
        return self.sizes[-1] if self.shape else self.block

    @property
    def shader_sizes(self) -> dict[str, int]:
        """The sizes that parts of shaders read."""
        if not self.shape:
            return {"block": self.block}
        missing = (1,) * (DIMENSIONS - len(self.shape))
        sizes = {f"n{i}": n for i, n in enumerate((*missing, *self.shape))}
        return sizes | {f"b{i}": b for i, b in enumerate((*missing, *self.sizes))}

    def shares(self, elements: int) -> bool:
        """Whether `elements` neighbours, from a multiple of that on, have one scale."""
        if not self.shape:
            return self.blocks == 1 or self.block % elements == 0
        n, size = self.shape[-1], self.sizes[-1]
        return n % elements == 0 and (size == n or size % elements == 0)


@lru_cache(4096)
def geometry(shape: Sizes, block: Block) -> Geometry:
    """The blocks of a tensor of `shape`, which is not empty.

    Raises ValueError for a block that does not fit, for more elements than kernels count, and for
    boxes of more dimensions than kernels know (neighbours that merge are one).
    """
    count, blocks = prod(shape), prod(block.scale_shape(shape))
    if count > _MOST:
        raise ValueError(
            f"a tensor of {count} elements is too large for WebGPU kernels, which count up to "
            f"{_MOST}: quantize parts of it"
        )
    if block.strided:
        sizes: Sizes = (block.flat, 1)
        shape = (block.flat, count // block.flat)
    elif block.flat:
        return Geometry(count, blocks, min(block.flat, count))
    else:
        sizes = block.sizes_for(len(shape))
    shape, sizes = merged(shape, sizes)
    if len(shape) > DIMENSIONS:
        raise ValueError(
            f"blocks of {block} over {len(shape)} dimensions that cannot be merged: WebGPU "
            f"kernels support up to {DIMENSIONS}; use bs.use('reference')"
        )
    if len(shape) <= 1:
        return Geometry(count, blocks, prod(sizes))
    return Geometry(count, blocks, prod(sizes), shape, tuple(sizes))


# The roles that kernels of formats have in common, and their shaders.

Constants = dict[str, Constant]
HARDWARE = "plain"  # tests compute as devices that round divisions by ulps and flush subnormals


@dataclass(frozen=True)
class NumberRoles(Roles):
    """How numbers of a dtype are read and written.

    dtype: memory/float/{dtype}; load, store: memory/load/{load}, memory/store/{store}
    """

    dtype: str
    load: str
    store: str


def coding(f: Form) -> Coding:
    """A format on this process's device.

    Exact quotients of the device's own floats are its fastest way: no short cut comes before them.
    """
    own, device = shader_of(f.format)[0], of_device()
    native = device.arithmetic == "native"
    return Coding(replace(own, approximate="none") if native else own, device)


def of_device() -> DeviceArithmetic:
    """What this process's device computes with where it can."""
    wide = "native" if "shader-int64" in gpu().features else "words"
    return DeviceArithmetic(arithmetic(), HARDWARE, wide)


def numbers(dtype: torch.dtype) -> NumberRoles:
    """How numbers of a dtype are read and written."""
    halves = "words" if dtype == torch.float32 else "halves"
    return NumberRoles(DTYPES[dtype], halves, halves)


def shader(f: Form, kernel: ShaderKernel, constants: Mapping[str, Constant]) -> Shader:
    """A kernel for a format: its constants are the format's, and these."""
    return Shader(kernel, tuple((dict(shader_of(f.format)[1]) | dict(constants)).items()))


# Tensors that are larger than what a kernel sees of a buffer are taken in pieces.

STEP = 1 << 16  # of pieces: so many elements of any number of bits end at a multiple of 256 bytes


@dataclass(frozen=True)
class Piece:
    """Neighbouring elements of a tensor.

    first: the index of the first one, a multiple of STEP
    count: how many there are
    """

    first: int
    count: int

    @property
    def shader_sizes(self) -> dict[str, int]:
        """The sizes that kernels read."""
        return {"first": self.first, "bound": self.count}

    def window(self, memory: Memory, bits: int) -> Window:
        """The piece of a buffer that has `bits` an element, in fours of words."""
        nbytes = -(-self.count * bits // 8)
        return Window(memory, self.first * bits // 8, max(-(-nbytes // 16) * 16, 16))


def pieces(count: int, bits: int, step: int = STEP) -> Iterator[Piece]:
    """Pieces of `count` elements of which none has more bytes than a kernel sees of a buffer.

    bits: of an element, in the buffer that has the most
    step: pieces are multiples of it; itself a multiple of STEP
    """
    most = largest(bits, step)
    for first in range(0, count, most):
        yield Piece(first, min(most, count - first))


def largest(bits: int, step: int = STEP) -> int:
    """How many elements a piece has at most; 0 where not even one step fits."""
    return 8 * gpu().binding_limit // bits // step * step


# Numbers that kernels read: in a buffer, in pieces that they can see, or in a texture.


class InTexture(NamedTuple):
    """Numbers in texels, in rows of `width`, of which `height` make a layer."""

    texels: Texels
    width: int
    height: int


Source = Memory | InTexture


def read(x: Source, dtype: torch.dtype) -> NumberRoles:
    """How the numbers, of this dtype, are read."""
    own = numbers(dtype)
    return replace(own, load="texture") if isinstance(x, InTexture) else own


def sizes(x: Source) -> dict[str, int]:
    """The sizes that memory/load/texture reads."""
    return {"width": x.width, "height": x.height} if isinstance(x, InTexture) else {}


def windows(x: Source, count: int, bits: int) -> Iterator[tuple[Piece, Bound]]:
    """Pieces of `count` numbers of `bits`, and what is bound for each."""
    if isinstance(x, InTexture):
        yield Piece(0, count), x.texels
        return
    for piece in pieces(count, bits):
        yield piece, piece.window(x, bits)


# What stands beside the codes of a tensor, in memory on the GPU.

Shape = tuple[int, ...]


class Parts(NamedTuple):
    """As QParams; None where a format has none of it. outer: as it is stored"""

    scale: Memory
    outer: Memory | None = None
    zero: Memory | None = None
    offset: Memory | None = None


@dataclass(frozen=True)
class StoredParams(Roles):
    """How what stands beside codes is read: stored_params/scale_{given_scale} and so on."""

    given_scale: str
    given_zero: str
    given_offset: str
    given_outer: str = "none"


@dataclass(frozen=True)
class SpreadOuter(ShaderKernel, part="kernels/choose/spread"):
    """The outer scale of each block."""

    blocks: str
    given_scale: str


def given_parts(
    f: Form, shape: Shape, scale: Tensor, zero_point: Tensor | None, outer: Tensor | None,
    more: Sequence[Tensor] | None, x: Tensor,
) -> Parts:  # fmt: skip
    """A caller's scale for a tensor of `shape`, where x is. Raises ValueError if it misfits."""
    parts = f.checked_parts(torch.Size(shape), scale, zero_point, outer, place(x), more)
    result = (parts.scale, parts.outer, parts.zero_point, parts.offset)
    first, *others = (part if part is None else memory_of(part) for part in result)
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


def results_of(f: Form, parts: Parts, shape: Shape, like: Tensor) -> list[Tensor]:
    """The parts that there are, where `like` is, in the order that ops return them in."""
    blocks = f.scale_shape(shape)
    results = [back(parts.scale, blocks, f.scale_dtype, like)]
    if parts.outer is not None and f.outer_shape is not None:
        results.append(back(parts.outer, f.outer_shape(blocks), f.outer_dtype, like))
    if parts.zero is not None:
        results.append(back(parts.zero, blocks, f.zero_dtype, like))
    if parts.offset is not None and f.offset_dtype is not None:
        results.append(back(parts.offset, blocks, f.offset_dtype, like))
    return results


def parts_like(parts: QParams, like: Tensor) -> list[Tensor]:
    """What the reference chose on the CPU for an empty tensor, where `like` is."""
    return [move_like(part, like) for part in parts if part is not None]


def reading(f: Form, parts: Parts, shape: Shape) -> tuple[StoredParams, dict[str, Memory]]:
    """How what stands beside codes is read, and its memory."""
    stored = StoredParams(
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
        Shader(SpreadOuter(at.kind, DTYPES[f.outer_dtype])),
        {"scales": whole(outer), "each": whole(each)},
        at.shader_sizes | {"count": at.count},
        -(-at.count // 256),
    )
    return "each", each
