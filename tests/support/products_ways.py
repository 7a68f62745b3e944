# SPDX-License-Identifier: BSD-3-Clause
"""What several tests share with tests/graph/lowering/products/test_product.py: `one`."""

import torch
from torch import nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams, choose_qparams
from blockscale.graph.pickled import State, set_state
from blockscale.ops.fused import FUSED
from blockscale.ops.primitives import choose_quantize, from_list, quantize
from tests.graph.lowering.programs import operand_codes


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
