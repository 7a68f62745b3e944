# SPDX-License-Identifier: BSD-3-Clause
"""Registering restated formats: asked last, and settled like kernels of their own."""

import warnings

import pytest
import torch

import blockscale as bs
from blockscale.kernels import cpu, registry
from blockscale.kernels.registry import KERNELS, ByFormats, kernel
from tests.kernels.restated import runs

if isinstance(native := cpu.load(), str):
    pytest.skip(native, allow_module_level=True)

from blockscale.kernels.cpu.linear import OPS

FMT = "int4:group16:(int6:group4:fp16)"
DECODED = ("dequantize", "embedding", "pack", "unpack", "choose_qparams", "linear", "conv")
DECODED += ("conv_transpose",)
ENCODED = ("quantize", "choose_quantize", "fake_quantize", "straight_through")


def test_every_op_has_them_and_asks_them_last() -> None:
    assert runs("cpu", "quantize", FMT)
    for op in (*DECODED, *ENCODED):
        first, *others = KERNELS[op, "cpu"]
        assert first.run == getattr(OPS, op)
        assert all(other.run != first.run for other in others)


def test_calls_are_settled_and_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q = bs.quantize(torch.randn(4, 64), FMT)
        q.dequantize()
        assert torch.equal(q.codes, bs.quantize(torch.empty(0), "int8").codes) is False
    for op in ("choose_quantize", "dequantize", "unpack"):
        assert registry._settled[op, "cpu", (FMT,)].run == getattr(OPS, op)


def test_a_kernel_that_looks_at_operands_before_it_settles_nothing() -> None:
    q = bs.quantize(torch.randn(4, 64), FMT)
    before = list(KERNELS["dequantize", "cpu"])
    try:
        kernel("dequantize", backend="cpu", supports=lambda formats, arguments: False)(len)
        q.dequantize()
        assert ("dequantize", "cpu", (FMT,)) not in registry._settled
    finally:
        KERNELS["dequantize", "cpu"][:] = before
        registry._settled.clear()


def test_a_later_last_one_is_asked_even_later() -> None:
    before = list(KERNELS["pack", "cpu"])
    try:
        kernel("pack", backend="cpu", supports=ByFormats(lambda _: True), last=True)(len)
        assert KERNELS["pack", "cpu"][0].run is len
        assert KERNELS["pack", "cpu"][1:] == before
    finally:
        KERNELS["pack", "cpu"][:] = before
        registry._settled.clear()


def test_what_has_no_kernel_says_so() -> None:
    assert not runs("cpu", "quantize", "int4:group8:(uint6:group4:fp16):recip")
    with bs.use("cpu"), pytest.raises(RuntimeError, match="no cpu kernel runs choose_quantize"):
        bs.quantize(torch.randn(2, 16), "int4:group8:(uint6:group4:fp16):recip")
    with pytest.raises(ValueError, match="must be supplied"):
        bs.quantize(torch.randn(2, 16), "int8:group8:e8m0/given")
