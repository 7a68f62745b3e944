# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are powers of two, and sums of them, as integers."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.lowering.integers.audit import digits
from blockscale.graph.lowering.integers.fixed import NotIntegerError
from blockscale.graph.lowering.integers.weights import narrowest, whole
from tests.graph.lowering.integers.flows import INT8, INT16, UINT8, check, compared, fused, integers
from tests.support.c_running import check as check_c
from tests.support.c_running import needs_gcc

# format, dtype of its integers, the most powers of two that one is the sum of
POWERS = [("log2", "int8", 1), ("log4", "int8", 1), ("log5", "int16", 1), ("apot3", "int8", 1),
          ("apot4", "int8", 2), ("apot6", "int8", 3), ("apot8", "int16", 4)]  # fmt: skip


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8)), torch.randn(6, 40)


@pytest.mark.slow
@pytest.mark.parametrize(("element", "dtype", "most"), POWERS)
def test_layers(element, dtype, most):
    model, x = small()
    for fmt in (INT8, UINT8):
        graph = fused(model, x, weight=f"{element}:channel0:pow2/ceil", fmt=fmt)
        check(graph, x)
        check(graph, 100 * x)
    audit = bs.graph.audit_integer(integers(graph))
    assert audit.integer and len(audit.weights) == 2
    for each in audit.weights:
        assert each.terms <= most and each.shifts == (each.terms <= 1)
        assert torch.iinfo(getattr(torch, each.dtype)).bits <= int(dtype[3:])
    plain = bs.graph.lower(fused(model, x), "integer")
    assert not any(each.shifts for each in bs.graph.audit_integer(plain).weights)


@pytest.mark.slow
@pytest.mark.parametrize("block", ["channel0:e8m0/ceil", "tensor:pow2/nearest"])
@pytest.mark.parametrize("element", ["log4", "log5", "apot5", "apot7"])
def test_convolutions(element, block):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
        nn.ConvTranspose2d(8, 4, 3, 2, groups=2), nn.Flatten(), nn.Linear(4 * 13 * 13, 4),
    )  # fmt: skip
    x = torch.randn(2, 3, 8, 8)
    check(fused(model, x, weight=f"{element}:{block}"), x)


@pytest.mark.slow
def test_sums_of_products_are_shifts_and_additions():
    """The graph's own layer, without a multiplication."""
    model, x = small()
    lowered = bs.graph.lower(fused(model, x, weight="log4:channel0:pow2/nearest"), "integer")
    node = next(n for n in lowered.graph.nodes if "integer_linear" in str(n.target))
    weight, bias, zero = (
        lowered.get_buffer(str(n.target)) if isinstance(n, torch.fx.Node) else n
        for n in node.args[1:4]
    )
    codes = torch.randint(-128, 128, (5, 40)).to(torch.int8)
    end = (2**24, torch.zeros(1, dtype=torch.int32), 0, 0, 0, "")
    expected = torch.ops.blockscale.integer_linear(codes, weight, bias, zero, *end)
    centered = codes.to(torch.int64)[..., None, :] - zero
    found = bias.to(torch.int64).expand(5, -1).clone()
    for digit, shift in digits(weight):
        found += torch.where(digit == 1, centered << shift, 0).sum(-1)
        found -= torch.where(digit == -1, centered << shift, 0).sum(-1)
    assert torch.equal(found, expected.to(torch.int64))


def test_integers_are_the_values():
    """Each row by exact rationals, with values below 2^-14 and a row of zeros."""
    fmt = bs.parse("log8:channel0:pow2/ceil")
    values = torch.tensor([[1, -0.5, 2.0**-14], [1, 2.0**-39, 0], [0, 0, 0], [2.0**-3, 0, -1]])
    steps = torch.tensor([0.25, 2.0, 2.0**-126, 8.0])
    codes, exponents = whole(values, steps, fmt, "it")
    assert codes.dtype == torch.int64 and exponents.tolist() == [-16, -38, -11, -11]
    for row, step, power, given in zip(codes, steps, exponents.tolist(), values, strict=True):
        exact = [int(c) * Fraction(2) ** power for c in row]
        assert exact == [Fraction(float(v)) * Fraction(float(step)) for v in given]
    with pytest.raises(NotIntegerError, match=r"it is log8.* need more than 40 bits: .*log5"):
        whole(torch.tensor([[1.0, 2.0**-40]]), torch.ones(1), fmt, "it")
    with pytest.raises(NotIntegerError, match="mean NaN or infinity"):
        whole(torch.tensor([[1.0, math.nan]]), torch.ones(1), fmt, "it")


def test_the_narrowest_type():
    for low, high, dtype in [(-128, 127, torch.int8), (-129, 0, torch.int16),
                             (0, 128, torch.int16), (0, 2**31, torch.int64)]:  # fmt: skip
        assert narrowest(torch.tensor([low, high])) == dtype
    assert narrowest(torch.empty(0)) == torch.int8


@pytest.mark.some(2)
@pytest.mark.parametrize("weight", ["log8:channel0:pow2/nearest", "log6:tensor:pow2/nearest"])
def test_wide_weights_run_on_the_reference(weight):
    """Integers of 32 and 64 bits: right, where the float graph may round."""
    model, x = small()
    model[0].weight.data[0, 0] = 2.0**-24
    graph = fused(model, x, weight=weight, fmt=INT16)
    found, expected = compared(graph, x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    kinds = {w.dtype for w in bs.graph.audit_integer(integers(graph)).weights}
    assert kinds & {"int32", "int64"}


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("element", ["log4", "log5", "log8", "apot8"])
def test_c_files(element, tmp_path):
    model, x = small()
    graph = fused(model, x, weight=f"{element}:channel0:pow2/nearest")
    check_c(integers(graph), tmp_path, (x[:1],), (x[1:2],))


@pytest.mark.slow
def test_what_is_refused():
    """2^(1/2) is irrational: its float32 is no integer of few bits; and float scales."""
    model, x = small()
    for weight, words in [
        ("log8f3:channel0:pow2/nearest", "is log8f3.*neither integers nor powers of two"),
        ("nf4:channel0:pow2/nearest", "is nf4:.*nor powers of two: use integers, log2"),
        ("log4:channel0:fp32", "is log4:channel0:fp32: .*power-of-two scale"),
        ("log4:group8:e8m0/ceil", "within a sum, which needs one"),
    ]:
        with pytest.raises(NotIntegerError, match=words):
            bs.graph.lower(fused(model, x, weight=weight), "integer")
