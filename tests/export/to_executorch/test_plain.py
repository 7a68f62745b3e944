# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of core ops alone: the reference's bits, and no op that ExecuTorch lacks."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.export.to_executorch import core_ops
from blockscale.export.to_executorch.plain import write_out
from blockscale.graph.program import imported

IDS = torch.arange(6).reshape(2, 3)


def written(fmt, given=None):
    torch.manual_seed(0)
    layers = [nn.Embedding(16, 64), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)]
    model = nn.Sequential(*layers).eval()
    program = torch.export.export(model, (IDS,))
    spec = "mean" if bs.parse(fmt).element.name in ("binary", "ternary") else "min_max"
    graph = bs.graph.prepare(program, bs.Recipe(fmt, given), observer=spec)
    bs.calibrate(graph, [(IDS,)], progress=False)
    converted = bs.graph.convert(graph)
    with bs.use("reference"), torch.no_grad():
        expected = converted(IDS)
    made = imported(converted)
    write_out(made)
    return made, expected


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("fmt", "given"),
    [("mxfp4", None), ("int8_channel", "int8_token"), ("uint4", "uint8"), ("nvfp4", "int8")],
)
def test_the_same_bits(fmt, given):
    made, expected = written(fmt, given)
    with torch.no_grad():
        assert torch.equal(made(IDS), expected)
    targets = {node.target for node in made.graph.nodes if node.op == "call_function"}
    assert not targets & set(core_ops.TABLE)
    assert not [t for t in targets if "blockscale" in str(t)]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", sorted(bs.formats()))
def test_every_format(fmt):
    made, expected = written(fmt)
    with torch.no_grad():
        assert torch.equal(made(IDS), expected)


def test_weights_stay_packed():
    made, _ = written("int4:group32:fp32")
    held = {name: tensor.dtype for name, tensor in made.named_buffers()}
    assert held["1.weight.codes"] == torch.uint8
    assert not [n for n, p in made.named_parameters() if p.ndim > 1]
