# SPDX-License-Identifier: BSD-3-Clause
"""Programs to lower: a small network of every kind of layer, from the module flow and by hand."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Value, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import choose_qparams
from blockscale.graph.pickled import State, set_state
from blockscale.ops.fused import FUSED
from blockscale.ops.primitives import choose_quantize, from_list, quantize

FORMATS = {  # weights, inputs, whether the inputs' scales are given beforehand
    "int8 static": ("int8_channel", "int8", True),
    "uint8 asym static": ("int8_channel", "uint8:tensor:fp32:asym", True),
    "int8 per token": ("int8_channel", "int8_token", False),
    "mxfp8": ("mxfp8", "mxfp8", False),
    "bfp8": ("bfp8", "bfp8", False),
    "nvfp4": ("nvfp4", "nvfp4", False),
    "int4 groups": ("int4:group32:fp32", "", False),
}
ROWS = {0: Dim("batch", min=2, max=64)}


class Net(nn.Module):
    """x [batch, 3, 8, 8] -> [batch, 10]: convolutions, an MLP and attention."""

    def __init__(self):
        super().__init__()
        self.conv, self.depthwise = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, groups=32)
        self.up, self.down = nn.Linear(32, 96), nn.Linear(96, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        x = torch.relu(self.depthwise(x)).flatten(2).transpose(1, 2)  # [batch, 36, 32]
        x = x + self.down(torch.relu(self.up(x)))
        parts = [
            layer(x).unflatten(-1, (2, 16)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        y = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return self.out((x + y).amax(1))


@cache
def network(kind):
    """The quantized module, its program with any number of rows, and what it was exported with."""
    weight, given, static = FORMATS[kind]
    torch.manual_seed(3)
    model, x = Net().eval(), torch.randn(4, 3, 8, 8)
    recipe = bs.Recipe(weight, input=given) if given else bs.Recipe(weight)
    if static:
        bs.calibrate(model, [x], recipe, observer="min_max", progress=False)
    else:
        bs.quantize_(model, recipe)
    return model, torch.export.export(model, (x,), dynamic_shapes=(ROWS,)), x


class Layers(nn.Module):
    """Two fused products with codes between them, and a sum."""

    def __init__(self, weight, given, static, width=64):
        super().__init__()
        self.names = weight, given, static
        self.width = width
        torch.manual_seed(5)
        for i, (n, k) in enumerate([(96, width), (width, 96)]):
            made = bs.quantize(torch.randn(n, k) / k**0.5, weight)
            self._keep(f"weight{i}", made.qparams)
            self.register_buffer(f"weight{i}_codes", operand_codes(made))
            self.register_buffer(f"bias{i}", torch.randn(n))
            if static and given:
                seen = torch.randn(64, k) if i == 0 else torch.randn(64, k).relu()
                self._keep(f"input{i}", choose_qparams(seen, parse(given)))

    def _keep(self, name, qparams):
        for part, tensor in qparams._asdict().items():
            if tensor is not None:
                self.register_buffer(f"{name}_{part}", tensor)

    def _parts(self, name):
        from blockscale.core.reference import QParams

        return QParams(**{p: getattr(self, f"{name}_{p}", None) for p in QParams._fields})

    def _weight(self, i, k):
        codes = getattr(self, f"weight{i}_codes")
        return Value(*operand(codes, self._parts(f"weight{i}"), self.names[0], k))

    def _by(self, i):
        _, given, static = self.names
        if not given:
            return UNQUANTIZED
        return quantizer(self._parts(f"input{i}") if static else None, given)

    def _coded(self, x, by, made=None):
        if not by.fmt:
            return Value(x if made is None else made[0])
        if by.scale is not None:
            codes = quantize(x, by) if made is None else made[0]
            return Value(*operand(codes, by.qparams, by.fmt, self.size(x, made)))
        codes, *parts = choose_quantize(x, by.fmt, None) if made is None else made
        size = self.size(x, made)
        return Value(*operand(codes, from_list(parts, by.format), by.fmt, size))

    @staticmethod
    def size(x, made):
        return x.shape[-1] if made is None else 96

    def forward(self, x):
        linear, first, second = FUSED["linear"], self._by(0), self._by(1)
        codes = self._coded(x, first)
        weight = self._weight(0, self.width)
        made = linear(codes, weight, bias=self.bias0, activation="relu", y=second)
        hidden = self._coded(None, second, made)
        (y,) = linear(hidden, self._weight(1, 96), bias=self.bias1)
        (total,) = FUSED["add"](codes, Value(y))
        return total


def operand_codes(made):
    """A QTensor's packed codes."""
    from blockscale.core import pack

    return pack.pack(made.codes, made.format.element)


@cache
def layers(kind):
    """A program of fused ops as a converted graph, and what it was exported with."""
    model, x = Layers(*FORMATS[kind]).eval(), torch.randn(4, 64)
    program = torch.export.export(model, (x,), dynamic_shapes=(ROWS,))
    graph = program.module(check_guards=False)
    set_state(graph, State("fused", example=((x,), {}), ranges=program.range_constraints))
    return graph, x
