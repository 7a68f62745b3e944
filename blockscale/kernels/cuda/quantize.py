# SPDX-License-Identifier: BSD-3-Clause
"""Codes, with a given scale or one that is chosen in the same pass over memory."""

from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.core.reference import QParams
from blockscale.kernels.cuda.pack import pack_patterns
from blockscale.kernels.cuda.primitives import launch as launching
from blockscale.kernels.cuda.primitives.form import Form, floats, form, seed_numbers
from blockscale.kernels.cuda.primitives.plan import Plan, one_pass, with_scale
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.operand import listed
from blockscale.kernels.registry import kernel


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
    work = launching.largest_numerator(f, x) if f.one_outer else None
    return [_codes(f, planned, x, work, parts, words), *listed(parts)]


def _encoded(f: Form, x: Tensor, parts: QParams, seed: Tensor | None) -> Tensor:
    """Packed codes of x with a scale that is given, one outer scale a block."""
    words, seeds = seed_numbers(f, seed, x)
    if x.numel() == 0:
        return f.new_packed(x.shape, x.device)
    return _codes(f, with_scale(f, x, "codes", seeds), x, None, parts, words)


def _codes(
    f: Form, planned: Plan, x: Tensor, work: Tensor | None, parts: QParams, seed: Tensor | None
) -> Tensor:
    """Packed codes of x. work: of `largest_numerator`; parts: the scale, or memory for it"""
    complete = f.bits in (8, 16) or planned.tiling.tile.packs
    if complete:
        out = f.new_packed(x.shape, x.device)
    else:  # rows or units end within a byte
        out = f.new_patterns(x.shape, x.device)
    launching.encode(planned, x, out, work, parts, seed)
    return out if complete else pack_patterns(f, out)
