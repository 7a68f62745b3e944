# SPDX-License-Identifier: BSD-3-Clause
"""Operands and quantizers for the tests of fused kernels, by the reference."""

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer, Value, quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import native
from blockscale.ops import primitives as P

UINT8 = "uint8:tensor:fp32:asym"


def coded(x: Tensor, fmt: str) -> Value:
    """x as codes in a format; as floats in the empty one."""
    if not fmt:
        return Value(x)
    with bs.use("reference"):
        codes, *parts = P.choose_quantize(x, fmt, None)
    by = quantizer(P.from_list(parts, parse(fmt)), fmt)
    return Value(codes, by.scale, by.zero_point, by.outer, fmt, x.shape[-1], by.more)


def fixed(fmt: str, rank: int, scale: float = 0.04, zero: int = 7) -> Quantizer:
    """A quantizer under a given scale for the whole tensor."""
    shape, form = (1,) * rank, parse(fmt)
    zero_point = torch.full(shape, zero, dtype=torch.int32) if form.asym else None
    return Quantizer(torch.full(shape, scale), zero_point, None, fmt)


def every_code(fmt: str, scale: float, zero: int = 7) -> Value:
    """Two rows of 256 codes, in which each code of a format with one scale is."""
    n = native(fmt)
    patterns = torch.arange(512).remainder(2**n.bits).to(torch.uint8).reshape(2, 256)
    codes = patterns.view(n.packed_dtype)
    if not n.bytewise:
        codes = n.new_packed((2, 256))
        _native.pack(n.bits, patterns.data_ptr(), 2, 256, codes.data_ptr(), 1)
    by = fixed(fmt, 2, scale, zero)
    return Value(codes, by.scale, by.zero_point, None, fmt, 256)


def rough(*shape: int) -> Tensor:
    """Normal numbers, among them zeros of both signs, subnormals, large ones and ties."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    flat = x.view(-1)
    for i, odd in enumerate((0.0, -0.0, 1e-41, -1e-39, 3e4, 0.02, -0.06, 0.5)):
        flat[(7 * i + 3) % flat.numel()] = odd
    return x
