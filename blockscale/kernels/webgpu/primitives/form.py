# SPDX-License-Identifier: BSD-3-Clause
"""A format, and the tensors of a call, as the kernels of the primitives take them."""

from collections.abc import Sequence
from functools import cache
from math import prod

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS
from blockscale.core.scales import TwoLevel
from blockscale.kernels.operand import Storage
from blockscale.kernels.webgpu.gpu.launch import Window
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, upload
from blockscale.kernels.webgpu.gpu.shader import Constant
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor, given_back, on_gpu

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
    return given_back(memory, tuple(shape), dtype, like)


def moved(tensor: Tensor, like: Tensor) -> Tensor:
    """What the reference computed on the CPU, where `like` is."""
    if not isinstance(like, WebGPUTensor):
        return tensor
    return WebGPUTensor(upload(tensor), tuple(tensor.shape), tensor.dtype)


def place(x: Tensor) -> torch.device | None:
    """Where a call runs, as Storage takes it: None is the CPU."""
    return None if x.is_cpu else x.device
