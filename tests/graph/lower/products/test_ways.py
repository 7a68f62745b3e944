"""What each way refuses, and why."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value, operand, quantizer
from blockscale.core.reference import QParams, choose_qparams
from blockscale.core.parse import parse
from blockscale.graph.lower.products.product import parts_of, product_of
from blockscale.graph.lower.products.ways import WAYS, refused
from blockscale.graph.state import State, set_state
from blockscale.kernels.registry import unavailable
from blockscale.ops.fused import FUSED
from blockscale.ops.primitives import choose_quantize, from_list, quantize
from tests.graph.lower.programs import operand_codes

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")


class One(nn.Module):
    """One fused product: floats are quantized, multiplied and quantized again."""

    def __init__(self, given, result, activation, weight):
        super().__init__()
        self.given, self.activation, self.weight = given, activation, weight
        torch.manual_seed(1)
        made = bs.quantize(torch.randn(48, 64), weight)
        self.codes, self.scale = nn.Buffer(operand_codes(made)), nn.Buffer(made.scale)
        self.y = Quantizer(None, None, None, result) if result else UNQUANTIZED
        self.by = quantizer(None, given)
        if given and parse(given).block.static:
            qparams = choose_qparams(torch.randn(64, 64), parse(given))
            self.by = quantizer(QParams(*map(self._buffer, qparams)), given)

    def _buffer(self, part):
        if part is None:
            return None
        name = f"part{len(list(self.buffers()))}"
        self.register_buffer(name, part)
        return getattr(self, name)

    def forward(self, x):
        by, weight = self.by, Value(self.codes, self.scale, None, None, self.weight, 64)
        if not by.fmt:
            value = Value(x)
        elif by.scale is None:
            codes, *parts = choose_quantize(x, by.fmt, None)
            value = Value(*operand(codes, from_list(parts, by.format), by.fmt, 64))
        else:
            value = Value(*operand(quantize(x, by), by.qparams, by.fmt, 64))
        return FUSED["linear"](value, weight, activation=self.activation, y=self.y)[0]


def one(given, result="", activation="", weight="int8_channel"):
    """The graph of one product, and x."""
    x = torch.randn(5, 64)
    program = torch.export.export(One(given, result, activation, weight), (x,))
    graph = program.module(check_guards=False)
    set_state(graph, State("fused", example=((x,), {})))
    return graph, x


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
