# SPDX-License-Identifier: BSD-3-Clause
"""Columns rounded one after the other, strip of rows by strip."""

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import addresses, known, native, threads
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import kernel


@kernel("round_columns", backend="cpu", supports=known)
def round_columns(
    wanted: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.round_columns."""
    n = native(by.fmt)
    c, rows = wanted.shape
    wanted = _wide(wanted, (c, rows))
    base = None if base is None else _wide(base, (c, rows))
    coupling = _wide(coupling, (c, c))
    assert by.scale is not None
    parts = n.checked_parts(wanted.shape, by.scale, by.zero_point, by.outer, more=by.more)
    patterns = n.new_patterns(wanted.shape)
    values, errors = torch.empty(c, rows), torch.empty(c, rows, dtype=torch.float64)
    _native.round_columns(
        n.handle, c, rows, wanted.data_ptr(), 0 if base is None else base.data_ptr(),
        coupling.data_ptr(), addresses(parts), patterns.data_ptr(), values.data_ptr(),
        errors.data_ptr(), threads(),
    )  # fmt: skip
    whole = patterns if n.bits <= 8 else patterns.to(torch.int32)
    return n.format.element.from_bits(whole), values, errors


def _wide(x: Tensor, shape: tuple[int, int]) -> Tensor:
    """x in order. Raises ValueError if it is no float64 tensor of this shape on the CPU."""
    if x.dtype is not torch.float64 or tuple(x.shape) != shape or not x.is_cpu:
        raise ValueError(
            f"expected float64 of shape {shape} on the CPU, found {x.dtype} {tuple(x.shape)} on "
            f"{x.device}"
        )
    return in_order(x)
