# SPDX-License-Identifier: BSD-3-Clause
"""How a layer's weight lies while it is quantized: what is summed along the last dimension.

Formats speak of the last dimension (`groupN`, `token`) and of dimension 0 (`channel0`). A layer's
weight is therefore stored as a matrix [outputs, inputs of one output], so that blocks run along
the sum and channel 0 is the output channel in every kind of layer:

    plain          as it is: nn.Linear [n, k], nn.Embedding [rows, k], any other tensor
    transposed     [k, n] -> [n, k]: the Conv1D of GPT-2-style models; stacks [E, k, n] -> [E, n, k]
    channels_last  [o, i, *kernel] -> [o, prod(kernel) * i]: convolutions. With i a multiple of the
                   block, blocks run over channels of one kernel position, as in the block-scaled
                   conv2d of TOSA 1.1.
    transposed_channels_last
                   [i, o, *kernel] -> [o, prod(kernel) * i]: transposed convolutions. With G > 1
                   groups it is called `transposed_channels_last:G`, and the weight
                   [i, o / G, *kernel] becomes [o, prod(kernel) * i / G]: the o / G outputs of the
                   first group, which see the first i / G inputs, then those of the next.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

LAYOUTS = ("plain", "transposed", "channels_last", "transposed_channels_last")
_GROUPED = LAYOUTS[3]


def grouped_layout(groups: int) -> str:
    """The layout of a transposed convolution's weight."""
    return _GROUPED if groups == 1 else f"{_GROUPED}:{groups}"


def check_layout(layout: str) -> None:
    """Raise ValueError unless there is such a layout."""
    count = layout.removeprefix(f"{_GROUPED}:")
    number = int(count) if count.isascii() and count.isdigit() else 0
    if layout not in LAYOUTS and (number < 2 or layout != grouped_layout(number)):
        raise ValueError(
            f"unknown layout {layout!r}; choose from {', '.join(LAYOUTS)} and, with G groups, "
            f"{_GROUPED}:G"
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
        found = tensor.detach().coalesce()
        return found.values().nbytes + found.indices().nbytes
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        places = tensor.crow_indices().nbytes + tensor.col_indices().nbytes
    else:
        places = tensor.ccol_indices().nbytes + tensor.row_indices().nbytes
    return tensor.values().nbytes + places
