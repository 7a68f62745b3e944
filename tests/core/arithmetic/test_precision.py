# SPDX-License-Identifier: BSD-3-Clause
"""Float32 stays float32 inside, whatever autocast and torch's switches say."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import blockscale as bs
from blockscale.core.arithmetic.precision import float32_inside, flushes, subnormals_kept
from blockscale.core.operand import Operand, quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives
from tests.support import fresh
from tests.support.op_samples import bits

ROOT = Path(__file__).parents[3]


def product(x: Tensor) -> Tensor:
    with float32_inside(x):
        return x @ x


def test_autocast_does_not_reach_inside() -> None:
    x = torch.randn(16, 16)
    expected = x @ x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = product(x)
        assert torch.is_autocast_enabled("cpu")
        outside = x @ x
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert outside.dtype == torch.bfloat16  # or the test would say nothing


def test_it_is_left_as_it_was_after_an_error() -> None:
    x = torch.ones(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="inside"), float32_inside(x):
            raise RuntimeError("inside")
        assert torch.is_autocast_enabled("cpu")


def test_nothing_is_entered_where_nothing_is_to_be_kept_out() -> None:
    for x in (torch.ones(2), torch.ones(2, device="meta")):
        assert isinstance(float32_inside(x), contextlib.nullcontext)


@pytest.mark.gpu
def test_no_tf32_inside() -> None:
    x = torch.randn(64, 64, device="cuda")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = product(x)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert torch.equal(found, x @ x)


@pytest.fixture
def flushing() -> Iterator[None]:
    """A library has told this thread to take subnormal numbers for 0."""
    assert torch.set_flush_denormal(True)
    yield
    assert flushes()  # left as it was
    torch.set_flush_denormal(False)


TINY = torch.tensor([2.0**-140, -(2.0**-130), 2.0**-126, 3.0e-39]).repeat(64).view(4, 64)
INPUTS = (TINY, TINY * 2.0**20)


def cells() -> Iterator[list[Any]]:
    """Codes, scales, values and gradients of the reference, in several formats."""
    with bs.use("reference"):
        for fmt in (
            "int8:group16:fp32",
            "int4:token:fp32:asym",
            "mxfp4",
            "nvfp4",
            "e4m3:tensor:e8m0",
        ):
            for x in INPUTS:
                codes, *parts = primitives.choose_quantize(x, fmt, None)
                by = quantizer(primitives.from_list(parts, parse(fmt)), fmt)
                packed = Operand(codes, by.scale, by.zero_point, by.outer, fmt, 64)
                values = primitives.dequantize(packed, torch.float32)
                yield bits([codes, *parts, values, primitives.fake_quantize(x, by)])


def test_the_reference_keeps_subnormals(flushing: None) -> None:
    found = list(cells())
    assert not (torch.ones(1) * 2.0**-140).any()  # it is on
    torch.set_flush_denormal(False)
    expected = list(cells())
    torch.set_flush_denormal(True)
    assert found == expected


def test_the_switch_is_found_and_left_as_it_was() -> None:
    assert not flushes()
    torch.set_flush_denormal(True)
    with pytest.raises(RuntimeError, match="inside"), subnormals_kept():
        assert not flushes()
        raise RuntimeError("inside")
    assert flushes()
    torch.set_flush_denormal(False)


# torch's other threads were started while the switch was on, and keep it.
OTHERS = """
import torch
from blockscale.core.arithmetic.precision import flushes, subnormals_kept
import blockscale as bs
torch.set_num_threads(1)
x = torch.full((4, 40000), 2.0**-130)
expected = torch.full_like(x, 2.0**-129)
torch.set_num_threads(2)
torch.set_flush_denormal(True)
x + x
torch.set_flush_denormal(False)

def same(a, b):  # as floats they would be compared by threads that take them for 0
    return torch.equal(a.view(torch.int32), b.view(torch.int32))

assert not same(x + x, expected) and not flushes(), "no thread flushes: the test says nothing"
with subnormals_kept(x.numel()):
    assert same(x + x, expected)
assert torch.get_num_threads() == 2
with bs.use("reference"):
    found = bs.fake_quantize(x, "int8:group32:e8m0")
    torch.set_num_threads(1)
    assert same(found, bs.fake_quantize(x, "int8:group32:e8m0")) and found.all()
"""


def test_threads_that_flush_are_not_used() -> None:
    fresh.run(OTHERS, cwd=ROOT, warn="error", ready=fresh.WITH_OURS, check=True)


def test_what_is_traced_around_it_stays_clean() -> None:
    """Other threads are asked for real: of a model of many elements nothing could be traced."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:

        def run(x: torch.Tensor) -> torch.Tensor:
            with subnormals_kept():
                return x + 1

        traced = make_fx(run)(torch.ones(2))
    finally:
        torch.set_num_threads(threads)
    called = [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
    assert called == ["aten.add.Tensor"]
