# SPDX-License-Identifier: BSD-3-Clause
"""Columns that are rounded one after the other, each making up for the errors of those before it.

The inner loop of GPTQ and of coordinate descent (blockscale.calibration.algorithms). It is no torch
op: nothing that is traced or exported calls it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.core.reference import QParams
from blockscale.kernels.registry import find, run_reference


class Rounded(NamedTuple):
    """What became of columns [c, n]: their codes, their values float32, and the errors float64."""

    codes: Tensor
    values: Tensor
    errors: Tensor


def round_columns(tensor: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer) -> Rounded:
    """Round row j of `wanted`, then take its error times coupling[j, l] from each later row l.

    A row here is a column of a weight [n, k], so that neighbours in memory can be rounded at once.

    wanted: [c, n] float64; it is rounded to float32 first
    base: [c, n] float64, what errors are counted from: error = base - value; None for the row
        itself, as it was when its turn came
    coupling: [c, c] float64, of which the part above the diagonal counts
    by: scales of blocks of one element, [c, n]; deterministic rounding

    All arithmetic but rounding is float64, each product and each difference rounded by itself:
    kernels give these bits.
    """
    args = tensor, base, coupling, by
    device = tensor.device.type
    kernel = find("round_columns", (by.fmt,), device, args)
    run = run_reference(_reference, device, args) if kernel is None else kernel.run(*args)
    return Rounded(*run)


def _reference(
    tensor: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    fmt, qparams = by.format, by.qparams
    assert qparams is not None
    pending = tensor.clone()
    codes = torch.empty(tensor.shape, dtype=fmt.element.code_dtype, device=tensor.device)
    values, errors = torch.empty_like(tensor, dtype=torch.float32), torch.empty_like(tensor)
    for j in range(tensor.shape[0]):
        own = slice(j, j + 1)
        part = _row(qparams, own)
        codes[own] = reference.quantize(pending[own].float(), part, fmt)
        values[own] = reference.dequantize(codes[own], part, fmt, torch.float32)
        errors[own] = (pending if base is None else base)[own] - values[own]
        pending[j + 1 :] -= errors[own] * coupling[j, j + 1 :, None]
    return codes, values, errors


def _row(qparams: QParams, own: slice) -> QParams:
    """The parts of one row; a table belongs to all."""
    rows = {name: p[own] for name, p in qparams._asdict().items() if p is not None}
    return QParams(**(rows | {"book": qparams.book}))
