# SPDX-License-Identifier: BSD-3-Clause
"""The ops that quantize and bring back: scales, codes, both at once, numbers, bit-packing."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.reference import FLOATS, QParams
from blockscale.kernels.cuda import primitives as launching
from blockscale.kernels.cuda.primitives import choose, guard, launch
from blockscale.kernels.cuda.primitives.decoding import decode_tile, pack_row, unpack_row
from blockscale.kernels.cuda.primitives.plan import (
    Form,
    LaunchPlan,
    floats,
    form,
    on_device,
    one_pass,
    plan,
    seed_numbers,
    with_scale,
)
from blockscale.kernels.cuda.relaunch import cdiv, direct
from blockscale.kernels.cuda.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.operand import listed, strided_like
from blockscale.kernels.registry import kernel

# Codes of any width <-> bytes.

_COLUMNS = 1024  # bytes or codes of one program


@kernel("pack", backend="cuda", supports=known)
@replayed()
def pack(codes: Tensor, fmt: str) -> Tensor:
    """As ops.primitives.pack."""
    f = form(fmt)
    on_device(codes)
    if f.bits in (8, 16) or codes.ndim == 0 or codes.numel() == 0:
        return packing.pack(codes, f.format.element).clone()
    patterns = f.format.element.to_bits(codes) if f.bits == 1 else codes
    return pack_patterns(f, patterns.contiguous())


def pack_patterns(f: Form, patterns: Tensor) -> Tensor:
    """Codes [...], uint8 or int16, with anything above their bits -> packed bytes, uint8."""
    shape = f.packed_shape(patterns.shape)
    packed = torch.empty(shape, dtype=torch.uint8, device=patterns.device)
    count = packed.numel()
    with guard(patterns):
        direct(pack_row)[(cdiv(count, _COLUMNS),)](
            patterns, packed, count, patterns.shape[-1] if patterns.ndim else 1,
            bits=f.bits, columns=_COLUMNS,
        )  # fmt: skip
    return packed


@kernel("unpack", backend="cuda", supports=known)
@replayed()
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """As ops.primitives.unpack."""
    f = form(fmt)
    shape = (*packed.shape[:-1], size)
    packed = f.checked_codes(packed, shape)
    element = f.format.element
    if f.bits in (8, 16) or size == 0 or packed.numel() == 0:
        return packing.unpack(packed, element, shape).clone()
    codes = torch.empty(shape, dtype=element.code_dtype, device=packed.device)
    kind = _kind(f)
    count = codes.numel()
    with guard(packed):
        direct(unpack_row)[(cdiv(count, _COLUMNS),)](
            packed, codes, count, size, bits=f.bits, kind=kind, columns=_COLUMNS
        )
    return codes


def _kind(f: Form) -> str:
    """How `unpack_row` reads a bit pattern. Raises TypeError for a family that it does not know."""
    element = f.spec.element
    match element.family:
        case "integer":
            return "signed" if element.signed else "plain"
        case "minifloat" | "codebook":
            return "plain"
        case "binary":
            return "binary"
    raise TypeError(f"{f.format}: no CUDA kernel unpacks elements of the family {element.family!r}")


# Codes, with a given scale or one that is chosen in the same pass over memory.


@kernel("quantize", backend="cuda", supports=known)
@replayed()
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.quantize."""
    if by.scale is None:
        return choose_quantize(x, by.fmt, by.seed)[0]
    f = form(by.fmt)
    x = floats(x)
    parts = f.given_parts(x, x.shape, by.scale, by.zero_point, by.outer, by.more)
    return _encoded(f, x, parts, by.seed)


@kernel("choose_quantize", backend="cuda", supports=known)
@replayed()
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """As ops.primitives.choose_quantize."""
    f = form(fmt)
    x = floats(x)
    if x.numel() == 0:
        parts = reference.choose_qparams(x, f.format)
        codes = reference.quantize(x, parts, f.format, seed)
        return [packing.pack(codes, f.format.element), *listed(parts)]
    words, seeds = seed_numbers(f, seed, x)
    planned = one_pass(f, x, "codes", seeds)
    if planned is None:
        parts = launching.choose(f, x)
        return [_encoded(f, x, f.per_block(parts), seed), *listed(parts)]
    parts = f.new_parts(x.shape, x.device)
    work = launching.largest_numerator(f, x) if f.inner else None
    return [_codes(f, planned, x, work, parts, words), *listed(parts)]


def _encoded(f: Form, x: Tensor, parts: QParams, seed: Tensor | None) -> Tensor:
    """Packed codes of x with a scale that is given, one outer scale a block."""
    words, seeds = seed_numbers(f, seed, x)
    if x.numel() == 0:
        return f.new_packed(x.shape, x.device)
    return _codes(f, with_scale(f, x, "codes", seeds), x, None, parts, words)


def _codes(
    f: Form,
    planned: LaunchPlan,
    x: Tensor,
    work: Tensor | None,
    parts: QParams,
    seed: Tensor | None,
) -> Tensor:
    """Packed codes of x. work: of `largest_numerator`; parts: the scale, or memory for it"""
    complete = f.bits in (8, 16) or planned.tiling.tile.packs
    if complete:
        out = f.new_packed(x.shape, x.device)
    else:  # rows or units end within a byte
        out = f.new_patterns(x.shape, x.device)
    launching.encode(planned, x, out, work, parts, seed)
    return out if complete else pack_patterns(f, out)


# The scale of each block.


@kernel("choose_qparams", backend="cuda", supports=known)
@replayed()
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    f = form(fmt)
    x = floats(x)
    if x.numel() == 0:
        return listed(reference.choose_qparams(x, f.format))
    return listed(choose(f, x))


# Values from packed codes.


@kernel("dequantize", backend="cuda", supports=known)
@replayed()
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    return decoded(packed, dtype, "decode")


def decoded(packed: Operand, dtype: torch.dtype, result: str) -> Tensor:
    """As dequantize; of the result "rest" what bfloat16 leaves of each value, in dtype."""
    f, size = form(packed.fmt), packed.size
    shape = packed.shape
    codes = f.checked_codes(packed.codes, shape)
    parts = f.given_parts(codes, shape, packed.scale, packed.zero_point, packed.outer, packed.more)
    kind = dtype if dtype in FLOATS else torch.float32
    values = torch.empty(shape, dtype=kind, device=codes.device)
    if values.numel():
        planned = plan(f.format.spelling, tuple(shape), result, True, 0, kind.itemsize)
        assert planned is not None
        count = 1 if parts.outer is None else parts.outer.numel()
        launch(
            decode_tile, planned, codes, codes, values, parts.scale, parts.outer,
            parts.zero_point, parts.offset, count, size if shape else 1,
        )  # fmt: skip
    return values if kind == dtype else values.to(dtype)


# Values after a round trip, in one pass, and the gradient that passes it.


@kernel("fake_quantize", backend="cuda", supports=known)
@replayed()
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    f, like = form(by.fmt), x
    x = floats(x)
    values = torch.empty_like(x)
    parts = _given_parts(f, x, by)
    if x.numel():
        _run(f, x, parts, None, values, by.seed)
    return strided_like(like, values)


@kernel("straight_through", backend="cuda", supports=known)
@replayed()
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.straight_through."""
    f, like = form(by.fmt), gradient
    if gradient.shape != x.shape:
        raise ValueError(
            f"expected a gradient of shape {tuple(x.shape)}, found {tuple(gradient.shape)}"
        )
    if gradient.dtype not in FLOATS:
        ones = torch.ones(x.shape, dtype=torch.float32, device=x.device)
        passes = straight_through(ones, x, by)
        return torch.where(passes != 0, gradient, 0.0)
    x, gradient = floats(x), floats(gradient)
    kept = torch.empty_like(gradient)
    parts = _given_parts(f, x, by)
    if x.numel():
        _run(f, x, parts, gradient, kept, None)
    return strided_like(like, kept)


def _given_parts(f: Form, x: Tensor, by: Quantizer) -> QParams | None:
    """A caller's scale, checked; None where it is to be chosen from x."""
    if by.scale is None:
        f.scale_shape(x.shape)  # raises if the block does not fit
        return None
    return f.given_parts(x, x.shape, by.scale, by.zero_point, by.outer, by.more)


def _run(
    f: Form,
    x: Tensor,
    parts: QParams | None,
    gradient: Tensor | None,
    out: Tensor,
    seed: Tensor | None,
) -> None:
    """Write values of x, or its gradient where that passes, to `out`.

    parts: the given scale, or None to choose one, in the same pass where a block fits a program
    """
    words, seeds = (None, 0) if gradient is not None else seed_numbers(f, seed, x)
    result = "values" if gradient is None else "gradient"
    if parts is None and not (f.inner and gradient is not None):
        planned = one_pass(f, x, result, seeds)
        if planned is not None:
            return _chosen(f, planned, x, gradient, out, words)
    parts = parts or f.per_block(launching.choose(f, x))
    launching.encode(with_scale(f, x, result, seeds), x, out, gradient, parts, words)
    return None


def _chosen(
    f: Form,
    planned: LaunchPlan,
    x: Tensor,
    gradient: Tensor | None,
    out: Tensor,
    words: Tensor | None,
) -> None:
    """As `_run`, with a plan that chooses scales, of which none is kept."""
    parts = None
    if f.inner:
        count = launching.outer_count(f, x)
        outer = torch.empty(count, dtype=torch.float32, device=x.device)
        parts = QParams(outer, outer)  # the first is not written
        gradient = launching.largest_numerator(f, x)
    launching.encode(planned, x, out, gradient, parts, words)
