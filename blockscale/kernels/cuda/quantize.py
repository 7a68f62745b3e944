# SPDX-License-Identifier: BSD-3-Clause
"""The ops that quantize and bring back: scales, codes, both at once, numbers, bit-packing."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.reference import FLOATS, QParams
from blockscale.kernels.cuda import primitives as launching
from blockscale.kernels.cuda.device.codes import code_of, value_of
from blockscale.kernels.cuda.device.division import clamps_first, divisor
from blockscale.kernels.cuda.device.scale import load_scale
from blockscale.kernels.cuda.primitives import choose, guard, launch
from blockscale.kernels.cuda.primitives.decoding import decode_tile, pack_row, unpack_row
from blockscale.kernels.cuda.primitives.encoding import errors_tile
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
from blockscale.kernels.cuda.replay import replay
from blockscale.kernels.cuda.spec import primitive
from blockscale.kernels.operand import in_order, present_parts, strided_like
from blockscale.kernels.registry import kernel

# Codes of any width <-> bytes.

_COLUMNS = 1024  # bytes or codes of one program


@kernel("pack", backend="cuda", supports=primitive)
@replay()
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


@kernel("unpack", backend="cuda", supports=primitive)
@replay()
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


@kernel("quantize", backend="cuda", supports=primitive)
@replay()
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.quantize."""
    if by.scale is None:
        return choose_quantize(x, by.fmt, by.seed)[0]
    f = form(by.fmt)
    x = floats(x)
    parts = f.given_parts(x, x.shape, by.scale, by.zero_point, by.outer, by.more)
    return _encoded(f, x, parts, by.seed)


@kernel("choose_quantize", backend="cuda", supports=primitive)
@replay()
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """As ops.primitives.choose_quantize."""
    f = form(fmt)
    x = floats(x)
    if x.numel() == 0:
        parts = reference.choose_qparams(x, f.format)
        codes = reference.quantize(x, parts, f.format, seed)
        return [packing.pack(codes, f.format.element), *present_parts(parts)]
    words, seeds = seed_numbers(f, seed, x)
    launch_plan = one_pass(f, x, "codes", seeds)
    if launch_plan is None:
        parts = launching.choose(f, x)
        return [_encoded(f, x, f.per_block(parts), seed), *present_parts(parts)]
    parts = f.new_parts(x.shape, x.device)
    work = launching.largest_numerator(f, x) if f.inner else None
    return [_codes(f, launch_plan, x, work, parts, words), *present_parts(parts)]


def _encoded(f: Form, x: Tensor, parts: QParams, seed: Tensor | None) -> Tensor:
    """Packed codes of x with a scale that is given, one outer scale a block."""
    words, seeds = seed_numbers(f, seed, x)
    if x.numel() == 0:
        return f.new_packed(x.shape, x.device)
    return _codes(f, with_scale(f, x, "codes", seeds), x, None, parts, words)


def _codes(
    f: Form,
    launch_plan: LaunchPlan,
    x: Tensor,
    work: Tensor | None,
    parts: QParams,
    seed: Tensor | None,
) -> Tensor:
    """Packed codes of x. work: of `largest_numerator`; parts: the scale, or memory for it"""
    complete = f.bits in (8, 16) or launch_plan.tiling.tile.packs
    if complete:
        out = f.new_packed(x.shape, x.device)
    else:  # rows or units end within a byte
        out = f.new_patterns(x.shape, x.device)
    launching.encode(launch_plan, x, out, work, parts, seed)
    return out if complete else pack_patterns(f, out)


# The scale of each block.


@kernel("choose_qparams", backend="cuda", supports=primitive)
@replay()
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    f = form(fmt)
    x = floats(x)
    if x.numel() == 0:
        return present_parts(reference.choose_qparams(x, f.format))
    return present_parts(choose(f, x))


# Values from packed codes.


@kernel("dequantize", backend="cuda", supports=primitive)
@replay()
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
        launch_plan = plan(f.format.spelling, tuple(shape), result, True, 0, kind.itemsize)
        assert launch_plan is not None
        count = 1 if parts.outer is None else parts.outer.numel()
        launch(
            decode_tile, launch_plan, codes, codes, values, parts.scale, parts.outer,
            parts.zero_point, parts.offset, count, size if shape else 1,
        )  # fmt: skip
    return values if kind == dtype else values.to(dtype)


# What a round trip loses of each block.


def block_errors(x: Tensor, by: Quantizer) -> Tensor | None:
    """As core.reference.block_errors, for a quantizer with a scale; None where blocks are not
    numbers side by side, as many as a power of two, that one program takes."""
    f = form(by.fmt)
    x = floats(x)
    if x.numel() == 0:
        return None
    launch_plan = with_scale(f, x, "errors", 0)
    tile, extents = launch_plan.tiling.tile, launch_plan.tiling.extents
    if tile.kind != "row" or tile.modulus or not tile.columns == extents.uk == extents.bk:
        return None
    assert by.scale is not None
    parts = f.given_parts(x, x.shape, by.scale, by.zero_point, by.outer, by.more)
    errors = torch.empty(parts.scale.shape, dtype=torch.float64, device=x.device)
    scale, outer, zero, offset = parts[:4]
    every = outer.numel() if outer is not None else 1
    launch(errors_tile, launch_plan, x, x, errors, scale, outer, zero, offset, every)
    return errors


# Values after a round trip, in one pass, and the gradient that passes it.


@kernel("fake_quantize", backend="cuda", supports=primitive)
@replay()
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    f, like = form(by.fmt), x
    x = floats(x)
    values = torch.empty_like(x)
    parts = _given_parts(f, x, by)
    if x.numel():
        _run(f, x, parts, None, values, by.seed)
    return strided_like(like, values)


@kernel("straight_through", backend="cuda", supports=primitive)
@replay()
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
    passed_on = torch.empty_like(gradient)
    parts = _given_parts(f, x, by)
    if x.numel():
        _run(f, x, parts, gradient, passed_on, None)
    return strided_like(like, passed_on)


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
        launch_plan = one_pass(f, x, result, seeds)
        if launch_plan is not None:
            return _with_choice(f, launch_plan, x, gradient, out, words)
    parts = parts or f.per_block(launching.choose(f, x))
    launching.encode(with_scale(f, x, result, seeds), x, out, gradient, parts, words)
    return None


def _with_choice(
    f: Form,
    launch_plan: LaunchPlan,
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
    launching.encode(launch_plan, x, out, gradient, parts, words)


# Columns rounded one after the other, each making up for errors of those before.


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
        unit = load_scale(scale, outer, zero, offset, at, present, at % outer_count, spec)
        x = wide.to(tl.float32)
        code = code_of(x, divisor(unit, clamps_first(spec, "codes"), False, spec), 0.0, False, spec)
        value = value_of(
            x, divisor(unit, clamps_first(spec, "values"), False, spec), 0.0, False, spec
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
        rest = tl.load(later, mask=present, other=0.0) - error * share
        tl.store(later, rest, mask=present)
        k += 1


# A program takes all columns of a strip of rows.

_STRIP = 32  # entries of one program: many programs, since each takes its columns in turn


@kernel("round_columns", backend="cuda", supports=primitive)
def round_columns(
    x: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
) -> tuple[Tensor, Tensor, Tensor]:
    """As ops.round_columns."""
    f = form(by.fmt)
    c, n = x.shape
    assert by.scale is not None
    pending = _wide(x, (c, n)).clone()
    base = None if base is None else _wide(base, (c, n))
    coupling = _wide(coupling, (c, c))
    parts = f.given_parts(pending, pending.shape, by.scale, by.zero_point, by.outer, by.more)
    patterns = f.new_patterns(pending.shape, pending.device)
    values = torch.empty_like(pending, dtype=torch.float32)
    errors = torch.empty_like(pending)
    if pending.numel():
        count = 1 if parts.outer is None else parts.outer.numel()
        with guard(pending):  # without fusion: products and differences are rounded one by one
            direct(round_strip)[(cdiv(n, _STRIP),)](
                pending, base, coupling, patterns, values, errors, parts.scale, parts.outer,
                parts.zero_point, parts.offset, count, c, n, spec=f.spec, columns=_STRIP,
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
