# SPDX-License-Identifier: BSD-3-Clause
"""Columns rounded one after the other: a program takes all columns of a strip of rows."""

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.kernels.cuda.primitives.columns import round_strip
from blockscale.kernels.cuda.primitives.form import form, on_device
from blockscale.kernels.cuda.primitives.launch import guard
from blockscale.kernels.cuda.replay.direct import cdiv, direct
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import ByFormats, Formats, kernel
from blockscale.kernels.restate import for_encoding, restated_quantizer

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


def _restated(formats: Formats) -> bool:
    plain = for_encoding(formats[0])
    return plain is not None and known((plain,), ())


@kernel("round_columns", backend="cuda", supports=ByFormats(_restated), last=True)
def round_restated(
    wanted: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for formats that the kernels know only restated."""
    plain = for_encoding(by.format)
    assert plain is not None and by.qparams is not None
    told = restated_quantizer(by.qparams, by, plain, wanted.shape)
    return round_columns(wanted, base, coupling, told)


def _wide(x: Tensor, shape: tuple[int, int]) -> Tensor:
    """x in order. Raises ValueError if it is no float64 tensor of this shape on a GPU."""
    on_device(x)
    if x.dtype is not torch.float64 or tuple(x.shape) != shape:
        raise ValueError(f"expected float64 of shape {shape}, found {x.dtype} {tuple(x.shape)}")
    return in_order(x)
