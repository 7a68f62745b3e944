"""Tables of Python numbers as tensors, also where a graph is being traced."""

from collections.abc import Sequence

import torch
from torch import Tensor


def table(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    """The values as a tensor [len(values)] of `dtype` on the device of `like`.

    A graph that is traced below autograd takes no constant tensors (torch 2.13: "expected to have
    an entirely functional graph"). There it holds the numbers themselves, one by one.
    """
    if torch._C._len_torch_dispatch_stack():
        return torch.stack([like.new_full((), value, dtype=dtype) for value in values])
    return torch.tensor(values, dtype=dtype, device=like.device)
