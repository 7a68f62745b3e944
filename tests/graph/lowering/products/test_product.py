# SPDX-License-Identifier: BSD-3-Clause
"""Products as the nodes of a graph say them; test_ways.py has more."""

import pytest
import torch

from blockscale.graph.lowering.products.product import (
    OPEN,
    WAYS,
    floats_of,
    parts_of,
    product_of,
    refusals,
    spelling,
)
from blockscale.kernels.registry import unavailable
from tests.graph.lowering.programs import layers, network
from tests.support.products_ways import one


@pytest.mark.slow
def test_a_layer_of_the_module_flow():
    _, program, _ = network("uint8 asym static")
    graph = program.module(check_guards=False)
    found = list(filter(None, map(parts_of, graph.graph.nodes)))
    assert [each.fused for each in found] == [False] * 6
    up = product_of(found[0])
    assert up[:5] == ("uint8:tensor:fp32:asym", "int8:channel0:fp32", "", "", False)
    assert up[5:] == (OPEN, 96, 32)
    x, by = floats_of(found[0])
    assert x is found[0].x.data and by.scale is not None


def test_a_fused_product():
    graph, _ = layers("uint8 asym static")
    first, second = filter(None, map(parts_of, graph.graph.nodes))
    assert first.fused and first.activation == "relu" and first.y.fmt
    x, by = floats_of(first)
    assert x.op == "placeholder" and by.scale is first.x.scale
    assert floats_of(second) is None  # its codes come from a product
    assert product_of(first).has_scale and not product_of(second).has_scale


def test_a_dynamic_product():
    first, second = filter(None, map(parts_of, layers("int8 per token")[0].graph.nodes))
    x, by = floats_of(first)
    assert x.op == "placeholder" and by.scale is None
    assert floats_of(second) is None


def test_what_is_no_product():
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert not any(map(parts_of, graph.graph.nodes))


def test_one_spelling():
    assert spelling("int8_token") == "int8:token:fp32"
    assert spelling("") == ""


# What each way refuses, and why.


def product(graph):
    """The parts of its only product."""
    (parts,) = filter(None, map(parts_of, graph.graph.nodes))
    return parts


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_what_a_product_is():
    graph, _ = one("uint8:tensor:fp32:asym", "int8_token", "gelu")
    found = product_of(product(graph))
    assert found == (
        "uint8:tensor:fp32:asym", "int8:channel0:fp32", "int8:token:fp32", "gelu", False, 5, 48, 64
    )  # fmt: skip


CASES = {
    "static": (("uint8:tensor:fp32:asym",), {}),
    "dynamic result": (("int8", "int8_token"), {"onednn": "oneDNN returns floats, or 8 bits"}),
    "per token": (("int8_token",), {"onednn": "oneDNN needs activations of 8 bits with one"}),
    "floats": (("",), {"inside": "it has", "onednn": "one scale, not floats"}),
    "four bits": (("int8", "", "", "int4:channel0:fp32"), {"onednn": "int8 weights with one"}),
    "silu": (("int8", "", "silu"), {"onednn": "cannot fuse silu"}),
    "tanh gelu": (("int8", "", "gelu_tanh"), {"inside": "no op for gelu_tanh alone"}),
}


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
@pytest.mark.parametrize(("case", "reasons"), CASES.values(), ids=CASES)
def test_refused(case, reasons):
    found = refusals(product(one(*case)[0]))
    assert tuple(found) == WAYS
    for way, reason in found.items():
        if way == "onednn" and reason and "VNNI" in reason:
            continue  # a processor without it, which is its first reason
        assert (reason is None) == (way not in reasons), (way, reason)
        assert reasons.get(way, "") in (reason or "")
