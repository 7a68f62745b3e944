# SPDX-License-Identifier: BSD-3-Clause
"""What runs a node, as the registry would choose."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Value, operand
from blockscale.graph.lowering import kernels
from blockscale.graph.lowering.kernels import (
    PREFIX,
    has_kernel,
    kernel_way,
    misses,
    own_arguments,
    pinned,
)
from blockscale.graph.lowering.way import by_overload, of_ours
from blockscale.kernels.registry import unavailable
from blockscale.ops.fused import FUSED
from blockscale.ops.linear import linear
from blockscale.ops.op import OPS
from tests.graph.lowering.programs import layers
from tests.support.lowering import learned


def product(graph):
    return next(n for n in graph.graph.nodes if of_ours(n) is FUSED["linear"].op)


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_arguments_have_the_sizes_of_the_example():
    node = product(layers("int4 groups")[0])
    x, weight, bias, activation, dtype, y = own_arguments(node, of_ours(node))
    assert isinstance(x, Value) and tuple(x.data.shape) == (4, 64)
    assert all(type(size) is int for size in x.data.shape)
    assert (weight.fmt, weight.size, activation, dtype) == (
        "int4:group32:fp32", 64, "relu", torch.float32,
    )  # fmt: skip
    assert tuple(bias.shape) == (96,) and y.fmt == ""


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_an_unknown_value():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.blockscale.quantize.default, (x, None, None, None, "int8"))
    with pytest.raises(ValueError, match="quantize_default: the value of x is not known: lower a"):
        own_arguments(node, of_ours(node))


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_a_kernel(monkeypatch):
    node = product(layers("int8 static")[0])
    assert has_kernel(node, "cpu") and misses(node, "cpu") is None
    assert kernel_way(node, "cpu").way == "kernel"


@pytest.mark.parametrize(
    ("recipe", "way", "slow"),
    [
        (bs.Recipe("int8_channel", "int8"), "products of planes, ", ""),
        (bs.Recipe("int8_channel"), "torch's float32 convolution, ", "of float32's time"),
    ],
)
def test_how_a_convolution_runs(recipe, way, slow):
    """The way of the kernel, and why it is slow, where it is."""
    model, x = nn.Sequential(nn.Conv2d(70, 8, 1)), torch.randn(1, 70, 4, 4)
    bs.quantize_(model, recipe)
    program = torch.export.export(model.eval(), (x,))
    node = next(n for n in program.graph_module.graph.nodes if of_ours(n) is OPS["conv"])
    found = kernel_way(node, "cpu")
    assert found.way == "kernel"
    assert found.why.startswith(way) or not slow  # patches without vpdpbusd
    assert slow in found.why


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_composed(monkeypatch):
    """Without a kernel of its own, an op runs as the primitives around it."""
    find = kernels.supporting
    monkeypatch.setattr(
        kernels, "supporting", lambda op, *rest: None if op == "fused_linear" else find(op, *rest)
    )
    found = kernel_way(product(layers("int8 static")[0]), "cpu")
    assert (found.way, found.on_reference) == ("composed", False)
    assert "no cpu kernel: dequantized, computed by torch" in found.why


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_left():
    graph = learned().module(check_guards=False)
    node = next(n for n in graph.graph.nodes if of_ours(n))
    assert misses(node, "cpu") == "no cpu kernel of linear takes book4:tensor:fp32"
    found = kernel_way(node, "cpu")
    assert found.on_reference and found.op == "linear"
    assert node.target is torch.ops.blockscale.reference_linear.default


# Ops that keep to the reference.


def test_every_op_has_one_of_its_schema():
    for overload in by_overload():
        name, schema = overload._schema.name, str(overload._schema)
        made = pinned(overload)
        own = name.replace("::", f"::{PREFIX}")
        assert made._schema.name == own
        assert str(made._schema) == schema.replace(name, own, 1)


def arguments(fmt):
    weight = bs.quantize(torch.randn(48, 64), fmt)
    packed = bs.quantize(torch.randn(48, 64), fmt)
    del weight
    from tests.graph.lowering.programs import operand_codes

    coded = operand(operand_codes(packed), packed.qparams, fmt, 64)
    return torch.randn(5, 64), coded, torch.randn(48), UNQUANTIZED


@pytest.mark.parametrize("choice", ["auto", "cpu", "reference"])
def test_it_runs_the_reference(choice):
    args = arguments("int4:group32:fp32")
    expected = linear.reference(*args)
    with bs.use(choice, fallback=True):
        found = pinned(linear.overload)(*linear.flatten(*args))
    assert torch.equal(found, expected)


def test_torch_knows_its_shape():
    args = linear.flatten(*arguments("mxfp8"))
    torch.library.opcheck(
        pinned(linear.overload), args, test_utils=("test_schema", "test_faketensor")
    )
