# SPDX-License-Identifier: BSD-3-Clause
"""An op by its kernel and by its reference."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import blockscale as bs
from blockscale.kernels.registry import supporting
from blockscale.ops.integer import INTEGER_OPS


def equal(name: str, *args: Any) -> None:
    """A kernel runs these, and gives the reference's integers."""
    assert supporting(name, "cpu", (), args) is not None
    op = INTEGER_OPS[name]
    with bs.use("reference"):
        expected = op(*args)
    found = op(*args)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


class Floats(TorchDispatchMode):
    """Fails where torch computes with floats."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in (*args, made):
            assert not (isinstance(each, Tensor) and each.is_floating_point()), func
        return made
