# SPDX-License-Identifier: BSD-3-Clause
"""The kernel that rounds columns one after the other, each making up for errors of those before.

Words and shapes are explained in blockscale/kernels/cuda/device/__init__.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.kernels.cuda.device.codes import code_of, value_of
from blockscale.kernels.cuda.device.division import clamps_first, divisor
from blockscale.kernels.cuda.device.scale import load_scale
from blockscale.kernels.cuda.primitives import guard
from blockscale.kernels.cuda.primitives.plan import form, on_device
from blockscale.kernels.cuda.relaunch import cdiv, direct
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import kernel


@triton.jit
def round_strip(
    pending, base, coupling, codes, values, errors, scale, outer, zero, offset, outer_count,
    c, n, spec: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Round some of the n entries of each of c rows, from the first row on (ops.round_columns).

    pending: float64 [c, n], what is to be rounded; overwritten with what it became
    base: float64 [c, n], what errors are counted from; None for `pending` itself
    coupling: float64 [c, c], how much of a row's error each later row takes on
    codes: uint8 or int16 [c, n]; values: float32 [c, n]; errors: float64 [c, n]
    scale, outer, zero, offset, outer_count: as decode_tile takes them, of blocks of one element
    columns: entries of one program
    """
    bits: tl.constexpr = spec.element.bits
    i = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    present = i < n
    j = tl.program_id(1)  # 0, as a number that the loop may change
    while j < c:
        at = i + tl.cast(j, tl.int64) * n
        wide = tl.load(pending + at, mask=present, other=0.0)
        given = load_scale(scale, outer, zero, offset, at, present, at % outer_count, spec)
        x = wide.to(tl.float32)
        code = code_of(
            x, divisor(given, clamps_first(spec, "codes"), False, spec), 0.0, False, spec
        )
        value = value_of(
            x, divisor(given, clamps_first(spec, "values"), False, spec), 0.0, False, spec
        )
        if bits != 8 and bits != 16:
            code = code & ((1 << bits) - 1)
        if base is not None:
            wide = tl.load(base + at, mask=present, other=0.0)
        error = wide - value.to(tl.float64)
        tl.store(codes + at, code.to(codes.dtype.element_ty), mask=present)
        tl.store(values + at, value, mask=present)
        tl.store(errors + at, error, mask=present)
        take_on(pending, error, coupling, i, present, j, c, n)
        tl.debug_barrier()  # the next row is read as it was written, whichever thread did that
        j += 1


@triton.jit
def take_on(pending, error, coupling, i, present, j, c, n):
    """Take the error of row j [columns] times its coupling from each later row, at entries i."""
    k = j + 1
    while k < c:
        later = pending + (i + tl.cast(k, tl.int64) * n)
        share = tl.load(coupling + tl.cast(j, tl.int64) * c + k)
        left = tl.load(later, mask=present, other=0.0) - error * share
        tl.store(later, left, mask=present)
        k += 1


# Columns rounded one after the other: a program takes all columns of a strip of rows.

_COLUMNS = 32  # entries of one program: many programs, since each takes its columns in turn


@kernel("round_columns", backend="cuda", supports=known)
def round_columns(
    wanted: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.round_columns."""
    f = form(by.fmt)
    c, n = wanted.shape
    assert by.scale is not None
    pending = _wide(wanted, (c, n)).clone()
    base = None if base is None else _wide(base, (c, n))
    coupling = _wide(coupling, (c, c))
    parts = f.given_parts(pending, pending.shape, by.scale, by.zero_point, by.outer, by.more)
    patterns = f.new_patterns(pending.shape, pending.device)
    values = torch.empty_like(pending, dtype=torch.float32)
    errors = torch.empty_like(pending)
    if pending.numel():
        count = 1 if parts.outer is None else parts.outer.numel()
        with guard(pending):  # without fusion: products and differences are rounded one by one
            direct(round_strip)[(cdiv(n, _COLUMNS),)](
                pending, base, coupling, patterns, values, errors, parts.scale, parts.outer,
                parts.zero_point, parts.offset, count, c, n, spec=f.spec, columns=_COLUMNS,
                num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
    whole = patterns if f.bits <= 8 else patterns.to(torch.int32)
    return f.format.element.from_bits(whole), values, errors


def _wide(x: Tensor, shape: tuple[int, int]) -> Tensor:
    """x in order. Raises ValueError if it is no float64 tensor of this shape on a GPU."""
    on_device(x)
    if x.dtype is not torch.float64 or tuple(x.shape) != shape:
        raise ValueError(f"expected float64 of shape {shape}, found {x.dtype} {tuple(x.shape)}")
    return in_order(x)
