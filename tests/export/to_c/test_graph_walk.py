# SPDX-License-Identifier: BSD-3-Clause
"""What a graph becomes: doors, and moves that cost nothing."""

import re

import pytest
import torch

import blockscale as bs
from blockscale.export.to_c.graph_walk import walk
from tests.support.c_handmade import handmade
from tests.support.c_running import check, needs_gcc
from tests.support.integer_oracle import INT8, shifts, whole

aten = torch.ops.aten


def test_doors_and_moves():
    x = torch.randn(2, 3)
    calls = [
        ("quantize", ["x", -3, 0, INT8]),
        (aten.permute.default, ["@0", [1, 0]]),
        ("rescale", ["@1", 0, shifts(1), 0, -127, 127, INT8]),
        ("dequantize", ["@2", 0, -2]),
    ]
    graph = handmade({"x": x}, calls)
    graph.graph.output_node().args = (tuple(graph.graph.output_node().args[0][-1:]),)
    found = walk(graph, [x])
    assert [(d.array.name, d.shape, d.exponent) for d in found.inputs] == [("in_x", (2, 3), -3)]
    assert [(d.array.name, d.shape, d.exponent) for d in found.outputs] == [("out_0", (3, 2), -2)]
    assert [step.name for step in found.writer.steps] == ["step0_rescale", "step1_move"]


def test_indices_from_inputs_are_refused():
    x, i = whole(-9, 9, 3, 4, dtype=torch.int8), torch.tensor([0, 1])
    graph = handmade({"x": x, "i": i}, [(aten.index_select.default, ["x", 0, "i"])])
    with pytest.raises(bs.graph.NotIntegerError, match="indices are computed from inputs"):
        walk(graph, [x, i])


@needs_gcc
def test_masks(tmp_path):
    x = torch.tensor([[0, 1, 2, -3], [5, 0, 1, 1]])
    row, column = torch.arange(4), torch.tensor([[True], [False]])
    calls = [
        (aten.to.dtype, ["x", torch.bool]),
        (aten.__and__.Tensor, ["@0", column]),
        (aten.bitwise_or.Tensor, ["@1", "@0"]),
        (aten.logical_not.default, ["@2"]),
        *((op, ["x", row]) for op in (aten.le.Tensor, aten.gt.Tensor, aten.ne.Tensor)),
        *((op, ["x", 1]) for op in (aten.lt.Scalar, aten.ge.Scalar, aten.eq.Scalar)),
        (aten.to.dtype, ["@4", torch.int64]),
        (aten.index.Tensor, ["@0", [torch.tensor([[1], [0]]), torch.tensor([0, 3])]]),
    ]
    path = check(handmade({"x": x}, calls), tmp_path, (x,), (x.flip(1),))
    assert len(re.findall(r"static int step\d+_mask", path.read_text())) == 11


@pytest.mark.parametrize(
    ("op", "args", "why"),
    [
        (aten.__and__.Scalar, ["x", 3], "its mask is not bool"),
        (aten.to.dtype, ["x", torch.int8], "its mask is not bool"),
        (aten.to.dtype, ["x", torch.float32], "has no C form"),
        (aten.index.Tensor, [torch.arange(9), ["x"]], "indices are computed from inputs"),
    ],
)
def test_what_is_refused(op, args, why):
    x = torch.tensor([0, 1, 2])
    with pytest.raises(bs.graph.NotIntegerError, match=why):
        walk(handmade({"x": x}, [(op, args)]), [x])


def test_floats_are_refused():
    x = torch.randn(3)
    with pytest.raises(bs.graph.NotIntegerError, match="it does not read integers"):
        walk(handmade({"x": x}, [(aten.gt.Scalar, ["x", 0.5])]), [x])
