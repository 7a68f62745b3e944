# SPDX-License-Identifier: BSD-3-Clause
"""What each way refuses, and why."""

import pytest

from blockscale.graph.lowering.products.product import parts_of, product_of
from blockscale.graph.lowering.products.ways import WAYS, refused
from blockscale.kernels.registry import unavailable
from tests.support.products_ways import one

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")


def product(graph):
    """The parts of its only product."""
    (parts,) = filter(None, map(parts_of, graph.graph.nodes))
    return parts


def test_what_a_product_is():
    graph, _ = one("uint8:tensor:fp32:asym", "int8_token", "gelu")
    found = product_of(product(graph))
    assert found == (
        "uint8:tensor:fp32:asym", "int8:channel0:fp32", "int8:token:fp32", "gelu", False, 5, 48, 64
    )  # fmt: skip


CASES = {
    "static": (("uint8:tensor:fp32:asym",), {}),
    "dynamic result": (("int8", "int8_token"), {"onednn": "oneDNN gives floats, or 8 bits"}),
    "per token": (("int8_token",), {"onednn": "oneDNN takes activations of 8 bits under one"}),
    "floats": (("",), {"inside": "it has floats already", "onednn": "one scale, not floats"}),
    "four bits": (("int8", "", "", "int4:channel0:fp32"), {"onednn": "int8 weights under one"}),
    "silu": (("int8", "", "silu"), {"onednn": "do not end in silu"}),
    "tanh gelu": (("int8", "", "gelu_tanh"), {"inside": "no op for gelu_tanh alone"}),
}


@pytest.mark.parametrize(("case", "reasons"), CASES.values(), ids=CASES)
def test_refused(case, reasons):
    found = refused(product(one(*case)[0]))
    assert tuple(found) == WAYS
    for way, reason in found.items():
        if way == "onednn" and way not in reasons and reason and "VNNI" in reason:
            continue  # a processor without it
        assert (reason is None) == (way not in reasons), (way, reason)
        assert reasons.get(way, "") in (reason or "")
