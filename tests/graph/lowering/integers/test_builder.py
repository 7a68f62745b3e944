# SPDX-License-Identifier: BSD-3-Clause
"""What rules read from the graph and add to it."""

import math

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph.lowering.integers.builder import Builder, Sum, _in_steps, _within
from blockscale.graph.lowering.integers.fixed import Fixed, NotIntegerError
from tests.graph.lowering.integers.flows import INT8, compared, fused, integers


def test_accumulators():
    assert [Sum("a", "linear", n, True).accumulator for n in (2**31 - 1, 2**31)] == [
        "int32",
        "int64",
    ]


def test_bounds_as_codes():
    y = Fixed(-4, 0, -127, 127, INT8)
    assert _within(y, None) == (-127, 127)
    assert _within(y, (0.0, math.inf)) == (0, 127)
    assert _within(y, (0.0, 6.0)) == (0, 96)
    assert _within(y, (0.1, 100.0)) == (2, 127)  # 1.6 steps round to 2, as its code would


def test_constants_are_computed_and_inputs_are_not():
    graph = fused(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    builder = Builder(graph)
    x = next(iter(graph.graph.find_nodes(op="placeholder")))
    with pytest.raises(NotIntegerError, match="it is computed from the model's input"):
        builder.constant(x, "it")
    assert builder.constant(None, "it") is None


def test_steps_of_sums():
    class Named:
        what = "it"

    assert _in_steps(Named(), Fixed(-2, 0, -100, 100), (-0.5, math.inf)) == (-2, 100)
    with pytest.raises(NotIntegerError, match=r"it: 0.3 is not a multiple of the step 0.25"):
        _in_steps(Named(), Fixed(-2, 0, -100, 100), (0.3, 1.0))


@pytest.mark.slow
def test_buffers_are_named_by_node_and_argument():
    graph = fused(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    names = [name for name, _ in integers(graph).named_buffers()]
    assert {name.rpartition(".")[2] for name in names} == {"weight", "bias", "shift"}
    assert all(name.startswith("integers.") for name in names)


def apart(power):
    """A layer whose two outputs have scales that differ by 2^power, its input, what it gives."""
    layer = nn.Linear(512, 2, bias=False)
    layer.weight.data[:] = torch.tensor([[2.0**power], [1.0]])
    x = torch.ones(1, 512)
    return fused(nn.Sequential(layer), x), x


@pytest.mark.slow
@pytest.mark.parametrize("power", [0, 9, 14, 31])
def test_sums_of_channels_far_apart_fit_in_what_they_are_given_in(power):
    """Shifted to the smallest step they may need 64 bits, where the sums themselves need 32."""
    graph, x = apart(power)
    found, expected = compared(graph, x)
    assert torch.equal(found, expected)


def test_sums_of_channels_too_far_apart():
    with pytest.raises(
        NotIntegerError, match=r"differ by 2\^32, over 2\^31: set a format for its result"
    ):
        bs.graph.lower(apart(32)[0], "integer")
