# SPDX-License-Identifier: BSD-3-Clause
"""Every step of an integer model becomes a mark, and what it computed meanwhile is gone."""

import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_onnx.take_integers import take_integer, without_dead
from tests.support.integer_models import INT8, PER_CHANNEL, quantized


def integer():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 6, 6)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    return bs.graph.to_integer(quantized(model, x, PER_CHANNEL, INT8), x).eval(), x


def test_marks():
    model, x = integer()
    pieces = []
    program = without_dead(torch.export.export(take_integer(model, pieces), (x,)))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert len([name for name in called if "_symbolic" in name]) == len(pieces) > 4
    assert not [name for name in called if "shift" in name or "conv" in name]
    assert {type(piece.module).__name__ for piece in pieces} == {
        "Quantize", "IntegerConv", "Clamp", "Requantize", "IntegerLinear", "Dequantize",
    }  # fmt: skip
    assert pieces[0].kinds == (torch.float32,)
    assert pieces[1].kinds == (torch.int8,)


def test_the_model_stays_as_it_was():
    model, x = integer()
    before = model(x)
    take_integer(model, [])
    assert torch.equal(model(x), before)
