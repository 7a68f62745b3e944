# SPDX-License-Identifier: BSD-3-Clause
"""The ops that quantize and bring back: scales, codes, both at once, numbers, bit-packing."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import (
    DTYPES,
    NO_PARTS,
    NativeFormat,
    Parts,
    addresses,
    channels_last,
    floats,
    known,
    lies_first,
    native,
    seed_words,
    threads,
)
from blockscale.kernels.operand import in_order, new, present_parts, strided_like
from blockscale.kernels.registry import kernel

# Codes, with a given scale or one that is chosen in the same pass over memory.


@kernel("quantize", backend="cpu", supports=known)
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.quantize."""
    if by.scale is None:
        return choose_quantize(x, by.fmt, by.seed)[0]
    n = native(by.fmt)
    if lies_first(x) and _turns(x, n, by.scale):
        return channels_last(quantize(x.movedim(-1, 1), by))
    x, dtype = floats(x)
    parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    if x.numel() == 0:
        return n.new_packed(x.shape)
    return _run(n, x, dtype, parts, by.seed, is_set=True)


def quantize_whole(x: Tensor, fmt: str, parts: QParams) -> Tensor:
    """Codes of x in order, not empty, under parts that fit it; without a seed."""
    n = native(fmt)
    x, dtype = floats(x)
    return _run(n, x, dtype, parts, None, is_set=True)


def _turns(x: Tensor, n: NativeFormat, scale: Tensor) -> bool:
    """Whether the codes of x are turned: bytes under one scale, sooner than numbers."""
    alike = n.bytewise and n.bits == 8 and not n.needs_seed and scale.numel() == 1 and x.is_cpu
    return alike and x.dtype in DTYPES


@kernel("choose_quantize", backend="cpu", supports=known)
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """As ops.primitives.choose_quantize."""
    n = native(fmt)
    x, dtype = floats(x)
    if x.numel() == 0:
        parts = reference.choose_qparams(x, n.format)
        codes = reference.quantize(x, parts, n.format, seed)
        return [packing.pack(codes, n.format.element), *present_parts(parts)]
    parts = n.new_parts(x.shape)
    return [_run(n, x, dtype, parts, seed, is_set=False), *present_parts(parts)]


def patterns(x: Tensor, by: Quantizer) -> tuple[Tensor, QParams]:
    """Codes of x that are not packed, one an entry in x's order, and the parts beside them."""
    n = native(by.fmt)
    x, dtype = floats(x)
    is_given = by.scale is not None
    if by.scale is None:
        parts = n.new_parts(x.shape)
    else:
        parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    codes, run = n.new_patterns(x.shape), _native.quantize if is_given else _native.choose_quantize
    run(
        n.handle, x.shape, x.data_ptr(), dtype, addresses(parts), codes.data_ptr(), False,
        *seed_words(n, by.seed), threads(),
    )  # fmt: skip
    return codes, parts


def _run(
    n: NativeFormat, x: Tensor, dtype: int, parts: QParams, seed: Tensor | None, *, is_set: bool
) -> Tensor:
    shape, packs = x.shape, n.packs(x.shape)
    packed = n.new_packed(shape)
    codes = packed if packs else n.new_patterns(shape)
    run = _native.quantize if is_set else _native.choose_quantize
    run(
        n.handle, shape, x.data_ptr(), dtype, addresses(parts), codes.data_ptr(), packs,
        *seed_words(n, seed), threads(),
    )  # fmt: skip
    if not packs:  # rows end within a byte
        rows = x.numel() // shape[-1]
        _native.pack(n.bits, codes.data_ptr(), rows, shape[-1], packed.data_ptr(), threads())
    return packed


# The scale of each block.


@kernel("choose_qparams", backend="cpu", supports=known)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    n = native(fmt)
    x, dtype = floats(x)
    if x.numel() == 0:
        return present_parts(reference.choose_qparams(x, n.format))
    parts = n.new_parts(x.shape)
    _native.choose(n.handle, x.shape, x.data_ptr(), dtype, addresses(parts), threads())
    return present_parts(parts)


def block_errors(x: Tensor, by: Quantizer) -> Tensor | None:
    """As core.reference.block_errors, for a quantizer with a scale; None where blocks do not lie
    in rows of the last dimension, or are long."""
    n = native(by.fmt)
    x, dtype = floats(x)
    assert by.scale is not None
    parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    errors = new(parts.scale.shape, torch.float64)
    at = addresses(parts)
    ran = x.numel() > 0 and _native.block_errors(
        n.handle, x.shape, x.data_ptr(), dtype, at, errors.data_ptr(), threads()
    )
    return errors if ran else None


# Values from packed codes.


@kernel("dequantize", backend="cpu", supports=known)
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    n = native(packed.fmt)
    shape = (*packed.codes.shape[:-1], packed.size) if packed.scale.ndim else ()
    stored = n.checked_codes(packed.codes, shape)
    parts = n.checked_parts(shape, packed.scale, packed.zero_point, packed.outer, more=packed.more)
    kind = DTYPES.get(dtype, 0)
    values = new(shape, dtype if dtype in DTYPES else torch.float32)
    if values.numel():
        codes, packs = stored, n.packs(shape)
        if not packs:  # rows end within a byte
            codes = n.new_patterns(shape)
            unpack_into(n, stored, packed.size, codes)
        _native.dequantize(
            n.handle, shape, codes.data_ptr(), packs, addresses(parts), values.data_ptr(), kind,
            threads(),
        )  # fmt: skip
    return values if values.dtype == dtype else values.to(dtype)


def unpack_into(n: NativeFormat, packed: Tensor, size: int, patterns: Tensor) -> None:
    """Packed rows -> patterns, one entry a code."""
    rows = patterns.numel() // size
    _native.unpack(n.bits, packed.data_ptr(), rows, size, patterns.data_ptr(), threads())


# Values after a round trip, in one pass, and the gradient that passes it.


@kernel("fake_quantize", backend="cpu", supports=known)
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    n = native(by.fmt)
    like = x
    x, dtype = floats(x)
    parts, at = _parts_of(n, x, by)
    values = torch.empty_like(x)
    if x.numel():
        _native.fake_quantize(
            n.handle, x.shape, x.data_ptr(), dtype, parts is not None, at, values.data_ptr(),
            *seed_words(n, by.seed), threads(),
        )  # fmt: skip
    return strided_like(like, values)


@kernel("straight_through", backend="cpu", supports=known)
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.straight_through."""
    n = native(by.fmt)
    like = gradient
    if gradient.shape != x.shape:
        raise ValueError(
            f"expected a gradient of shape {tuple(x.shape)}, found {tuple(gradient.shape)}"
        )
    if gradient.dtype not in DTYPES:
        ones = torch.ones(x.shape, dtype=torch.float32)
        passes = straight_through(ones, x, by)
        return torch.where(passes != 0, gradient, 0.0)
    x, dtype = floats(x)
    gradient, kind = floats(gradient)
    parts, at = _parts_of(n, x, by)
    passed_on = torch.empty_like(gradient)
    if x.numel():
        _native.straight_through(
            n.handle, x.shape, x.data_ptr(), dtype, parts is not None, at, gradient.data_ptr(),
            kind, passed_on.data_ptr(), threads(),
        )  # fmt: skip
    return strided_like(like, passed_on)


def _parts_of(n: NativeFormat, x: Tensor, by: Quantizer) -> tuple[QParams | None, Parts]:
    """The given parts, to be kept alive, and their addresses."""
    if by.scale is None:
        n.scale_shape(x.shape)  # raises if the block does not fit
        return None, NO_PARTS
    parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    return parts, addresses(parts)


# Codes of any width <-> bytes.


@kernel("pack", backend="cpu", supports=known)
def pack(codes: Tensor, fmt: str) -> Tensor:
    """As ops.primitives.pack."""
    n = native(fmt)
    if n.bytewise or codes.ndim == 0 or codes.numel() == 0:
        return packing.pack(codes, n.format.element).clone()
    patterns = n.format.element.to_bits(codes) if n.bits == 1 else codes
    patterns = in_order(patterns.to(torch.uint8 if n.bits <= 8 else torch.int16))
    packed = n.new_packed(codes.shape)
    size = codes.shape[-1]
    _native.pack(
        n.bits, patterns.data_ptr(), codes.numel() // size, size, packed.data_ptr(), threads()
    )
    return packed


@kernel("unpack", backend="cpu", supports=known)
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """As ops.primitives.unpack."""
    n = native(fmt)
    shape = (*packed.shape[:-1], size)
    packed = n.checked_codes(packed, shape)
    if n.bytewise or size == 0 or packed.numel() == 0:
        return packing.unpack(packed, n.format.element, shape).clone()
    patterns = n.new_patterns(shape)
    unpack_into(n, packed, size, patterns)
    whole = patterns if n.bits <= 8 else patterns.to(torch.int32)
    return n.format.element.from_bits(whole)


# Columns rounded one after the other, strip of rows by strip.


@kernel("round_columns", backend="cpu", supports=known)
def round_columns(
    x: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.round_columns."""
    n = native(by.fmt)
    c, rows = x.shape
    x = _wide(x, (c, rows))
    base = None if base is None else _wide(base, (c, rows))
    coupling = _wide(coupling, (c, c))
    assert by.scale is not None
    parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    patterns = n.new_patterns(x.shape)
    values, errors = torch.empty(c, rows), torch.empty(c, rows, dtype=torch.float64)
    _native.round_columns(
        n.handle, c, rows, x.data_ptr(), 0 if base is None else base.data_ptr(),
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
