# SPDX-License-Identifier: BSD-3-Clause
"""Codes, with a given scale or one that is chosen in the same pass over memory."""

from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import (
    DTYPES,
    Native,
    addresses,
    channels_last,
    floats,
    known,
    native,
    seed_words,
    threads,
)
from blockscale.kernels.operand import listed
from blockscale.kernels.registry import kernel


@kernel("quantize", backend="cpu", supports=known)
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.quantize."""
    if by.scale is None:
        return choose_quantize(x, by.fmt, by.seed)[0]
    n = native(by.fmt)
    if x.ndim > 2 and not x.is_contiguous() and _lies_first(x, n, by.scale):
        return channels_last(quantize(x.movedim(-1, 1), by))
    x, dtype = floats(x)
    parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    if x.numel() == 0:
        return n.new_packed(x.shape)
    return _run(n, x, dtype, parts, by.seed, given=True)


def _lies_first(x: Tensor, n: Native, scale: Tensor) -> bool:
    """Whether x [batch, *size, channels] lies channels first, and its codes may: bytes under one
    scale, which are sooner turned than numbers."""
    alike = n.bytewise and n.bits == 8 and not n.drawn and scale.numel() == 1 and x.is_cpu
    return alike and x.dtype in DTYPES and x.movedim(-1, 1).is_contiguous()


@kernel("choose_quantize", backend="cpu", supports=known)
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """As ops.primitives.choose_quantize."""
    n = native(fmt)
    x, dtype = floats(x)
    if x.numel() == 0:
        parts = reference.choose_qparams(x, n.format)
        codes = reference.quantize(x, parts, n.format, seed)
        return [packing.pack(codes, n.format.element), *listed(parts)]
    parts = n.new_parts(x.shape)
    return [_run(n, x, dtype, parts, seed, given=False), *listed(parts)]


def patterns(x: Tensor, by: Quantizer) -> tuple[Tensor, QParams]:
    """Codes of x that are not packed, one an entry in x's order, and the parts beside them."""
    n = native(by.fmt)
    x, dtype = floats(x)
    given = by.scale is not None
    if by.scale is None:
        parts = n.new_parts(x.shape)
    else:
        parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    codes, run = n.new_patterns(x.shape), _native.quantize if given else _native.choose_quantize
    run(
        n.handle, x.shape, x.data_ptr(), dtype, addresses(parts), codes.data_ptr(), False,
        *seed_words(n, by.seed), threads(),
    )  # fmt: skip
    return codes, parts


def _run(
    n: Native, x: Tensor, dtype: int, parts: QParams, seed: Tensor | None, *, given: bool
) -> Tensor:
    shape, packs = x.shape, n.packs(x.shape)
    packed = n.new_packed(shape)
    codes = packed if packs else n.new_patterns(shape)
    run = _native.quantize if given else _native.choose_quantize
    run(
        n.handle, shape, x.data_ptr(), dtype, addresses(parts), codes.data_ptr(), packs,
        *seed_words(n, seed), threads(),
    )  # fmt: skip
    if not packs:  # rows end within a byte
        rows = x.numel() // shape[-1]
        _native.pack(n.bits, codes.data_ptr(), rows, shape[-1], packed.data_ptr(), threads())
    return packed
