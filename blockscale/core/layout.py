"""How a layer's weight lies while it is quantized: what is summed along the last dimension.

Formats speak of the last dimension (`groupN`, `token`) and of dimension 0 (`channel0`). A layer's
weight is therefore stored as a matrix [outputs, inputs of one output], so that blocks run along
the sum and channel 0 is the output channel in every kind of layer:

    plain          as it is: nn.Linear [n, k], nn.Embedding [rows, k], any other tensor
    transposed     [k, n] -> [n, k]: the Conv1D of GPT-2-style models
    channels_last  [o, i, *kernel] -> [o, prod(kernel) * i]: convolutions. With i a multiple of the
                   block, blocks run over channels of one kernel position, as in the block-scaled
                   conv2d of TOSA 1.1.
"""

from collections.abc import Sequence
from math import prod

from torch import Tensor

LAYOUTS = ("plain", "transposed", "channels_last")


def to_stored(weight: Tensor, layout: str) -> Tensor:
    """A layer's weight as the layer has it -> as it is quantized."""
    if layout == "transposed":
        return weight.t()
    if layout == "channels_last":
        return weight.movedim(1, -1).reshape(stored_shape(weight.shape, layout))
    return weight


def from_stored(stored: Tensor, layout: str, shape: Sequence[int]) -> Tensor:
    """What `to_stored` gave -> the weight of `shape` as the layer has it."""
    if layout == "transposed":
        return stored.t()
    if layout == "channels_last":
        return stored.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
    return stored.reshape(tuple(shape))


def stored_shape(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape of what `to_stored` gives for a weight of `shape`."""
    if layout == "transposed":
        return (shape[1], shape[0])
    if layout == "channels_last":
        return (shape[0], prod(shape[1:]))
    return tuple(shape)
