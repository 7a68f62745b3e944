"""What a product may end in. It computes in the result's dtype, as an op behind it does."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _same(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": _same,
    "relu": torch.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def activated(x: Tensor, name: str) -> Tensor:
    """x [...] -> the same after the activation of this name.

    Raises ValueError for a name that there is not.
    """
    function = ACTIVATIONS.get(name)
    if function is None:
        known = ", ".join(repr(each) for each in ACTIVATIONS)
        raise ValueError(f"no activation {name!r}; there are {known}")
    return function(x)
