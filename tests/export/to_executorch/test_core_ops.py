# SPDX-License-Identifier: BSD-3-Clause
"""Torch's ops in the words of others: the same bits, for floats of every kind."""

import logging
import sys

import pytest
import torch
from torch import nn

from blockscale.export.to_executorch import core_ops
from blockscale.export.to_executorch import core_ops as lowering
from blockscale.graph.program import import_graph


def floats():
    """Random bits, and every kind of boundary."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (20_000,), generator=generator).to(torch.int32)
    powers = torch.arange(255, dtype=torch.int32) * 2**23
    near = torch.cat([powers, powers + 1, (powers - 1).clamp(min=0), powers + 2**23 - 1])
    tiny = 2 ** torch.arange(23, dtype=torch.int32)
    found = torch.cat([bits, near, tiny, -near, torch.tensor([0x7F800000, 0])]).to(torch.int32)
    x = found.view(torch.float32)
    x = torch.cat([x, -x])
    return x[~x.isnan()]


def test_bits_of_floats_and_back():
    x = floats()
    bits = x.view(torch.int32)
    assert torch.equal(core_ops.bits_of(x), bits)
    assert torch.equal(core_ops.of_bits(bits).view(torch.int32), bits)
    nan = torch.tensor([torch.nan, -torch.nan])
    assert core_ops.bits_of(nan).tolist() == [0x7FC00000] * 2
    assert core_ops.of_bits(nan.view(torch.int32)).isnan().all()


def test_frexp():
    x = floats()
    x = x[x.isfinite()]
    ours, theirs = core_ops.frexp(x), torch.frexp(x)
    assert torch.equal(ours[1], theirs.exponent)
    assert torch.equal(ours[0].view(torch.int32), theirs.mantissa.view(torch.int32))


def test_signs():
    x = floats()
    assert torch.equal(core_ops.negative(x), torch.signbit(x))
    size = torch.full_like(x, 3.0)
    assert torch.equal(core_ops.copysign(size, x), torch.copysign(size, x))


def test_bytes():
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    signed = every.view(torch.int8)
    assert torch.equal(core_ops.view_dtype(every, torch.int8), signed)
    assert torch.equal(core_ops.view_dtype(signed, torch.uint8), every)
    with pytest.raises(NotImplementedError, match="the bits of"):
        core_ops.view_dtype(torch.zeros(2, dtype=torch.float64), torch.int64)


def test_shifts():
    x = torch.arange(-300, 300, dtype=torch.int32)
    for by in range(9):
        assert torch.equal(core_ops.left_shift(x, by), x << by)
        assert torch.equal(core_ops.right_shift(x, by), x >> by)
    by = torch.arange(31, dtype=torch.int32)
    ones = torch.ones(31, dtype=torch.int32)
    assert torch.equal(core_ops.left_shift(ones, by), ones << by)


def test_search_and_numbers():
    edges, x = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-2.0, -1.0, 0.5, 2.0, 3.0, -0.0])
    for right in (False, True):
        theirs = torch.searchsorted(edges, x, right=right)
        assert torch.equal(core_ops.searchsorted(edges, x, right=right), theirs)
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    assert torch.equal(core_ops.nan_to_num(odd), torch.nan_to_num(odd))
    assert torch.equal(core_ops.nan_to_num(odd, 2.0, 5.0), torch.nan_to_num(odd, 2.0, 5.0))


# From a graph of torch's ops to bytes, and what no kernel runs.


def test_settings_are_as_they_were():
    depth, level = sys.getrecursionlimit(), logging.root.manager.disable
    with pytest.raises(KeyError), lowering._quiet():
        raise KeyError
    assert (sys.getrecursionlimit(), logging.root.manager.disable) == (depth, level)


def test_nodes_that_are_left_are_named():
    from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the ops

    class Lonely(nn.Module):
        def forward(self, x):
            ops = torch.ops.quantized_decomposed
            return ops.quantize_per_tensor.default(x, 0.1, 0, -128, 127, torch.int8)

    program = torch.export.export(Lonely(), (torch.randn(2),))
    with pytest.raises(lowering.LeftError, match="XNNPACK did not take quantize_per_tensor"):
        lowering._check(program)
    assert import_graph(program) is not None
