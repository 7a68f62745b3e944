# SPDX-License-Identifier: BSD-3-Clause
"""Codes of any width <-> bytes: a little-endian bit stream in each row (docs/numerics.md, 6)."""

from collections.abc import Sequence
from math import gcd, prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.element import Element

# How a layer's weight lies while it is quantized: what is summed along the last dimension.
#
# Formats speak of the last dimension (`groupN`, `token`) and of dimension 0 (`channel0`). A layer's
# weight is therefore stored as a matrix [outputs, inputs of one output], so that blocks run along
# the sum and channel 0 is the output channel in every kind of layer:
#
#     plain          as it is: nn.Linear [n, k], nn.Embedding [rows, k], any other tensor
#     transposed     [k, n] -> [n, k]: the Conv1D of GPT-2-style models; stacks [E, k, n] -> [E, n,
#     k]
#     channels_last  [o, i, *kernel] -> [o, prod(kernel) * i]: convolutions. With i a multiple of
#     the
#                    block, blocks run over channels of one kernel position, as in the block-scaled
#                    conv2d of TOSA 1.1.
#     transposed_channels_last
#                    [i, o, *kernel] -> [o, prod(kernel) * i]: transposed convolutions. With G > 1
#                    groups it is called `transposed_channels_last:G`, and the weight
#                    [i, o / G, *kernel] becomes [o, prod(kernel) * i / G]: the o / G outputs of the
#                    first group, which see the first i / G inputs, then those of the next.
#     transposed_stack
#                    [E * k, n] -> [E, n, k]: E matrices [k, n], one below another, as DBRX's w2 has
#                    them; it is called `transposed_stack:E`.

LAYOUTS = ("plain", "transposed", "channels_last", "transposed_channels_last")
_GROUPED = LAYOUTS[3]
_STACK = "transposed_stack"


def grouped_layout(groups: int) -> str:
    """The layout of a transposed convolution's weight."""
    return _GROUPED if groups == 1 else f"{_GROUPED}:{groups}"


def stack_layout(count: int) -> str:
    """The layout of `count` matrices [k, n], one below another."""
    return f"{_STACK}:{count}"


def of_joined_stack(layout: str) -> int:
    """How many matrices [k, n] lie one below another; 0 in every other layout."""
    return _groups(layout) if layout.startswith(f"{_STACK}:") else 0


def check_layout(layout: str) -> None:
    """Raise ValueError unless there is such a layout."""
    count = layout.rpartition(":")[2]
    number = int(count) if count.isascii() and count.isdigit() else 0
    entries = [*LAYOUTS, *[grouped_layout(number)] * (number > 1), *[stack_layout(number)][:number]]
    if layout not in entries:
        raise ValueError(
            f"unknown layout {layout!r}; choose from {', '.join(LAYOUTS)} and, with G groups, "
            f"{_GROUPED}:G, with E matrices {_STACK}:E"
        )


def of_convolution(layout: str) -> bool:
    """Whether it is of layers whose inputs [batch, channels, *size] have their channels second."""
    return "channels_last" in layout


def inputs_first(layout: str) -> bool:
    """Whether dimension 0 of a layer's weight is its inputs, where others have their outputs."""
    return layout.startswith("transposed")


def _groups(layout: str) -> int:
    return int(layout.partition(":")[2] or 1)


def to_stored(weight: Tensor, layout: str) -> Tensor:
    """A layer's weight as the layer has it -> as it is quantized."""
    if layout == "transposed":
        return weight.mT
    if count := of_joined_stack(layout):
        return weight.reshape(count, -1, weight.shape[-1]).mT
    if layout == "channels_last":
        return weight.movedim(1, -1).reshape(stored_shape(weight.shape, layout))
    if of_convolution(layout):
        stored, groups = stored_shape(weight.shape, layout), _groups(layout)
        apart = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        return apart.movedim(1, -1).reshape(stored)
    return weight


def from_stored(stored: Tensor, layout: str, shape: Sequence[int]) -> Tensor:
    """What `to_stored` gave -> the weight of `shape` as the layer has it."""
    if layout == "transposed":
        return stored.mT
    if of_joined_stack(layout):
        return stored.mT.reshape(tuple(shape))
    if layout == "channels_last":
        return stored.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
    if of_convolution(layout):
        groups = _groups(layout)
        apart = stored.reshape(groups, *shape[1:], shape[0] // groups)
        return apart.movedim(-1, 1).reshape(tuple(shape))
    return stored.reshape(tuple(shape))


def stored_shape(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape of what `to_stored` gives for a weight of `shape`.

    Raises ValueError for inputs that do not divide into the layout's groups.
    """
    if layout == "transposed":
        return (*shape[:-2], shape[-1], shape[-2])
    if count := of_joined_stack(layout):
        if len(shape) != 2 or shape[0] % count:
            raise ValueError(f"{tuple(shape)} is not {count} matrices one below another ({layout})")
        return (count, shape[1], shape[0] // count)
    if layout == "channels_last":
        return (shape[0], prod(shape[1:]))
    if of_convolution(layout):
        groups = _groups(layout)
        if shape[0] % groups:
            raise ValueError(
                f"{shape[0]} inputs cannot be divided into {groups} equal groups ({layout})"
            )
        return (shape[1] * groups, prod(shape[2:]) * (shape[0] // groups))
    return tuple(shape)


def stored_bytes(tensor: Tensor) -> int:
    """Bytes of a parameter; of a sparse one, of its values and indices."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        result = tensor.detach().coalesce()
        return result.values().nbytes + result.indices().nbytes
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        places = tensor.crow_indices().nbytes + tensor.col_indices().nbytes
    else:
        places = tensor.ccol_indices().nbytes + tensor.row_indices().nbytes
    return tensor.values().nbytes + places


_NATIVE = {8: (torch.int8, torch.uint8), 16: (torch.int16, torch.uint16)}


def packed_dtype(element: Element) -> torch.dtype:
    """The dtype of packed storage: the codes' own at 8 and 16 bits, else bytes."""
    if element.bits not in _NATIVE:
        return torch.uint8
    signed = element.code_dtype in (torch.int8, torch.int16)
    return _NATIVE[element.bits][0 if signed else 1]


def packed_size(element: Element, size: int) -> int:
    """How many entries of `packed_dtype` a row of `size` codes takes."""
    return size if element.bits in _NATIVE else (size * element.bits + 7) // 8


def _overlaps(bits: int) -> list[list[tuple[int, int]]]:
    """For each byte of a group: which codes reach into it, and by how far they shift left."""
    codes = 8 // gcd(8, bits)
    return [
        [(i, i * bits - 8 * byte) for i in range(codes) if -bits < i * bits - 8 * byte < 8]
        for byte in range(codes * bits // 8)
    ]


def _shift(x: Tensor, number: int) -> Tensor:
    return x << number if number >= 0 else x >> -number


def pack(codes: Tensor, element: Element) -> Tensor:
    """codes [..., k] -> packed [..., packed_size(k)] of `packed_dtype`; rank 0 becomes [size]."""
    codes = codes.reshape(1) if codes.ndim == 0 else codes
    if element.bits in _NATIVE:
        return codes.to(packed_dtype(element))
    bits, k = element.bits, codes.shape[-1]
    overlaps = _overlaps(bits)
    group = 8 // gcd(8, bits)
    patterns = F.pad(element.to_bits(codes), (0, -k % group))
    patterns = patterns.reshape(*codes.shape[:-1], (k + group - 1) // group, group)
    columns = []
    for overlap in overlaps:
        byte = torch.zeros_like(patterns[..., 0])
        for i, rest in overlap:
            byte = byte | _shift(patterns[..., i], rest)
        columns.append(byte if bits < 8 else (byte & 0xFF).to(torch.uint8))
    packed = torch.stack(columns, -1).flatten(-2)
    return packed.narrow(-1, 0, packed_size(element, k)).contiguous()


def unpack(packed: Tensor, element: Element, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """packed -> codes of `shape` and the element's code_dtype."""
    if element.bits in _NATIVE:
        return packed.to(element.code_dtype).reshape(shape)
    bits, k = element.bits, shape[-1] if len(shape) else 1
    overlaps = _overlaps(bits)
    group = 8 // gcd(8, bits)
    groups = (k + group - 1) // group
    wide = packed if bits < 8 else packed.to(torch.int32)  # uint8 drops what is shifted out
    stream = F.pad(wide, (0, groups * len(overlaps) - packed.shape[-1]))
    stream = stream.reshape(*packed.shape[:-1], groups, len(overlaps))
    columns = []
    for i in range(group):
        code = torch.zeros_like(stream[..., 0])
        for byte, overlap in enumerate(overlaps):
            for j, rest in overlap:
                if j == i:
                    code = code | _shift(stream[..., byte], -rest)
        columns.append(code & (2**bits - 1))
    patterns = torch.stack(columns, -1).flatten(-2).narrow(-1, 0, k)
    return element.from_bits(patterns).reshape(shape)
