# SPDX-License-Identifier: BSD-3-Clause
"""Where a kernel finds the elements of operands that are views, or are broadcast."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.memory import Memory, upload
from blockscale.kernels.webgpu.gpu.shader import Constant
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor, is_whole

Sizes = tuple[int, ...]


class Addresses(NamedTuple):
    """What a kernel of the part `torch/address/{address}` takes.

    address: that part
    constants: for its shader
    buffers: for its launch
    """

    address: str
    constants: tuple[tuple[str, Constant], ...]
    buffers: dict[str, Memory]


_STRAIGHT = Addresses("straight", (), {})


def addresses(shape: Sizes, operands: Sequence[WebGPUTensor], *, always: bool = False) -> Addresses:
    """Of operands that are broadcast to `shape`.

    always: even where they lie as the result does, for kernels that know nothing else
    """
    if not always and all(is_whole(x) and tuple(x.shape) == shape for x in operands):
        return _STRAIGHT
    strides = [broadcast(shape, tuple(x.shape), x.stride()) for x in operands]
    dimensions = merged(shape, strides)
    offsets = tuple(x.storage_offset() for x in operands)
    numbers = (len(dimensions), *offsets, *(n for each in reversed(dimensions) for n in each))
    kept = _geometry(numbers)
    constants = (("OPERANDS", len(operands)),)
    return Addresses("strided", constants, {"geometry": kept})


@lru_cache(4096)
def _geometry(numbers: Sizes) -> Memory:
    return upload(torch.tensor(numbers, dtype=torch.int64).to(torch.int32))


def joint(*shapes: Sizes) -> Sizes:
    """The shape of what is computed of tensors of these shapes, as torch.broadcast_shapes.

    That imports sympy, and takes as long as a small op. Raises RuntimeError if they do not fit.
    """
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    found = [1] * max(map(len, shapes))
    for shape in shapes:
        for d in range(-len(shape), 0):
            if shape[d] != 1 and found[d] not in (1, shape[d]):
                listed = " and ".join(str(tuple(each)) for each in shapes)
                raise RuntimeError(
                    f"shapes {listed} cannot be broadcast: sizes must be equal, or 1"
                )
            found[d] = found[d] if shape[d] == 1 else shape[d]
    return tuple(found)


def broadcast(shape: Sizes, own: Sizes, stride: Sizes) -> Sizes:
    """The strides of a tensor that is expanded to `shape`."""
    missing = len(shape) - len(own)
    kept = (0 if size == 1 else step for size, step in zip(own, stride, strict=True))
    return (0,) * missing + tuple(kept)


def merged(shape: Sizes, strides: Sequence[Sizes]) -> list[Sizes]:
    """Dimensions as (size, stride of each operand), as few as say the same."""
    found: list[Sizes] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1:] == tuple(step * size for step in steps):
            found[-1] = (found[-1][0] * size, *steps)
        else:
            found.append((size, *steps))
    return found
